// What happens once per run, before its ranks start.
#include <fmt/format.h>

#include "train/run.h"

namespace llmops {

Result<PreparedRun> prepare_run(const std::string& out, bool resume, Pool& pool) {
  PreparedRun run;
  if (out.empty()) return run;
  LLMOPS_ASSIGN(const Dir dir, Dir::create(out));
  LLMOPS_ASSIGN(run.lock, RunLock::acquire(out));
  LLMOPS_ASSIGN(const std::vector<StepDir> steps, list_steps(out));
  if (!steps.empty() && !resume)
    return usage_error(
        fmt::format("--out {}: holds {} step{} up to {}; give --resume auto to go on from there, or another folder",
                    out, steps.size(), steps.size() == 1 ? "" : "s", steps.back().step));
  LLMOPS_TRY(remove_leftovers(dir));
  if (steps.empty()) return run;
  LLMOPS_ASSIGN(NewestValid newest, newest_valid(out, pool));
  run.notes = std::move(newest.skipped);
  if (!newest.step)
    return invalid_error(fmt::format("{}: holds {} steps, none of them valid ({}); remove the folder to start anew",
                                     out, steps.size(), run.notes.empty() ? "unreadable" : run.notes.front()));
  run.resume_from = newest.step->path;
  return run;
}

}  // namespace llmops
