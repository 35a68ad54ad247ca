// A run folder: its steps, its lock, its leftovers.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/io.h"
#include "base/pool.h"

namespace llmops {

struct StepDir {
  int64_t step = 0;
  std::string path;
};

std::string step_name(int64_t step);            // "step-00000100"
std::optional<int64_t> step_of(std::string_view name);  // the inverse; none for any other name
Status no_checkpoint(const std::string& path);  // says what was expected
Status check_folder(const std::string& path);   // Code::invalid for a file; what is missing is for Dir::open to tell

// step-%08d folders, ascending. A missing folder is Code::io.
Result<std::vector<StepDir>> list_steps(const std::string& run_dir);

// A step folder as it is, or the newest step of a run folder, its content unread. Code::invalid when it is neither.
Result<std::string> newest_step(const std::string& path);

struct NewestValid {
  std::optional<StepDir> step;
  std::vector<std::string>
      skipped;  // "step-00000200: shard-00001.safetensors: ..." for each newer step that is not valid
};
// The newest step that passes verify(), content included. Code::interrupted when a signal came.
Result<NewestValid> newest_valid(const std::string& run_dir, Pool& pool);

// Held by the one run that may write DIR, its ranks included; the kernel releases it when the last of them dies.
// Code::usage names the holder.
class RunLock {
 public:
  static Result<RunLock> acquire(const std::string& run_dir);

 private:
  File file_;
};

// Unfinished saves (.step-*.tmp). Only the holder of the lock may call it.
Status remove_leftovers(const Dir& run_dir);
// Of the steps up to `newest`, which is whole, removes the oldest so that `keep` remain (0: all stay). Later ones are
// those that a resume went back behind: they count for nothing.
Status prune_steps(const Dir& run_dir, int64_t newest, int64_t keep);

}  // namespace llmops
