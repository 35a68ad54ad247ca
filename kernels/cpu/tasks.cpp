#include "kernels/cpu/tasks.h"

#include <fmt/format.h>

namespace llmops {

Status check_ids(const char* op, const char* tensor, const ConstTensorView& ids, int64_t limit, bool ignore_negative) {
  const auto* p = static_cast<const int32_t*>(ids.data);
  for (int64_t i = 0; i < ids.dim[0]; ++i) {
    if (p[i] < limit && (p[i] >= 0 || ignore_negative)) continue;
    return invalid_error(fmt::format("{}: {}[{}] is {}, expected {} {}; check the data against the model's sizes", op, tensor,
                                     i, p[i], ignore_negative ? "less than" : "0 or more and less than", limit));
  }
  return {};
}

}  // namespace llmops
