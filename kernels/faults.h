// The words for what an op finds wrong in its data: the same from every table.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace llmops {

// tensor[at] is `value`, outside [0, limit); with `ignore_negative` outside [.., limit).
Status id_error(const char* op, const char* tensor, int64_t at, int32_t value, int64_t limit, bool ignore_negative);

enum class SampleFault : uint8_t { none, nan, infinite, temperature, top_k, top_p };
Status sample_error(int64_t row, SampleFault fault);

}  // namespace llmops
