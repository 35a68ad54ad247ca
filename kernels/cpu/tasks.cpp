#include "kernels/cpu/tasks.h"

#include "kernels/faults.h"

namespace llmops {

Status check_ids(const char* op, const char* tensor, const ConstTensorView& ids, int64_t limit, bool ignore_negative) {
  const auto* p = static_cast<const int32_t*>(ids.data);
  for (int64_t i = 0; i < ids.dim[0]; ++i) {
    if (p[i] < limit && (p[i] >= 0 || ignore_negative)) continue;
    return id_error(op, tensor, i, p[i], limit, ignore_negative);
  }
  return {};
}

}  // namespace llmops
