// Cutting the work of one op into tasks of the device's pool. Sizes depend on the shape alone, never on the thread
// count, so that bits do not either. Baseline code: a source of kernels/cpu/isa includes it before vec.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/checked.h"
#include "kernels/runtime.h"
#include "kernels/tensor.h"

namespace llmops {

constexpr int64_t kTaskElems = 16384;  // 64 KiB of f32: far above the cost of claiming a task, far below a cache
constexpr int64_t kRowBlock = 64;      // rows of one leaf in a sum over rows (kernels/ops.h)

// f(begin, end) over [0, count), `grain` at a time.
template <class F>
void for_ranges(Stream& stream, int64_t count, int64_t grain, F&& f) {
  stream.device().pool().parallel_for(ceil_div(count, grain), [&](int64_t task, int) {
    f(task * grain, std::min(count, (task + 1) * grain));
  });
}

// f(begin, end) over the rows of a [count, width] op, about kTaskElems elements at a time.
template <class F>
void for_row_ranges(Stream& stream, int64_t count, int64_t width, F&& f) {
  for_ranges(stream, count, std::max<int64_t>(1, kTaskElems / std::max<int64_t>(1, width)), f);
}

// Row r of x[n,d], or of x[n,h,d] counted over n and h. Both outer axes may be strided.
template <class T, class Void>
auto row(const BasicView<Void>& x, int64_t r) {
  using Elem = std::conditional_t<std::is_const_v<Void>, const T, T>;
  auto* data = static_cast<Elem*>(x.data);
  if (x.rank == 2) return data + r * x.stride[0];
  return data + r / x.dim[1] * x.stride[0] + r % x.dim[1] * x.stride[1];
}
template <class Void>
int64_t row_count(const BasicView<Void>& x) {
  return x.rank == 2 ? x.dim[0] : x.dim[0] * x.dim[1];
}

// The first of ids[n] i32 that is outside [0, limit), as an error that names op, tensor, position, value and limit.
// With `ignore_negative` a negative value is not an error.
Status check_ids(const char* op, const char* tensor, const ConstTensorView& ids, int64_t limit, bool ignore_negative);

}  // namespace llmops
