#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "comm/comm.h"
#include "comm/launch.h"
#include "comm/launch_env.h"

namespace llmops {
namespace {

std::optional<int> parse_int(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// A launcher and the variables that tell a process its place: the first of `world` that is set counts.
struct Launcher {
  const char* name;
  const char* rank;
  const char* world[2];
  const char* also = nullptr;  // a variable that without the others means half a set
};

// In order of precedence. PMI is what MPICH, Intel MPI and their kin (Hydra) set, and srun with pmi2.
constexpr Launcher kLaunchers[] = {
    {"torchrun", "RANK", {"WORLD_SIZE"}, "LOCAL_RANK"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", {"OMPI_COMM_WORLD_SIZE"}, "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI", "PMI_RANK", {"PMI_SIZE"}},
    {"Slurm", "SLURM_PROCID", {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}},
};

struct Place {
  const char* launcher;
  int rank, world;
  std::string text;  // "torchrun (RANK=1, WORLD_SIZE=4)"
};

// srun's own steps count from 0; the batch script, salloc's interactive shell and the extern step have ids from
// 0xfffffff0 up or none, and run one process whatever the number of tasks of the job.
bool in_slurm_step(const GetEnv& get) {
  const char* id = get("SLURM_STEP_ID");
  if (id == nullptr) id = get("SLURM_STEPID");
  return id != nullptr && parse_int(id).value_or(-1) >= 0;
}

Result<std::optional<Place>> find_place(const Launcher& launcher, const GetEnv& get) {
  const char* world_name = launcher.world[0];
  if (get(world_name) == nullptr && launcher.world[1] != nullptr) world_name = launcher.world[1];
  const char* rank = get(launcher.rank);
  const char* world = get(world_name);
  const bool also = launcher.also != nullptr && get(launcher.also) != nullptr;
  if (!rank && !world && !also) return std::optional<Place>();
  if (!rank || !world)
    return usage_error(fmt::format("environment: found {} without {}, expected both (by {}) or neither",
                                   rank ? launcher.rank : world ? world_name : launcher.also,
                                   rank ? world_name : launcher.rank, launcher.name));
  const std::optional<int> r = parse_int(rank), w = parse_int(world);
  const std::string text = fmt::format("{} ({}={}, {}={})", launcher.name, launcher.rank, rank, world_name, world);
  if (!r || !w || *w < 1 || *r < 0 || *r >= *w)
    return usage_error(fmt::format("environment: found {}, expected 0 <= {} < {}", text, launcher.rank, world_name));
  return std::optional<Place>(Place{launcher.name, *r, *w, text});
}

Result<Launch> parse_member(const char* text) {
  Launch launch;
  launch.role = Launch::Role::member;
  int* const fields[] = {&launch.rank, &launch.world, &launch.memory_fd, &launch.parent_pid};
  std::string_view rest = text;
  for (int* field : fields) {
    const size_t colon = rest.find(':');
    const std::optional<int> value = parse_int(rest.substr(0, colon));
    if (!value || *value < 0 || (colon == std::string_view::npos) != (field == &launch.parent_pid))
      return usage_error(fmt::format("environment: found {}={}, expected what --ranks sets: unset it", kMemberVariable,
                                     text));
    *field = *value;
    rest.remove_prefix(colon == std::string_view::npos ? rest.size() : colon + 1);
  }
  return launch;
}

Result<std::vector<Place>> find_places(const GetEnv& get) {
  std::vector<Place> places;
  for (const Launcher& launcher : kLaunchers) {
    if (std::strcmp(launcher.name, "Slurm") == 0 && !in_slurm_step(get)) continue;
    LLMOPS_ASSIGN(const std::optional<Place> place, find_place(launcher, get));
    if (place) places.push_back(*place);
  }
  return places;
}

}  // namespace

Result<Launch> parse_launch_env(std::optional<int> ranks, const GetEnv& get) {
  if (ranks && (*ranks < 1 || *ranks > kRanksMax))
    return usage_error(fmt::format("--ranks: found {}, expected 1 to {}", *ranks, kRanksMax));
  if (const char* member = get(kMemberVariable)) {
    LLMOPS_ASSIGN(Launch launch, parse_member(member));
    if (ranks && *ranks != launch.world)
      return usage_error(fmt::format("--ranks: found {} in a rank of a group of {}", *ranks, launch.world));
    return launch;
  }
  LLMOPS_ASSIGN(const std::vector<Place> places, find_places(get));
  Launch launch;
  launch.role = ranks.value_or(1) > 1 ? Launch::Role::parent : Launch::Role::single;
  launch.world = ranks.value_or(1);
  if (places.empty()) return launch;
  const Place& first = places[0];
  for (const Place& other : places)
    if (other.rank != first.rank || other.world != first.world)
      launch.notes.push_back(fmt::format("launchers disagree: {} counts, {} does not", first.text, other.text));
  if (first.world == 1) return launch;
  if (ranks == 1) {
    launch.notes.push_back(fmt::format("--ranks 1: this is an independent copy, {} is not used", first.text));
    return launch;
  }
  return usage_error(fmt::format(
      "{} started this process as rank {} of {}, but llmops can join only ranks that it starts itself, on one machine: "
      "run it once with --ranks {}, or give --ranks 1 to run an independent copy in each process",
      first.text, first.rank, first.world, ranks.value_or(first.world)));
}

Result<Launch> parse_launch_env(std::optional<int> ranks) {
  return parse_launch_env(ranks, [](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace llmops
