// LayerNorm, forward and backward. A row is read from memory once: the passes over it run in the L1 cache.
#include "kernels/cpu/entries.h"
#include "kernels/cpu/tasks.h"
#include "kernels/cpu/vec.h"

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/norm.h"

namespace llmops::LLMOPS_ISA {
namespace {

template <class T>
void forward_row(const LayerNormArgs& a, int64_t r) {
  const int64_t d = a.weight.dim[0];
  const T* x = normed_input<T>(a.x, a.delta, a.sum, r, d);
  // The variance is taken about the mean, in a second pass: E[x^2] - E[x]^2 would lose all digits for a row far from 0.
  F32x16 acc = zero();
  for_lanes(d, [&](int64_t i, int n) LLMOPS_BODY { acc = acc + load_part(x + i, n); });
  const float mean = fold_sum(acc) / static_cast<float>(d);
  acc = zero();
  for_lanes(d, [&](int64_t i, int n) LLMOPS_BODY {
    const F32x16 c = keep_part(load_part(x + i, n) - set1(mean), n, 0.0f);
    acc = acc + c * c;
  });
  const float rstd = 1.0f / std::sqrt(fold_sum(acc) / static_cast<float>(d) + a.eps);
  if (a.mean.present()) static_cast<float*>(a.mean.data)[r] = mean;
  if (a.rstd.present()) static_cast<float*>(a.rstd.data)[r] = rstd;

  const auto* weight = static_cast<const T*>(a.weight.data);
  const auto* bias = static_cast<const T*>(a.bias.data);
  T* out = row<T>(a.out, r);
  for_lanes(d, [&](int64_t i, int n) LLMOPS_BODY {
    F32x16 y = (load_part(x + i, n) - set1(mean)) * set1(rstd) * load_part(weight + i, n);
    if (bias != nullptr) y = y + load_part(bias + i, n);
    store_part(out + i, y, n);
  });
}

template <class T>
Status forward(Stream& stream, const LayerNormArgs& a) {
  for_row_ranges(stream, row_count(a.x), a.weight.dim[0], [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) forward_row<T>(a, r);
  });
  return {};
}

// dx of row r; its terms of dweight and dbias (which may be null) are added to those.
// With xhat = (x - mean) * rstd and g = dout * weight: dx = rstd * (g - mean_d(g) - xhat * mean_d(g * xhat)).
template <class T>
void backward_row(const LayerNormBackwardArgs& a, int64_t r, float* dweight, float* dbias) {
  const int64_t d = a.weight.dim[0];
  const T* dout = row<T>(a.dout, r);
  const T* x = row<T>(a.x, r);
  const auto* weight = static_cast<const T*>(a.weight.data);
  const F32x16 mean = set1(static_cast<const float*>(a.mean.data)[r]);
  const F32x16 rstd = set1(static_cast<const float*>(a.rstd.data)[r]);
  F32x16 sum_g = zero();
  F32x16 sum_gx = zero();
  for_lanes(d, [&](int64_t i, int n) LLMOPS_BODY {
    const F32x16 dy = load_part(dout + i, n);
    const F32x16 xhat = (load_part(x + i, n) - mean) * rstd;
    const F32x16 g = dy * load_part(weight + i, n);
    sum_g = sum_g + g;
    sum_gx = sum_gx + keep_part(g * xhat, n, 0.0f);
    store_part(dweight + i, load_part(dweight + i, n) + dy * xhat, n);
    if (dbias != nullptr) store_part(dbias + i, load_part(dbias + i, n) + dy, n);
  });
  const F32x16 mean_g = set1(fold_sum(sum_g) / static_cast<float>(d));
  const F32x16 mean_gx = set1(fold_sum(sum_gx) / static_cast<float>(d));

  const T* dresidual = a.dresidual.present() ? row<T>(a.dresidual, r) : nullptr;
  T* dx = row<T>(a.dx, r);
  for_lanes(d, [&](int64_t i, int n) LLMOPS_BODY {
    const F32x16 xhat = (load_part(x + i, n) - mean) * rstd;
    const F32x16 g = load_part(dout + i, n) * load_part(weight + i, n);
    F32x16 y = (g - mean_g - xhat * mean_gx) * rstd;
    if (dresidual != nullptr) y = y + load_part(dresidual + i, n);
    store_part(dx + i, y, n);
  });
}

template <class T>
Status backward(Stream& stream, const LayerNormBackwardArgs& a) {
  const int64_t n = row_count(a.x);
  const int64_t d = a.weight.dim[0];
  const int64_t blocks = ceil_div(n, kRowBlock);
  const bool has_bias = a.dbias.present();
  LLMOPS_ASSIGN(void* scratch, stream.workspace(blocks * d * (has_bias ? 2 : 1) * static_cast<int64_t>(sizeof(float))));
  auto* dweight = static_cast<float*>(scratch);
  float* dbias = has_bias ? dweight + blocks * d : nullptr;
  for_ranges(stream, n, kRowBlock, [&](int64_t begin, int64_t end) {
    const int64_t block = begin / kRowBlock;
    float* dw = zeroed(dweight + block * d, d);
    float* db = has_bias ? zeroed(dbias + block * d, d) : nullptr;
    for (int64_t r = begin; r < end; ++r) backward_row<T>(a, r, dw, db);
  });
  tree_sum(stream, dweight, blocks, d, static_cast<float*>(a.dweight.data), a.accumulate);
  if (has_bias) tree_sum(stream, dbias, blocks, d, static_cast<float*>(a.dbias.data), a.accumulate);
  return {};
}

}  // namespace

Status layer_norm(Stream& stream, const LayerNormArgs& a) {
  return a.x.dtype == DType::f32 ? forward<float>(stream, a) : forward<bf16>(stream, a);
}

Status layer_norm_backward(Stream& stream, const LayerNormBackwardArgs& a) {
  return a.x.dtype == DType::f32 ? backward<float>(stream, a) : backward<bf16>(stream, a);
}

}  // namespace llmops::LLMOPS_ISA

#include "kernels/cpu/vec_end.h"
