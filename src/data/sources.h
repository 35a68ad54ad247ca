// From what a user names as data to files, and what kind of data each is.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "data/dataset.h"
#include "data/input.h"

namespace llmops {

struct Sources {
  std::vector<std::string> train, val;
};
// Folders become their files in sorted order, glob patterns what matches. A file that a folder holds under several
// names is taken once.
Result<Sources> expand_paths(const DataOptions& options);

// "PREFIX.idx" for a file or prefix that belongs to a Megatron pair, else empty.
std::string megatron_index_path(const std::string& path);
// The format of an opened file by its first bytes and name (all but megatron, which is known by name alone).
Result<DataFormat> detect_format(Input& input);

}  // namespace llmops
