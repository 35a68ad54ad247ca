// What the tables' AdamW shares: the part that depends on the step alone, and stochastic rounding.
#pragma once

#include <cstdint>

#include "base/rng.h"

namespace llmops {

// 1 - beta^step in f64, rounded once; the power by squaring, which has the same bits everywhere, unlike libm's pow.
inline float bias_correction(float beta, int64_t step) {
  double power = 1.0, base = static_cast<double>(beta);
  for (; step > 0; step >>= 1, base *= base)
    if (step & 1) power *= base;
  return static_cast<float>(1.0 - power);
}

// The bits of a bf16 from those of an f32: adding 16 random bits to the half that is cut off carries into the rest with the
// probability of that half. What bf16 can hold stays as it is, infinities too; NaN stays NaN.
LLMOPS_HOST_DEVICE inline uint16_t round_stochastic(uint32_t f32_bits, uint32_t random_16) {
  if ((f32_bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(f32_bits >> 16 | 0x40u);
  return static_cast<uint16_t>((f32_bits + random_16) >> 16);
}

// Half word `at` (0 to 7) of a draw.
LLMOPS_HOST_DEVICE inline uint32_t half_word(const Philox& draw, int at) {
  const uint32_t low = at & 2 ? draw.v[1] : draw.v[0], high = at & 2 ? draw.v[3] : draw.v[2];
  return ((at & 4 ? high : low) >> (at & 1 ? 16 : 0)) & 0xffffu;
}

}  // namespace llmops
