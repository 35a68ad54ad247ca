// The ref table: plain loops in double, the oracle of every other table. Values are read as double, sums are double,
// results are rounded once when they are stored. Nothing here is fast, and nothing is shared with the tables that it
// judges but the checks of ids and sequence offsets. It takes f64 too (below the contracts), for gradient checks.
#pragma once

#include <vector>

#include "kernels/ops.h"

namespace llmops::ref {

#define X(op, Args) Status op(Stream& stream, const Args& args);
LLMOPS_OPS(X)
#undef X

template <class View, class... Index>
int64_t offset(const View& t, Index... index) {
  int64_t at = 0;
  int axis = 0;
  ((at += int64_t(index) * t.stride[axis++]), ...);
  return at;
}

// Element t[index...]; integers are read with geti.
template <class... Index>
double get(const ConstTensorView& t, Index... index) {
  const int64_t at = offset(t, index...);
  if (t.dtype == DType::f32) return static_cast<const float*>(t.data)[at];
  if (t.dtype == DType::f64) return static_cast<const double*>(t.data)[at];
  return to_f32(static_cast<const bf16*>(t.data)[at]);
}
inline int64_t geti(const ConstTensorView& t, int64_t i) {
  return t.dtype == DType::i32 ? static_cast<const int32_t*>(t.data)[i] : static_cast<const int64_t*>(t.data)[i];
}
template <class... Index>
void put(const TensorView& t, double x, Index... index) {
  const int64_t at = offset(t, index...);
  if (t.dtype == DType::f32) static_cast<float*>(t.data)[at] = static_cast<float>(x);
  else if (t.dtype == DType::f64) static_cast<double*>(t.data)[at] = x;
  else static_cast<bf16*>(t.data)[at] = to_bf16(static_cast<float>(x));
}

// Rows along the last axis: of x[n,d], or of x[n,h,d] counted over n and h.
template <class View>
int64_t row_count(const View& t) {
  return t.rank == 3 ? t.dim[0] * t.dim[1] : t.dim[0];
}
inline std::vector<double> get_row(const ConstTensorView& t, int64_t row) {
  const bool heads = t.rank == 3;
  const int64_t width = t.dim[t.rank - 1];
  std::vector<double> x(static_cast<size_t>(width));
  for (int64_t i = 0; i < width; ++i)
    x[size_t(i)] = heads ? get(t, row / t.dim[1], row % t.dim[1], i) : get(t, row, i);
  return x;
}
inline void put_row(const TensorView& t, int64_t row, const std::vector<double>& x) {
  for (size_t i = 0; i < x.size(); ++i) {
    if (t.rank == 3) put(t, x[i], row / t.dim[1], row % t.dim[1], i);
    else put(t, x[i], row, i);
  }
}

// Sums over many rows are double too, and reach an f32 tensor once.
inline void put_sums(const TensorView& t, const std::vector<double>& sums, bool accumulate) {
  for (size_t i = 0; i < sums.size(); ++i) put(t, accumulate ? get(t, i) + sums[i] : sums[i], i);
}

// out[to,h,e] = x[n,h,e] turned by the angles of the position: RopeArgs.
void turn_row(const ConstTensorView& x, int64_t n, const TensorView& out, int64_t to, const ConstTensorView& cos_sin,
              int64_t position, bool interleaved, bool inverse);

double activate(Activation act, double x);
double activate_slope(Activation act, double x);  // d activate / dx

}  // namespace llmops::ref
