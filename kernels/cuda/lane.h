// kernels/math.h and kernels/gelu.h for a thread: F32 is one lane of what the cpu table calls F32x16, with the same
// operations, so exp(F32{x}).v has the bits that the cpu table gives.
#pragma once

#include "kernels/cuda/device.h"

#define LLMOPS_ISA cuda
#define LLMOPS_ATTR
#define LLMOPS_INLINE __device__ __forceinline__

namespace llmops::cuda {

struct F32 {
  float v;
};
struct I32 {
  int v;
};
struct Mask {
  bool v;
};

LLMOPS_INLINE F32 set1(float x) { return {x}; }
LLMOPS_INLINE F32 operator+(F32 a, F32 b) { return {a.v + b.v}; }
LLMOPS_INLINE F32 operator-(F32 a, F32 b) { return {a.v - b.v}; }
LLMOPS_INLINE F32 operator*(F32 a, F32 b) { return {a.v * b.v}; }
LLMOPS_INLINE F32 operator/(F32 a, F32 b) { return {a.v / b.v}; }
LLMOPS_INLINE F32 fma(F32 a, F32 b, F32 c) { return {fmaf(a.v, b.v, c.v)}; }
LLMOPS_INLINE F32 max(F32 a, F32 b) { return {a.v > b.v ? a.v : b.v}; }  // b where one is NaN
LLMOPS_INLINE F32 min(F32 a, F32 b) { return {a.v < b.v ? a.v : b.v}; }
LLMOPS_INLINE F32 round_even(F32 a) { return {rintf(a.v)}; }
LLMOPS_INLINE F32 abs(F32 a) { return {fabsf(a.v)}; }
LLMOPS_INLINE Mask less(F32 a, F32 b) { return {a.v < b.v}; }
LLMOPS_INLINE F32 select(Mask m, F32 a, F32 b) { return m.v ? a : b; }
LLMOPS_INLINE I32 to_int(F32 a) { return {__float2int_rz(a.v)}; }
LLMOPS_INLINE F32 to_float(I32 a) { return {static_cast<float>(a.v)}; }
LLMOPS_INLINE I32 bits_of(F32 a) { return {__float_as_int(a.v)}; }
LLMOPS_INLINE F32 from_bits(I32 a) { return {__int_as_float(a.v)}; }
LLMOPS_INLINE I32 set1_int(int x) { return {x}; }
LLMOPS_INLINE I32 operator+(I32 a, I32 b) { return {static_cast<int>(static_cast<unsigned>(a.v) + static_cast<unsigned>(b.v))}; }
LLMOPS_INLINE I32 operator-(I32 a, I32 b) { return {static_cast<int>(static_cast<unsigned>(a.v) - static_cast<unsigned>(b.v))}; }
LLMOPS_INLINE I32 operator&(I32 a, I32 b) { return {a.v & b.v}; }
LLMOPS_INLINE I32 operator|(I32 a, I32 b) { return {a.v | b.v}; }
template <int k>
LLMOPS_INLINE I32 shift_left(I32 a) { return {static_cast<int>(static_cast<unsigned>(a.v) << k)}; }
template <int k>
LLMOPS_INLINE I32 shift_right(I32 a) { return {a.v >> k}; }  // arithmetic

}  // namespace llmops::cuda

#include "kernels/gelu.h"
