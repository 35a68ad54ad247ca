// Small text files of a folder that is not trusted.
#pragma once

#include <string>
#include <string_view>

#include "base/io.h"

namespace llmops {

// The whole of a file. Code::invalid when it is longer than bytes_max.
Result<std::string> read_text(const File& file, int64_t bytes_max);
// Of a plain file of the folder.
Result<std::string> read_text(const Dir& dir, std::string_view name, int64_t bytes_max);

}  // namespace llmops
