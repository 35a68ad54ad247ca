#include "base/dtype.h"

#include <cmath>

namespace llmops {

float to_f32(f16 x) {
  const uint32_t sign = uint32_t{x.bits & 0x8000u} << 16;
  const uint32_t exponent = x.bits >> 10 & 31u, fraction = x.bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13 | (fraction ? 0x400000u : 0));
  if (exponent > 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float value = static_cast<float>(fraction) * 0x1p-24f;  // zero or subnormal: exact in float
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

f16 to_f16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x), magnitude = u & 0x7fffffffu;
  const uint16_t sign = static_cast<uint16_t>(u >> 16 & 0x8000u);
  const auto with_sign = [&](uint32_t bits) { return f16{static_cast<uint16_t>(sign | bits)}; };
  if (magnitude > 0x7f800000u) return with_sign(0x7e00u | (magnitude >> 13 & 0x3ffu));
  if (magnitude >= 0x47800000u) return with_sign(0x7c00u);  // 2^16 and above
  if (magnitude < 0x38800000u) {
    // Below 2^-14 the result is a multiple of 2^-24: adding 0.5, whose last bit weighs 2^-24, rounds to nearest even.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return with_sign(std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0.5f));
  }
  // Rebias from 127 to 15 and round away 13 bits; a carry runs into the exponent, up to infinity.
  const uint32_t rounded = magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u);
  return with_sign(rounded >> 13);
}

}  // namespace llmops
