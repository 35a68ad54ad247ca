#include "kernels/faults.h"

#include <fmt/format.h>

namespace llmops {

Status id_error(const char* op, const char* tensor, int64_t at, int32_t value, int64_t limit, bool ignore_negative) {
  return invalid_error(fmt::format("{}: {}[{}] is {}, expected {} {}; check the data against the model's sizes", op, tensor, at,
                                   value, ignore_negative ? "less than" : "0 or more and less than", limit));
}

Status sample_error(int64_t row, SampleFault fault) {
  constexpr const char* kTexts[] = {
      "",
      "a NaN logit found, numbers expected: the model's output is not finite",
      "an infinite largest logit found; at least one finite, and none +inf, is needed to draw",
      "temperature must be a number >= 0",
      "top_k must be >= 0 (0: all)",
      "top_p must be within [0, 1] (1: all)"};
  return invalid_error(fmt::format("row {}: {}", row, kTexts[static_cast<int>(fault)]));
}

}  // namespace llmops
