// Verification: structure, sizes, hashes, coverage, logical digests. Any flipped, missing or added byte of a step
// folder is a finding.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/pool.h"
#include "base/status.h"

namespace llmops {

struct Finding {
  std::string file;            // relative to the path that was asked for
  std::string tensor;          // empty where there is none
  int64_t begin = 0, end = 0;  // byte range within the file; 0, 0: the whole file
  std::string what;
};

struct VerifyReport {
  std::vector<std::string> steps;  // checked
  int64_t files = 0, bytes = 0, tensors = 0;
  std::vector<Finding> findings;
};

// A step folder, or a run folder: all its steps. Code::invalid when it is no checkpoint, Code::io when it is missing;
// findings are not an error. progress(done_bytes, total_bytes) is called from the calling thread.
Result<VerifyReport> verify(const std::string& path, Pool& pool,
                            const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace llmops
