// RMSNorm, forward and backward, over rows of [n,d] or heads of [n,h,d]. A row is read from memory once: the passes
// over it run in the L1 cache.
#include "kernels/cpu/entries.h"
#include "kernels/cpu/tasks.h"
#include "kernels/cpu/vec.h"

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/norm.h"

namespace llmops::LLMOPS_ISA {
namespace {

template <class T>
void forward_row(const RmsNormArgs& a, int64_t r) {
  const int64_t d = a.weight.dim[0];
  const T* x = normed_input<T>(a.x, a.delta, a.sum, r, d);
  F32x16 acc = zero();
  for_lanes(d, [&](int64_t i, int n) LLMOPS_BODY {
    const F32x16 v = load_part(x + i, n);
    acc = acc + v * v;
  });
  const float rstd = 1.0f / std::sqrt(fold_sum(acc) / static_cast<float>(d) + a.eps);
  if (a.rstd.present()) static_cast<float*>(a.rstd.data)[r] = rstd;
  const auto* weight = static_cast<const T*>(a.weight.data);
  T* out = row<T>(a.out, r);
  for_lanes(d, [&](int64_t i, int n) LLMOPS_BODY {
    store_part(out + i, load_part(x + i, n) * set1(rstd) * load_part(weight + i, n), n);
  });
}

template <class T>
Status forward(Stream& stream, const RmsNormArgs& a) {
  for_row_ranges(stream, row_count(a.x), a.weight.dim[0], [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) forward_row<T>(a, r);
  });
  return {};
}

// dx of row r; its term of dweight is added to that.
// With xhat = x * rstd and g = dout * weight: dx = rstd * (g - xhat * mean_d(g * xhat)).
template <class T>
void backward_row(const RmsNormBackwardArgs& a, int64_t r, float* dweight) {
  const int64_t d = a.weight.dim[0];
  const T* dout = row<T>(a.dout, r);
  const T* x = row<T>(a.x, r);
  const auto* weight = static_cast<const T*>(a.weight.data);
  const F32x16 rstd = set1(static_cast<const float*>(a.rstd.data)[r]);
  F32x16 acc = zero();
  for_lanes(d, [&](int64_t i, int n) LLMOPS_BODY {
    const F32x16 dy_xhat = load_part(dout + i, n) * (load_part(x + i, n) * rstd);
    acc = acc + dy_xhat * load_part(weight + i, n);
    store_part(dweight + i, load_part(dweight + i, n) + dy_xhat, n);
  });
  const F32x16 mean_gx = set1(fold_sum(acc) / static_cast<float>(d));

  const T* dresidual = a.dresidual.present() ? row<T>(a.dresidual, r) : nullptr;
  T* dx = row<T>(a.dx, r);
  for_lanes(d, [&](int64_t i, int n) LLMOPS_BODY {
    const F32x16 g = load_part(dout + i, n) * load_part(weight + i, n);
    F32x16 y = (g - load_part(x + i, n) * rstd * mean_gx) * rstd;
    if (dresidual != nullptr) y = y + load_part(dresidual + i, n);
    store_part(dx + i, y, n);
  });
}

template <class T>
Status backward(Stream& stream, const RmsNormBackwardArgs& a) {
  const int64_t n = row_count(a.x);
  const int64_t d = a.weight.dim[0];
  const int64_t blocks = ceil_div(n, kRowBlock);
  LLMOPS_ASSIGN(void* scratch, stream.workspace(blocks * d * static_cast<int64_t>(sizeof(float))));
  auto* dweight = static_cast<float*>(scratch);
  for_ranges(stream, n, kRowBlock, [&](int64_t begin, int64_t end) {
    float* dw = zeroed(dweight + begin / kRowBlock * d, d);
    for (int64_t r = begin; r < end; ++r) backward_row<T>(a, r, dw);
  });
  tree_sum(stream, dweight, blocks, d, static_cast<float*>(a.dweight.data), a.accumulate);
  return {};
}

}  // namespace

Status rms_norm(Stream& stream, const RmsNormArgs& a) {
  return a.x.dtype == DType::f32 ? forward<float>(stream, a) : forward<bf16>(stream, a);
}

Status rms_norm_backward(Stream& stream, const RmsNormBackwardArgs& a) {
  return a.x.dtype == DType::f32 ? backward<float>(stream, a) : backward<bf16>(stream, a);
}

}  // namespace llmops::LLMOPS_ISA

#include "kernels/cpu/vec_end.h"
