// What layer_norm and rms_norm share. Comes after vec.h and lanes.h.
#pragma once

namespace llmops::LLMOPS_ISA {

// The row that is normed. Where `delta` is present that is x + delta, written to `sum` first and taken from there:
// rounded to T, as backward will see it.
template <class T>
LLMOPS_INLINE const T* normed_input(const ConstTensorView& x, const ConstTensorView& delta, const TensorView& sum,
                                    int64_t r, int64_t d) {
  const T* x_row = row<T>(x, r);
  if (!delta.present()) return x_row;
  const T* delta_row = row<T>(delta, r);
  T* sum_row = row<T>(sum, r);
  for_lanes(d, [&](int64_t i, int n) LLMOPS_BODY {
    store_part(sum_row + i, load_part(x_row + i, n) + load_part(delta_row + i, n), n);
  });
  return sum_row;
}

LLMOPS_INLINE float* zeroed(float* p, int64_t count) {
  std::memset(p, 0, static_cast<size_t>(count) * sizeof(float));
  return p;
}

}  // namespace llmops::LLMOPS_ISA
