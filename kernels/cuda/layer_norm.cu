// LayerNorm, forward and backward.
#include "kernels/cuda/entries.h"
#include "kernels/cuda/row_lanes.h"
#include "kernels/cuda/row_sums.h"
#include "kernels/cuda/rows.h"

namespace llmops::cuda {
namespace {

template <class T>
struct Forward {
  Rows<const T> x, delta;
  const T *weight, *bias;
  Rows<T> sum, out;
  float *mean, *rstd;
  int64_t n, d;
  float eps;
};

// The variance is taken about the mean, in a second pass: E[x^2] - E[x]^2 would lose all digits for a row far from 0.
template <class T, int kVec>
__global__ void __launch_bounds__(kRowsPerBlock * kLanes, 4) forward(Forward<T> a) {
  const int64_t r = row_of_thread();
  const bool live = r < a.n;
  const T* x = live ? a.x.at(r) : nullptr;
  const T* delta = live && a.delta.data != nullptr ? a.delta.at(r) : nullptr;
  T* sum = delta != nullptr ? a.sum.at(r) : nullptr;
  const RowSums<1> total = row_sums<kVec>(a.d, live, [=](int64_t i, Vec<float, kVec>* term) {
    const Vec<T, kVec> v = normed_input<kVec>(x, delta, sum, i);
    for (int j = 0; j < kVec; ++j) term->v[j] = widen(v.v[j]);
  });
  const float mean = total.v[0] / static_cast<float>(a.d);
  const T* normed = delta != nullptr ? sum : x;  // a thread reads back what it wrote itself
  const RowSums<1> squares = row_sums<kVec>(a.d, live, [=](int64_t i, Vec<float, kVec>* term) {
    const Vec<T, kVec> v = load<kVec>(normed + i);
    for (int j = 0; j < kVec; ++j) {
      const float c = widen(v.v[j]) - mean;
      term->v[j] = c * c;
    }
  });
  if (!live) return;
  const float rstd = 1.0f / sqrtf(squares.v[0] / static_cast<float>(a.d) + a.eps);
  const int lane = lane_of_thread();
  if (a.mean != nullptr && lane == 0) {
    a.mean[r] = mean;
    a.rstd[r] = rstd;
  }
  T* out = a.out.at(r);
  for (int64_t i = lane * kVec; i < a.d; i += kLanes * kVec) {
    const Vec<T, kVec> v = load<kVec>(normed + i), w = load<kVec>(a.weight + i);
    Vec<T, kVec> b = {}, y;
    if (a.bias != nullptr) b = load<kVec>(a.bias + i);
    for (int j = 0; j < kVec; ++j) {
      const float scaled = (widen(v.v[j]) - mean) * rstd * widen(w.v[j]);
      y.v[j] = narrow<T>(a.bias != nullptr ? scaled + widen(b.v[j]) : scaled);
    }
    store(out + i, y);
  }
}

template <class T>
struct Backward {
  Rows<const T> dout, x, dresidual;
  const T* weight;
  const float *mean, *rstd;
  Rows<T> dx;
  float *dweight, *dbias;  // partials [blocks of kSumRows rows, d]; dbias may be null
  int64_t n, d;
};

// dweight[b,d] = sum over the rows of block b of dout * xhat, dbias[b,d] of dout, ascending. Before dx, which may be dout.
template <class T, int kVec>
__global__ void __launch_bounds__(kSumThreads) backward_weight(Backward<T> a) {
  const SumBlock at = sum_block<kVec>(a.n);
  if (at.column >= a.d) return;
  Vec<float, kVec> dweight = {}, dbias = {};
#pragma unroll 4
  for (int64_t r = at.first; r < at.end; ++r) {
    const Vec<T, kVec> dy = load<kVec>(a.dout.at(r) + at.column), v = load<kVec>(a.x.at(r) + at.column);
    for (int j = 0; j < kVec; ++j) {
      dweight.v[j] += widen(dy.v[j]) * ((widen(v.v[j]) - a.mean[r]) * a.rstd[r]);
      dbias.v[j] += widen(dy.v[j]);
    }
  }
  store(a.dweight + blockIdx.x * a.d + at.column, dweight);
  if (a.dbias != nullptr) store(a.dbias + blockIdx.x * a.d + at.column, dbias);
}

// With xhat = (x - mean) * rstd and g = dout * weight: dx = rstd * (g - mean_d(g) - xhat * mean_d(g * xhat)) + dresidual.
template <class T, int kVec>
__global__ void __launch_bounds__(kRowsPerBlock * kLanes, 4) backward(Backward<T> a) {
  const int64_t r = row_of_thread();
  const bool live = r < a.n;
  const T* dout = live ? a.dout.at(r) : nullptr;
  const T* x = live ? a.x.at(r) : nullptr;
  const float mean = live ? a.mean[r] : 0, rstd = live ? a.rstd[r] : 0;
  const RowSums<2> sums = row_sums<kVec, 2>(a.d, live, [=](int64_t i, Vec<float, kVec>* terms) {
    const Vec<T, kVec> dy = load<kVec>(dout + i), v = load<kVec>(x + i), w = load<kVec>(a.weight + i);
    for (int j = 0; j < kVec; ++j) {
      terms[0].v[j] = widen(dy.v[j]) * widen(w.v[j]);
      terms[1].v[j] = terms[0].v[j] * ((widen(v.v[j]) - mean) * rstd);
    }
  });
  if (!live) return;
  const float mean_g = sums.v[0] / static_cast<float>(a.d), mean_gx = sums.v[1] / static_cast<float>(a.d);
  const T* dresidual = a.dresidual.data != nullptr ? a.dresidual.at(r) : nullptr;
  T* dx = a.dx.at(r);
  for (int64_t i = lane_of_thread() * kVec; i < a.d; i += kLanes * kVec) {
    const Vec<T, kVec> dy = load<kVec>(dout + i), v = load<kVec>(x + i), w = load<kVec>(a.weight + i);
    Vec<T, kVec> add = {}, y;
    if (dresidual != nullptr) add = load<kVec>(dresidual + i);
    for (int j = 0; j < kVec; ++j) {
      const float xhat = (widen(v.v[j]) - mean) * rstd;
      const float dx_norm = (widen(dy.v[j]) * widen(w.v[j]) - mean_g - xhat * mean_gx) * rstd;
      y.v[j] = narrow<T>(dresidual != nullptr ? dx_norm + widen(add.v[j]) : dx_norm);
    }
    store(dx + i, y);
  }
}

template <class T>
Status run_forward(Stream& stream, const LayerNormArgs& a) {
  const Forward<T> args = {rows_of<const T>(a.x), rows_of<const T>(a.delta), static_cast<const T*>(a.weight.data),
                           static_cast<const T*>(a.bias.data), rows_of<T>(a.sum), rows_of<T>(a.out),
                           static_cast<float*>(a.mean.data), static_cast<float*>(a.rstd.data),
                           a.x.dim[0], a.weight.dim[0], a.eps};
  if (args.n == 0) return {};
  const bool aligned = rows_aligned(a.x) && rows_aligned(a.out) && rows_aligned(a.weight) &&
                       (!a.bias.present() || rows_aligned(a.bias)) &&
                       (!a.delta.present() || (rows_aligned(a.delta) && rows_aligned(a.sum)));
  constexpr int kVec = 16 / sizeof(T);
  return launch(stream.native(), row_blocks(args.n), kRowsPerBlock * kLanes, sizeof(Tiles<>), "layer_norm",
                aligned ? forward<T, kVec> : forward<T, 1>, args);
}

template <class T>
Status run_backward(Stream& stream, const LayerNormBackwardArgs& a) {
  const int64_t n = a.x.dim[0], d = a.weight.dim[0];
  LLMOPS_ASSIGN(float* const dweight, row_sums_workspace(stream, n, d, a.dbias.present() ? 2 : 1));
  float* const dbias = a.dbias.present() ? dweight + row_sums_blocks(n) * d : nullptr;
  const Backward<T> args = {rows_of<const T>(a.dout), rows_of<const T>(a.x), rows_of<const T>(a.dresidual),
                            static_cast<const T*>(a.weight.data), static_cast<const float*>(a.mean.data),
                            static_cast<const float*>(a.rstd.data), rows_of<T>(a.dx), dweight, dbias, n, d};
  if (n > 0) {
    constexpr int kVec = 16 / sizeof(T);
    const bool inputs = rows_aligned(a.dout) && rows_aligned(a.x) && rows_aligned(a.weight);
    LLMOPS_TRY(launch(stream.native(), row_sums_grid(n, d, inputs ? kVec : 1), kSumThreads, 0, "layer_norm_backward dweight",
                      inputs ? backward_weight<T, kVec> : backward_weight<T, 1>, args));
    const bool all = inputs && rows_aligned(a.dx) && (!a.dresidual.present() || rows_aligned(a.dresidual));
    LLMOPS_TRY(launch(stream.native(), row_blocks(n), kRowsPerBlock * kLanes, sizeof(Tiles<>), "layer_norm_backward",
                      all ? backward<T, kVec> : backward<T, 1>, args));
  }
  LLMOPS_TRY(fold_row_sums(stream, dweight, n, d, static_cast<float*>(a.dweight.data), a.accumulate));
  if (!a.dbias.present()) return {};
  return fold_row_sums(stream, dbias, n, d, static_cast<float*>(a.dbias.data), a.accumulate);
}

}  // namespace

Status layer_norm(Stream& stream, const LayerNormArgs& a) {
  return a.x.dtype == DType::f32 ? run_forward<float>(stream, a) : run_forward<bf16>(stream, a);
}

Status layer_norm_backward(Stream& stream, const LayerNormBackwardArgs& a) {
  return a.x.dtype == DType::f32 ? run_backward<float>(stream, a) : run_backward<bf16>(stream, a);
}

}  // namespace llmops::cuda
