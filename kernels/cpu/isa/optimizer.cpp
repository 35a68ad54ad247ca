// The gradient's norm, the clip decision, and AdamW.
#include "kernels/adamw.h"
#include "kernels/cpu/entries.h"
#include "kernels/cpu/tasks.h"
#include "kernels/cpu/vec.h"

#include "kernels/cpu/lanes.h"

namespace llmops::LLMOPS_ISA {
namespace {

// Four f64 lanes, widened from f32. GCC turns + and * into what the instruction set has, but not the conversion.
typedef double F64x4 __attribute__((vector_size(32)));
LLMOPS_INLINE F64x4 widen(const float* p) {
#if LLMOPS_ISA_LEVEL >= 2
  return _mm256_cvtps_pd(_mm_loadu_ps(p));
#else
  return F64x4{p[0], p[1], p[2], p[3]};
#endif
}

// sum of x^2 over one block: products are exact in f64, lane i % 16 takes element i, lanes are folded 8, 4, 2, 1.
double square_sum(const float* x, int64_t count) {
  F64x4 lanes_0 = {}, lanes_4 = {}, lanes_8 = {}, lanes_12 = {};
  const auto add16 = [&](const float* p) LLMOPS_BODY {
    lanes_0 += widen(p) * widen(p);
    lanes_4 += widen(p + 4) * widen(p + 4);
    lanes_8 += widen(p + 8) * widen(p + 8);
    lanes_12 += widen(p + 12) * widen(p + 12);
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) add16(x + i);
  if (i < count) {
    float rest[kLanes] = {};
    std::memcpy(rest, x + i, static_cast<size_t>(count - i) * sizeof(float));
    add16(rest);
  }
  const F64x4 four = (lanes_0 + lanes_8) + (lanes_4 + lanes_12);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

double fold(double (&lane)[kLanes]) {
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  return lane[0];
}

struct AdamwFactors {
  F32x16 grad_scale, beta1, beta2, rest1, rest2, correction1, correction2, lr, eps, weight_decay;
};

AdamwFactors adamw_factors(const AdamwArgs& a, float grad_scale) {
  return {set1(grad_scale),
          set1(a.beta1),
          set1(a.beta2),
          set1(1.0f - a.beta1),
          set1(1.0f - a.beta2),
          set1(bias_correction(a.beta1, a.step)),
          set1(bias_correction(a.beta2, a.step)),
          set1(a.lr),
          set1(a.eps),
          set1(a.weight_decay)};
}

// The first n lanes, which are elements from `first` of the range on; `first` is a multiple of 8.
void store_stochastic(bf16* to, F32x16 x, int n, const AdamwArgs& a, int64_t first) {
  uint32_t bits[kLanes];
  store(reinterpret_cast<float*>(bits), x);
  Philox draw;
  for (int i = 0; i < n; ++i) {
    if (i % 8 == 0)
      draw = philox4x32(static_cast<uint64_t>(a.rounding_key), static_cast<uint64_t>(a.first_element + first + i) / 8,
                        static_cast<uint64_t>(a.step));
    to[i].bits = round_stochastic(bits[i], half_word(draw, i % 8));
  }
}

void adamw_range(const AdamwArgs& a, const AdamwFactors& f, int64_t begin, int64_t end) {
  auto* param = static_cast<float*>(a.param.data) + begin;
  auto* first = static_cast<float*>(a.m.data) + begin;
  auto* second = static_cast<float*>(a.v.data) + begin;
  const auto* grad = static_cast<const float*>(a.grad.data) + begin;
  bf16* rounded = a.param_bf16.present() ? static_cast<bf16*>(a.param_bf16.data) + begin : nullptr;
  for_lanes(end - begin, [&](int64_t i, int n) LLMOPS_BODY {
    const F32x16 g = load_part(grad + i, n) * f.grad_scale;
    const F32x16 m = f.beta1 * load_part(first + i, n) + f.rest1 * g;
    const F32x16 v = f.beta2 * load_part(second + i, n) + f.rest2 * g * g;
    const F32x16 p = load_part(param + i, n);
    const F32x16 update = (m / f.correction1) / (sqrt(v / f.correction2) + f.eps) + f.weight_decay * p;
    const F32x16 next = p - f.lr * update;
    store_part(first + i, m, n);
    store_part(second + i, v, n);
    store_part(param + i, next, n);
    if (rounded == nullptr) return;
    if (a.stochastic) return store_stochastic(rounded + i, next, n, a, begin + i);
    store_part(rounded + i, next, n);
  });
}

}  // namespace

Status square_sums(Stream& stream, const SquareSumsArgs& a) {
  const auto* x = static_cast<const float*>(a.x.data);
  auto* sums = static_cast<double*>(a.sums.data);
  for_ranges(stream, a.x.elems(), kSquareSumBlock, [&](int64_t begin, int64_t end) {
    sums[begin / kSquareSumBlock] = square_sum(x + begin, end - begin);
  });
  return {};
}

// 30,000 blocks for 124M elements: a few microseconds, not worth a task.
Status clip_scale(Stream&, const ClipScaleArgs& a) {
  const auto* sums = static_cast<const double*>(a.sums.data);
  auto* control = static_cast<float*>(a.control.data);
  double lane[kLanes] = {};
  int64_t bad = -1;
  for (int64_t i = 0; i < a.sums.elems(); ++i) {
    lane[i % kLanes] += sums[i];
    if (bad < 0 && !std::isfinite(sums[i])) bad = i;
  }
  const double norm = std::sqrt(fold(lane));
  control[0] = static_cast<float>(norm);
  control[1] = a.clip > 0.0f && norm > a.clip ? static_cast<float>(a.clip / norm) : 1.0f;
  control[2] = bad < 0 ? 1.0f : 0.0f;
  control[3] = static_cast<float>(bad);
  return {};
}

Status adamw(Stream& stream, const AdamwArgs& a) {
  constexpr int64_t kRange = 4096;
  const auto* control = static_cast<const float*>(a.control.data);
  if (control[2] == 0.0f) return {};
  const AdamwFactors factors = adamw_factors(a, control[1]);
  for_ranges(stream, a.param.elems(), kRange, [&](int64_t begin, int64_t end) { adamw_range(a, factors, begin, end); });
  return {};
}

}  // namespace llmops::LLMOPS_ISA

#include "kernels/cpu/vec_end.h"
