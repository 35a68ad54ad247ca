#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "kernels/ref/ref.h"

namespace llmops::ref {

Status square_sums(Stream&, const SquareSumsArgs& a) {
  for (int64_t block = 0; block < a.sums.dim[0]; ++block) {
    double sum = 0;
    for (int64_t i = block * kSquareSumBlock; i < std::min(a.x.dim[0], (block + 1) * kSquareSumBlock); ++i)
      sum += get(a.x, i) * get(a.x, i);
    put(a.sums, sum, block);
  }
  return {};
}

Status clip_scale(Stream&, const ClipScaleArgs& a) {
  double sum = 0;
  int64_t bad = -1;
  for (int64_t i = 0; i < a.sums.dim[0]; ++i) {
    sum += get(a.sums, i);
    if (bad < 0 && !std::isfinite(get(a.sums, i))) bad = i;
  }
  const double norm = std::sqrt(sum), clip = a.clip;
  put(a.control, norm, 0);
  put(a.control, clip > 0 && norm > clip ? clip / norm : 1, 1);
  put(a.control, bad < 0 ? 1 : 0, 2);
  put(a.control, double(bad), 3);
  return {};
}

// One of the bf16 on both sides of x: the farther from 0 with the probability of x's part of the way to it.
static bf16 drawn(const AdamwArgs& a, int64_t i, float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t inner = uint16_t(bits >> 16);
  if (std::isnan(x)) return to_bf16(x);
  const int64_t e = a.first_element + i;
  const Philox draw = philox4x32(uint64_t(a.rounding_key), uint64_t(e / 8), uint64_t(a.step));
  uint16_t halves[8];
  std::memcpy(halves, draw.v, sizeof halves);
  const double way = double(bits & 0xffffu) / 65536, chance = double(halves[e % 8]) / 65536;
  return {uint16_t(inner + (way + chance >= 1 ? 1 : 0))};
}

Status adamw(Stream&, const AdamwArgs& a) {
  if (get(a.control, 2) == 0) return {};
  const double b1 = a.beta1, b2 = a.beta2;
  const double correction1 = 1 - std::pow(b1, double(a.step)), correction2 = 1 - std::pow(b2, double(a.step));
  for (int64_t i = 0; i < a.param.dim[0]; ++i) {
    const double g = get(a.grad, i) * get(a.control, 1), p = get(a.param, i);
    const double m = b1 * get(a.m, i) + (1 - b1) * g, v = b2 * get(a.v, i) + (1 - b2) * g * g;
    const double update = (m / correction1) / (std::sqrt(v / correction2) + double(a.eps)) + double(a.weight_decay) * p;
    put(a.m, m, i);
    put(a.v, v, i);
    put(a.param, p - double(a.lr) * update, i);
    if (!a.param_bf16.present()) continue;
    const float master = static_cast<const float*>(a.param.data)[i];  // what is rounded
    if (a.stochastic) static_cast<bf16*>(a.param_bf16.data)[i] = drawn(a, i, master);
    else put(a.param_bf16, double(master), i);
  }
  return {};
}

}  // namespace llmops::ref
