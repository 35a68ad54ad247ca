// RMSNorm, forward and backward, over rows of [n,d] or heads of [n,h,d].
#include "kernels/cuda/entries.h"
#include "kernels/cuda/row_lanes.h"
#include "kernels/cuda/row_sums.h"
#include "kernels/cuda/rows.h"

namespace llmops::cuda {
namespace {

template <class T>
struct Forward {
  Rows<const T> x, delta;
  const T* weight;
  Rows<T> sum, out;
  float* rstd;
  int64_t n, d;
  float eps;
};

template <class T, int kVec>
__global__ void __launch_bounds__(kRowsPerBlock * kLanes, 4) forward(Forward<T> a) {
  const int64_t r = row_of_thread();
  const bool live = r < a.n;
  const T* x = live ? a.x.at(r) : nullptr;
  const T* delta = live && a.delta.data != nullptr ? a.delta.at(r) : nullptr;
  T* sum = delta != nullptr ? a.sum.at(r) : nullptr;
  const RowSums<1> squares = row_sums<kVec>(a.d, live, [=](int64_t i, Vec<float, kVec>* square) {
    const Vec<T, kVec> v = normed_input<kVec>(x, delta, sum, i);
    for (int j = 0; j < kVec; ++j) square->v[j] = widen(v.v[j]) * widen(v.v[j]);
  });
  if (!live) return;
  const float rstd = 1.0f / sqrtf(squares.v[0] / static_cast<float>(a.d) + a.eps);
  const int lane = lane_of_thread();
  if (a.rstd != nullptr && lane == 0) a.rstd[r] = rstd;
  const T* normed = delta != nullptr ? sum : x;  // a thread reads back what it wrote itself
  T* out = a.out.at(r);
  for (int64_t i = lane * kVec; i < a.d; i += kLanes * kVec) {
    const Vec<T, kVec> v = load<kVec>(normed + i), w = load<kVec>(a.weight + i);
    Vec<T, kVec> y;
    for (int j = 0; j < kVec; ++j) y.v[j] = narrow<T>(widen(v.v[j]) * rstd * widen(w.v[j]));
    store(out + i, y);
  }
}

template <class T>
struct Backward {
  Rows<const T> dout, x, dresidual;
  const T* weight;
  const float* rstd;
  Rows<T> dx;
  float* partial;  // [blocks of kSumRows rows, d]
  int64_t n, d;
};

// partial[b,d] = sum over the rows of block b of dout * xhat, ascending. Before dx, which may be dout.
template <class T, int kVec>
__global__ void __launch_bounds__(kSumThreads) backward_weight(Backward<T> a) {
  const SumBlock at = sum_block<kVec>(a.n);
  if (at.column >= a.d) return;
  Vec<float, kVec> sum = {};
#pragma unroll 8
  for (int64_t r = at.first; r < at.end; ++r) {
    const Vec<T, kVec> dy = load<kVec>(a.dout.at(r) + at.column), v = load<kVec>(a.x.at(r) + at.column);
    for (int j = 0; j < kVec; ++j) sum.v[j] += widen(dy.v[j]) * (widen(v.v[j]) * a.rstd[r]);
  }
  store(a.partial + blockIdx.x * a.d + at.column, sum);
}

// With xhat = x * rstd and g = dout * weight: dx = rstd * (g - xhat * mean_d(g * xhat)) + dresidual.
template <class T, int kVec>
__global__ void __launch_bounds__(kRowsPerBlock * kLanes, 4) backward(Backward<T> a) {
  const int64_t r = row_of_thread();
  const bool live = r < a.n;
  const T* dout = live ? a.dout.at(r) : nullptr;
  const T* x = live ? a.x.at(r) : nullptr;
  const float rstd = live ? a.rstd[r] : 0;
  const RowSums<1> sum_gx = row_sums<kVec>(a.d, live, [=](int64_t i, Vec<float, kVec>* gx) {
    const Vec<T, kVec> dy = load<kVec>(dout + i), v = load<kVec>(x + i), w = load<kVec>(a.weight + i);
    for (int j = 0; j < kVec; ++j) gx->v[j] = widen(dy.v[j]) * (widen(v.v[j]) * rstd) * widen(w.v[j]);
  });
  if (!live) return;
  const float mean_gx = sum_gx.v[0] / static_cast<float>(a.d);
  const T* dresidual = a.dresidual.data != nullptr ? a.dresidual.at(r) : nullptr;
  T* dx = a.dx.at(r);
  for (int64_t i = lane_of_thread() * kVec; i < a.d; i += kLanes * kVec) {
    const Vec<T, kVec> dy = load<kVec>(dout + i), v = load<kVec>(x + i), w = load<kVec>(a.weight + i);
    Vec<T, kVec> add = {}, y;
    if (dresidual != nullptr) add = load<kVec>(dresidual + i);
    for (int j = 0; j < kVec; ++j) {
      const float g = widen(dy.v[j]) * widen(w.v[j]);
      const float dx_norm = (g - widen(v.v[j]) * rstd * mean_gx) * rstd;
      y.v[j] = narrow<T>(dresidual != nullptr ? dx_norm + widen(add.v[j]) : dx_norm);
    }
    store(dx + i, y);
  }
}

template <class T>
Status run_forward(Stream& stream, const RmsNormArgs& a) {
  const Forward<T> args = {rows_of<const T>(a.x), rows_of<const T>(a.delta), static_cast<const T*>(a.weight.data),
                           rows_of<T>(a.sum), rows_of<T>(a.out), static_cast<float*>(a.rstd.data),
                           row_count(a.x), a.weight.dim[0], a.eps};
  if (args.n == 0) return {};
  const bool aligned = rows_aligned(a.x) && rows_aligned(a.out) && rows_aligned(a.weight) &&
                       (!a.delta.present() || (rows_aligned(a.delta) && rows_aligned(a.sum)));
  constexpr int kVec = 16 / sizeof(T);
  return launch(stream.native(), row_blocks(args.n), kRowsPerBlock * kLanes, sizeof(Tiles<>), "rms_norm",
                aligned ? forward<T, kVec> : forward<T, 1>, args);
}

template <class T>
Status run_backward(Stream& stream, const RmsNormBackwardArgs& a) {
  const int64_t n = row_count(a.x), d = a.weight.dim[0];
  LLMOPS_ASSIGN(float* const partial, row_sums_workspace(stream, n, d));
  const Backward<T> args = {rows_of<const T>(a.dout), rows_of<const T>(a.x), rows_of<const T>(a.dresidual),
                            static_cast<const T*>(a.weight.data), static_cast<const float*>(a.rstd.data),
                            rows_of<T>(a.dx), partial, n, d};
  if (n > 0) {
    constexpr int kVec = 16 / sizeof(T);
    const bool inputs = rows_aligned(a.dout) && rows_aligned(a.x) && rows_aligned(a.weight);
    LLMOPS_TRY(launch(stream.native(), row_sums_grid(n, d, inputs ? kVec : 1), kSumThreads, 0, "rms_norm_backward dweight",
                      inputs ? backward_weight<T, kVec> : backward_weight<T, 1>, args));
    const bool all = inputs && rows_aligned(a.dx) && (!a.dresidual.present() || rows_aligned(a.dresidual));
    LLMOPS_TRY(launch(stream.native(), row_blocks(n), kRowsPerBlock * kLanes, sizeof(Tiles<>), "rms_norm_backward",
                      all ? backward<T, kVec> : backward<T, 1>, args));
  }
  return fold_row_sums(stream, partial, n, d, static_cast<float*>(a.dweight.data), a.accumulate);
}

}  // namespace

Status rms_norm(Stream& stream, const RmsNormArgs& a) {
  return a.x.dtype == DType::f32 ? run_forward<float>(stream, a) : run_forward<bf16>(stream, a);
}

Status rms_norm_backward(Stream& stream, const RmsNormBackwardArgs& a) {
  return a.x.dtype == DType::f32 ? run_backward<float>(stream, a) : run_backward<bf16>(stream, a);
}

}  // namespace llmops::cuda
