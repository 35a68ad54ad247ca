#include "ckpt/steps.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/run.h"
#include "base/text.h"
#include "ckpt/manifest.h"
#include "ckpt/verify.h"

namespace llmops {
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kLeftover = ".step-";

}  // namespace

std::string step_name(int64_t step) { return fmt::format("step-{:08}", step); }

std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix) || name.size() < kPrefix.size() + 8) return std::nullopt;
  const auto step = parse_int(name.substr(kPrefix.size()), 0, INT64_MAX);
  return step.ok() && name == step_name(*step) ? std::optional(*step) : std::nullopt;
}

Result<std::vector<StepDir>> list_steps(const std::string& run_dir) {
  LLMOPS_ASSIGN(const Dir dir, Dir::open(run_dir));
  LLMOPS_ASSIGN(const std::vector<std::string> names, dir.list());
  std::vector<StepDir> steps;
  for (const std::string& name : names)
    if (const auto step = step_of(name)) steps.push_back({*step, run_dir + "/" + name});
  std::ranges::sort(steps, {}, &StepDir::step);
  return steps;
}

Status check_folder(const std::string& path) {
  struct stat file;
  if (::stat(path.c_str(), &file) != 0 || S_ISDIR(file.st_mode)) return {};
  return invalid_error(path + ": is no checkpoint: a file, expected a step folder or a run folder");
}

Result<std::string> newest_step(const std::string& path) {
  LLMOPS_TRY(check_folder(path));
  {
    LLMOPS_ASSIGN(const Dir dir, Dir::open(path));
    if (dir.exists(kManifestName)) return path;
  }
  LLMOPS_ASSIGN(const std::vector<StepDir> steps, list_steps(path));
  if (steps.empty()) return no_checkpoint(path);
  return steps.back().path;
}

Status no_checkpoint(const std::string& path) {
  return invalid_error(fmt::format("{}: is no checkpoint: expected a folder with {}, or one with step-%08d folders",
                                   path, kManifestName));
}

Result<NewestValid> newest_valid(const std::string& run_dir, Pool& pool) {
  LLMOPS_ASSIGN(const std::vector<StepDir> steps, list_steps(run_dir));
  NewestValid found;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const auto report = verify(step->path, pool);
    if (report.status().code() == Code::interrupted) return report.status();
    if (report.ok() && report->findings.empty()) {
      found.step = *step;
      return found;
    }
    const std::string why = report.ok() ? fmt::format("{}: {}", report->findings[0].file, report->findings[0].what)
                                        : report.status().message();
    found.skipped.push_back(fmt::format("{}: {}", step->path, why));
  }
  return found;
}

// The ranks of a run inherit the descriptor, so the lock holds until the last of them is gone; those of a run that was
// just killed need a moment for that.
Result<RunLock> RunLock::acquire(const std::string& run_dir) {
  constexpr double kPatience_s = 2;
  const std::string path = run_dir + "/.lock";
  const int fd = real_fs().openat(AT_FDCWD, path.c_str(), O_RDWR | O_CREAT, 0644);
  if (fd < 0) return errno_status(path, "open", errno);
  RunLock lock;
  lock.file_ = File(real_fs(), fd, path);
  const double stop_s = monotonic_s() + kPatience_s;
  int locked;
  while ((locked = flock(fd, LOCK_EX | LOCK_NB)) != 0 && errno == EWOULDBLOCK && monotonic_s() < stop_s)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  if (locked != 0) {
    if (errno != EWOULDBLOCK) return errno_status(path, "lock", errno);
    char holder[32] = {};
    const ssize_t n = pread(fd, holder, sizeof holder - 1, 0);
    return usage_error(
        fmt::format("{}: is in use by another run (pid {}); wait for it, or give another folder", run_dir,
                    n > 0 ? escape_control(std::string_view(holder, static_cast<size_t>(n))) : "unknown"));
  }
  const std::string pid = fmt::format("{}", getpid());
  if (ftruncate(fd, 0) != 0 || pwrite(fd, pid.data(), pid.size(), 0) < 0) return errno_status(path, "write", errno);
  return lock;
}

Status remove_leftovers(const Dir& run_dir) {
  LLMOPS_ASSIGN(const std::vector<std::string> names, run_dir.list());
  for (const std::string& name : names)
    if (name.starts_with(kLeftover)) LLMOPS_TRY(run_dir.remove_tree(name));
  return {};
}

Status prune_steps(const Dir& run_dir, int64_t newest, int64_t keep) {
  if (keep <= 0) return {};
  LLMOPS_ASSIGN(std::vector<StepDir> steps, list_steps(run_dir.path()));
  std::erase_if(steps, [&](const StepDir& step) { return step.step > newest; });
  for (int64_t i = 0; i + keep < static_cast<int64_t>(steps.size()); ++i)
    LLMOPS_TRY(run_dir.remove_tree(steps[i].path.substr(run_dir.path().size() + 1)));
  return {};
}

}  // namespace llmops
