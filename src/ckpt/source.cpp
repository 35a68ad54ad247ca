#include "ckpt/source.h"

#include <fmt/format.h>

#include "base/io.h"
#include "ckpt/checkpoint.h"
#include "ckpt/steps.h"
#include "ckpt/verify.h"

namespace llmops {

Result<WeightsFolder> find_weights(const std::string& path, Pool& pool) {
  WeightsFolder found{.path = path, .is_step = false, .notes = {}};
  while (found.path.size() > 1 && found.path.back() == '/') found.path.pop_back();
  LLMOPS_ASSIGN(const Dir dir, Dir::open(path));
  found.is_step = dir.exists("manifest.json");
  if (found.is_step) {
    LLMOPS_ASSIGN(const VerifyReport report, verify(found.path, pool));
    if (report.findings.empty()) return found;
    const Finding& first = report.findings.front();
    return invalid_error(fmt::format("{}/{}: {}; llmops ckpt verify says all that is wrong", found.path, first.file, first.what));
  }
  if (dir.exists("config.json")) return found;
  LLMOPS_ASSIGN(const std::vector<StepDir> steps, list_steps(found.path));
  if (steps.empty())
    return invalid_error(path +
                         ": is no model: neither manifest.json (a step), step-%08d folders (a run) nor config.json "
                         "(Hugging Face) are in it");
  LLMOPS_ASSIGN(NewestValid newest, newest_valid(found.path, pool));
  for (std::string& why : newest.skipped) found.notes.push_back("skipped " + std::move(why));
  if (!newest.step)
    return invalid_error(path + ": none of its steps is valid: " + (found.notes.empty() ? "" : found.notes.front()));
  found.path = newest.step->path;
  found.is_step = true;
  return found;
}

Result<std::unique_ptr<TensorSource>> open_weights(const std::string& path) {
  LLMOPS_ASSIGN(const Dir dir, Dir::open(path));
  if (!dir.exists("manifest.json")) return open_hf(path);
  LLMOPS_ASSIGN(std::unique_ptr<Checkpoint> step, Checkpoint::open(path));
  return std::unique_ptr<TensorSource>(std::move(step));
}

}  // namespace llmops
