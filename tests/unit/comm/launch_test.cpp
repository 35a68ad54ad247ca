#include <sys/wait.h>

#include <map>
#include <string>

#include "base/run.h"
#include "comm/launch.h"
#include "unit/comm/ranks.h"

using namespace llmops;

namespace {

using Env = std::map<std::string, std::string>;

Result<Launch> parse(const Env& env, std::optional<int> ranks = std::nullopt) {
  return parse_launch_env(ranks, [&](const char* name) -> const char* {
    const auto it = env.find(name);
    return it == env.end() ? nullptr : it->second.c_str();
  });
}

const Env kTorchrun = {{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "h"}};
const Env kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_UNIVERSE_SIZE", "16"}};
const Env kPmi = {{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "2"}};
const Env kSrun = {{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"},
                   {"SLURM_STEP_NUM_TASKS", "6"}};

Env with(Env env, const Env& more) {
  for (const auto& [name, value] : more) env[name] = value;
  return env;
}

std::string error_of(const Result<Launch>& result) {
  CHECK(!result.ok());
  CHECK(result.status().code() == Code::usage);
  return result.status().message();
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

int exited(int code) { return code << 8; }  // as waitpid(2) reports it

}  // namespace

TEST_CASE("no launcher: one rank, or a parent of --ranks") {
  CHECK(parse({})->role == Launch::Role::single);
  CHECK(parse({}, 1)->role == Launch::Role::single);
  CHECK(parse({}, 4)->role == Launch::Role::parent);
  CHECK(parse({}, 4)->world == 4);
  CHECK(has(error_of(parse({}, 0)), "--ranks: found 0, expected 1 to 64"));
  CHECK(has(error_of(parse({}, -1)), "found -1"));
  CHECK(has(error_of(parse({}, 65)), "found 65"));
}

TEST_CASE("a launcher's world above 1 is an error that says what to do") {
  CHECK(has(error_of(parse(kTorchrun)), "torchrun (RANK=1, WORLD_SIZE=4) started this process as rank 1 of 4"));
  CHECK(has(error_of(parse(kTorchrun)), "--ranks 4"));
  CHECK(has(error_of(parse(kOpenMpi)), "Open MPI (OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=2)"));
  CHECK(has(error_of(parse(kPmi)), "rank 2 of 3"));
  CHECK(has(error_of(parse(kSrun)), "Slurm (SLURM_PROCID=5, SLURM_STEP_NUM_TASKS=6)"));
  CHECK(has(error_of(parse(kTorchrun, 4)), "torchrun"));
}

TEST_CASE("--ranks 1 means independent copies and is noted; a world of 1 is no obstacle") {
  const auto copy = parse(kTorchrun, 1);
  CHECK(copy->role == Launch::Role::single);
  CHECK(copy->notes.size() == 1);
  CHECK(has(copy->notes[0], "independent copy"));
  const Env one = {{"RANK", "0"}, {"WORLD_SIZE", "1"}};
  CHECK(parse(one)->role == Launch::Role::single);
  CHECK(parse(one)->notes.empty());
  CHECK(parse(one, 2)->role == Launch::Role::parent);
}

TEST_CASE("half a set and values that are no place are usage errors") {
  CHECK(has(error_of(parse({{"RANK", "0"}})), "RANK without WORLD_SIZE"));
  CHECK(has(error_of(parse({{"WORLD_SIZE", "2"}})), "WORLD_SIZE without RANK"));
  CHECK(has(error_of(parse({{"LOCAL_RANK", "0"}})), "LOCAL_RANK without RANK"));
  CHECK(has(error_of(parse({{"OMPI_COMM_WORLD_SIZE", "2"}})), "OMPI_COMM_WORLD_SIZE without OMPI_COMM_WORLD_RANK"));
  CHECK(has(error_of(parse({{"PMI_RANK", "0"}})), "PMI_RANK without PMI_SIZE"));
  CHECK(has(error_of(parse({{"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "2"}})), "SLURM_NTASKS without SLURM_PROCID"));
  for (const char* bad : {"", "x", "1x", " 1", "-1", "4", "99999999999", "0x1", "1.0"})
    CHECK(has(error_of(parse({{"RANK", bad}, {"WORLD_SIZE", "4"}})), "expected 0 <= RANK < WORLD_SIZE"));
  CHECK(has(error_of(parse({{"RANK", "0"}, {"WORLD_SIZE", "0"}})), "WORLD_SIZE=0"));
}

TEST_CASE("Slurm counts within a step only") {
  Env shell = kSrun;
  shell.erase("SLURM_STEP_ID");
  shell["SLURM_JOB_NAME"] = "interactive";
  CHECK(parse(shell)->role == Launch::Role::single);
  shell["SLURM_STEP_ID"] = "4294967290";  // salloc's interactive step
  CHECK(parse(shell)->role == Launch::Role::single);
  shell["SLURM_STEP_ID"] = "4294967291";  // the batch script
  CHECK(parse(shell, 2)->role == Launch::Role::parent);
  Env old = kSrun;
  old.erase("SLURM_STEP_ID");
  old.erase("SLURM_STEP_NUM_TASKS");
  old["SLURM_STEPID"] = "3";
  CHECK(has(error_of(parse(old)), "SLURM_NTASKS=8"));
}

TEST_CASE("precedence, and disagreement is reported") {
  const Env one = {{"RANK", "0"}, {"WORLD_SIZE", "1"}};
  const auto launch = parse(with(kSrun, one));
  CHECK(launch->role == Launch::Role::single);
  CHECK(launch->notes.size() == 1);
  CHECK(has(launch->notes[0], "torchrun (RANK=0, WORLD_SIZE=1) counts, Slurm"));
  CHECK(has(error_of(parse(with(with(kSrun, kPmi), kOpenMpi))), "Open MPI"));
  CHECK(has(error_of(parse(with(kSrun, kPmi))), "PMI (PMI_RANK=2"));
  const Env agree = {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}, {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"},
                     {"SLURM_NTASKS", "1"}};
  CHECK(parse(agree)->notes.empty());
}

TEST_CASE("a rank of run_ranks knows its place before any launcher's") {
  const auto launch = parse(with(kTorchrun, {{"LLMOPS_MEMBER", "1:2:5:4711"}}), 2);
  CHECK(launch->role == Launch::Role::member);
  CHECK(launch->rank == 1);
  CHECK(launch->world == 2);
  CHECK(launch->memory_fd == 5);
  CHECK(launch->parent_pid == 4711);
  CHECK(parse({{"LLMOPS_MEMBER", "1:2:5:4711"}})->role == Launch::Role::member);
  error_of(parse({{"LLMOPS_MEMBER", "1:2:5:4711"}}, 3));
  for (const char* bad : {"", "1", "1:2:5", "1:2:5:", "1:2:5:6:7", "a:2:5:6", "1:2:-5:6"})
    CHECK(has(error_of(parse({{"LLMOPS_MEMBER", bad}})), "unset it"));

  auto device = Device::open_cpu(test::device_options());
  Launch stray = *launch;
  CHECK(open_communicator(**device, stray).status().code() == Code::peer);  // not the child of 4711
  stray.parent_pid = getppid();
  stray.memory_fd = 0;
  const auto joined = open_communicator(**device, stray);
  CHECK(joined.status().code() == Code::peer);
  CHECK(has(joined.status().message(), "start ranks with --ranks"));
}

TEST_CASE("the exit code of a group") {
  CHECK(group_exit_code({exited(0), exited(0)}, 0) == 0);
  CHECK(group_exit_code({exited(1), exited(0)}, 0) == 1);
  CHECK(group_exit_code({exited(75), exited(75)}, SIGTERM) == 75);
  CHECK(group_exit_code({exited(75), exited(0)}, SIGTERM) == 75);
  CHECK(group_exit_code({exited(75), exited(4)}, SIGTERM) == 4);
  CHECK(group_exit_code({exited(5), exited(4)}, 0) == 4);
  CHECK(group_exit_code({exited(5), exited(3), exited(5)}, 0) == 3);
  CHECK(group_exit_code({exited(2), exited(2)}, 0) == 2);
  CHECK(group_exit_code({exited(75), exited(5)}, 0) == 5);
  CHECK(group_exit_code({exited(0), exited(99)}, 0) == 5);
  CHECK(group_exit_code({SIGKILL, exited(4)}, 0) == 5);
  CHECK(group_exit_code({SIGKILL, exited(75)}, SIGTERM) == 5);
  CHECK(group_exit_code({SIGTERM, SIGTERM}, SIGTERM) == 128 + SIGTERM);
  CHECK(group_exit_code({SIGSEGV, exited(5)}, 0) == 5);
}
