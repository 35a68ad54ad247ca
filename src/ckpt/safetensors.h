// The safetensors container: u64 little-endian header length, JSON header, dense data
// (github.com/huggingface/safetensors, README).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/io.h"
#include "base/json.h"
#include "layout/tensors.h"

namespace llmops {

struct SafeTensor {
  std::string name;
  std::optional<DType> dtype;  // empty: one of the format's types that this release does not compute with
  Shape shape;
  int64_t begin = 0, end = 0;       // bytes within the file
  std::string_view type_name = {};  // "BF16", "F8_E4M3": as the header spells it
};

struct SafeTensors {
  std::vector<SafeTensor> tensors;  // in the order of their data
  Json metadata;                    // __metadata__, or null
  int64_t data_begin = 0;
  const SafeTensor* find(std::string_view name) const;
};

// Stricter than the reference reader: also duplicate keys and a header that does not start with '{' are errors. The
// ranges of all tensors must tile the data exactly. Code::invalid otherwise.
Result<SafeTensors> read_safetensors_header(const File& file);
// The same on bytes, for tests and fuzzing: `header` is what follows the length, file_bytes the size of the whole file.
Result<SafeTensors> parse_safetensors_header(std::string_view header, int64_t file_bytes);

// Header bytes (length included) of tensors that follow each other; shapes and dtypes as given. Space-padded to a
// multiple of 8. begin and end of each are filled in.
std::string safetensors_header(std::vector<SafeTensor>& tensors, const Json& metadata = {});

}  // namespace llmops
