// 16 virtual f32 lanes on every x86-64 CPU. A source of kernels/cpu is compiled once per instruction set, with LLMOPS_ISA set
// to baseline, avx2 or avx512; it includes this header LAST, and everything after it is compiled for that instruction set
// and lives in namespace llmops::LLMOPS_ISA. Headers included before stay baseline code, so no inline function of theirs can
// reach the linker in a form that an older CPU cannot run. The source ends with kernels/cpu/vec_end.h.
//
// Why our own 16 lanes: a sum folded over 16 lanes has the same bits as two AVX2 registers, one AVX-512 register or a plain
// array, and fma() is a fused multiply-add everywhere (in software on a CPU without it: slow, and equal). Lambdas need
// LLMOPS_ATTR before their body, since the target pragma does not reach them.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/dtype.h"

#define LLMOPS_ISA_baseline 1
#define LLMOPS_ISA_avx2 2
#define LLMOPS_ISA_avx512 3
#define LLMOPS_ISA_LEVEL_(isa) LLMOPS_ISA_##isa
#define LLMOPS_ISA_LEVEL__(isa) LLMOPS_ISA_LEVEL_(isa)
#define LLMOPS_ISA_LEVEL LLMOPS_ISA_LEVEL__(LLMOPS_ISA)

#if LLMOPS_ISA_LEVEL == 3
#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi,bmi2,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#define LLMOPS_ATTR __attribute__((target("avx2,fma,bmi,bmi2,f16c,avx512f,avx512bw,avx512dq,avx512vl")))
#elif LLMOPS_ISA_LEVEL == 2
#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi,bmi2,f16c")
#define LLMOPS_ATTR __attribute__((target("avx2,fma,bmi,bmi2,f16c")))
#elif LLMOPS_ISA_LEVEL == 1
#pragma GCC push_options
#define LLMOPS_ATTR
#else
#error "LLMOPS_ISA must be baseline, avx2 or avx512"
#endif
#define LLMOPS_INLINE static inline __attribute__((always_inline))

// Before a loop over an array of vectors that are to stay in registers. The baseline emulates fma by a call per lane, so
// there it would only cost compile time.
#if LLMOPS_ISA_LEVEL == 1
#define LLMOPS_UNROLL(n)
#else
#define LLMOPS_UNROLL_(text) _Pragma(#text)
#define LLMOPS_UNROLL(n) LLMOPS_UNROLL_(GCC unroll n)
#endif

namespace llmops::LLMOPS_ISA {

constexpr int kLanes = 16;

#if LLMOPS_ISA_LEVEL == 3
struct F32x16 {
  __m512 v;
};
struct I32x16 {
  __m512i v;
};
struct Mask16 {
  __mmask16 m;
};
LLMOPS_INLINE F32x16 set1(float x) { return {_mm512_set1_ps(x)}; }
LLMOPS_INLINE F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
LLMOPS_INLINE void store(float* p, F32x16 x) { _mm512_storeu_ps(p, x.v); }
LLMOPS_INLINE F32x16 load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p)}; }
LLMOPS_INLINE void store_n(float* p, F32x16 x, int n) { _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), x.v); }
LLMOPS_INLINE F32x16 operator+(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
LLMOPS_INLINE F32x16 operator-(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
LLMOPS_INLINE F32x16 operator*(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
LLMOPS_INLINE F32x16 operator/(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
LLMOPS_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
LLMOPS_INLINE F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }  // b where one is NaN, as maxps
LLMOPS_INLINE F32x16 min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
LLMOPS_INLINE F32x16 sqrt(F32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
LLMOPS_INLINE F32x16 round_even(F32x16 a) { return {_mm512_roundscale_ps(a.v, 8)}; }
LLMOPS_INLINE F32x16 abs(F32x16 a) { return {_mm512_abs_ps(a.v)}; }
LLMOPS_INLINE Mask16 less(F32x16 a, F32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
LLMOPS_INLINE Mask16 less_equal(F32x16 a, F32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
LLMOPS_INLINE bool any(Mask16 m) { return m.m != 0; }
LLMOPS_INLINE F32x16 select(Mask16 m, F32x16 a, F32x16 b) { return {_mm512_mask_blend_ps(m.m, b.v, a.v)}; }
LLMOPS_INLINE I32x16 to_int(F32x16 a) { return {_mm512_cvttps_epi32(a.v)}; }
LLMOPS_INLINE F32x16 to_float(I32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
LLMOPS_INLINE I32x16 bits_of(F32x16 a) { return {_mm512_castps_si512(a.v)}; }
LLMOPS_INLINE F32x16 from_bits(I32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
LLMOPS_INLINE I32x16 set1_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
LLMOPS_INLINE I32x16 operator+(I32x16 a, I32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
LLMOPS_INLINE I32x16 operator-(I32x16 a, I32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
LLMOPS_INLINE I32x16 operator&(I32x16 a, I32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
LLMOPS_INLINE I32x16 operator|(I32x16 a, I32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int k>
LLMOPS_INLINE I32x16 shift_left(I32x16 a) { return {_mm512_slli_epi32(a.v, k)}; }
template <int k>
LLMOPS_INLINE I32x16 shift_right(I32x16 a) { return {_mm512_srai_epi32(a.v, k)}; }  // arithmetic

LLMOPS_INLINE F32x16 load(const bf16* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
// Round to nearest even; NaN stays NaN (the same arithmetic as to_bf16).
LLMOPS_INLINE void store(bf16* p, F32x16 x) {
  const __m512i u = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
  const __m512i top = _mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(top));
}
LLMOPS_INLINE float fold_sum(F32x16 x) {
  const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  const __m128 d = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
LLMOPS_INLINE float fold_max(F32x16 x) {
  const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  const __m128 d = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}

#elif LLMOPS_ISA_LEVEL == 2
struct F32x16 {
  __m256 lo, hi;
};
struct I32x16 {
  __m256i lo, hi;
};
struct Mask16 {
  __m256 lo, hi;
};
LLMOPS_INLINE F32x16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
LLMOPS_INLINE F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
LLMOPS_INLINE void store(float* p, F32x16 x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
LLMOPS_INLINE __m256i lanes_below(int n) {  // all-ones in lanes < n
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
LLMOPS_INLINE F32x16 load_n(const float* p, int n) {
  return {_mm256_maskload_ps(p, lanes_below(n)), _mm256_maskload_ps(p + 8, lanes_below(n - 8))};
}
LLMOPS_INLINE void store_n(float* p, F32x16 x, int n) {
  _mm256_maskstore_ps(p, lanes_below(n), x.lo);
  _mm256_maskstore_ps(p + 8, lanes_below(n - 8), x.hi);
}
LLMOPS_INLINE F32x16 operator+(F32x16 a, F32x16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
LLMOPS_INLINE F32x16 operator-(F32x16 a, F32x16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
LLMOPS_INLINE F32x16 operator*(F32x16 a, F32x16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
LLMOPS_INLINE F32x16 operator/(F32x16 a, F32x16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
LLMOPS_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
LLMOPS_INLINE F32x16 max(F32x16 a, F32x16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
LLMOPS_INLINE F32x16 min(F32x16 a, F32x16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
LLMOPS_INLINE F32x16 sqrt(F32x16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
LLMOPS_INLINE F32x16 round_even(F32x16 a) { return {_mm256_round_ps(a.lo, 8), _mm256_round_ps(a.hi, 8)}; }
LLMOPS_INLINE F32x16 abs(F32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
LLMOPS_INLINE Mask16 less(F32x16 a, F32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
LLMOPS_INLINE Mask16 less_equal(F32x16 a, F32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LE_OQ)};
}
LLMOPS_INLINE bool any(Mask16 m) { return _mm256_movemask_ps(_mm256_or_ps(m.lo, m.hi)) != 0; }
LLMOPS_INLINE F32x16 select(Mask16 m, F32x16 a, F32x16 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}
LLMOPS_INLINE I32x16 to_int(F32x16 a) { return {_mm256_cvttps_epi32(a.lo), _mm256_cvttps_epi32(a.hi)}; }
LLMOPS_INLINE F32x16 to_float(I32x16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
LLMOPS_INLINE I32x16 bits_of(F32x16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
LLMOPS_INLINE F32x16 from_bits(I32x16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
LLMOPS_INLINE I32x16 set1_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
LLMOPS_INLINE I32x16 operator+(I32x16 a, I32x16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
LLMOPS_INLINE I32x16 operator-(I32x16 a, I32x16 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
LLMOPS_INLINE I32x16 operator&(I32x16 a, I32x16 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
LLMOPS_INLINE I32x16 operator|(I32x16 a, I32x16 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
template <int k>
LLMOPS_INLINE I32x16 shift_left(I32x16 a) { return {_mm256_slli_epi32(a.lo, k), _mm256_slli_epi32(a.hi, k)}; }
template <int k>
LLMOPS_INLINE I32x16 shift_right(I32x16 a) { return {_mm256_srai_epi32(a.lo, k), _mm256_srai_epi32(a.hi, k)}; }

LLMOPS_INLINE __m256 widen_bf16(__m128i half) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
LLMOPS_INLINE F32x16 load(const bf16* p) {
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {widen_bf16(_mm256_castsi256_si128(both)), widen_bf16(_mm256_extracti128_si256(both, 1))};
}
LLMOPS_INLINE __m256i round_bf16(__m256 x) {  // the result in the low half of each 32-bit lane
  const __m256i u = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
LLMOPS_INLINE void store(bf16* p, F32x16 x) {
  const __m256i packed = _mm256_packus_epi32(round_bf16(x.lo), round_bf16(x.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
LLMOPS_INLINE float fold_sum(F32x16 x) {
  const __m256 h = _mm256_add_ps(x.lo, x.hi);
  const __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  const __m128 d = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
LLMOPS_INLINE float fold_max(F32x16 x) {
  const __m256 h = _mm256_max_ps(x.lo, x.hi);
  const __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  const __m128 d = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}

#else
struct F32x16 {
  float v[16];
};
struct I32x16 {
  int32_t v[16];
};
struct Mask16 {
  bool v[16];
};
#define LLMOPS_LANES(R, expr)                 \
  R r;                                        \
  for (int i = 0; i < 16; ++i) r.v[i] = expr; \
  return r
LLMOPS_INLINE F32x16 set1(float x) { LLMOPS_LANES(F32x16, x); }
LLMOPS_INLINE F32x16 load(const float* p) { LLMOPS_LANES(F32x16, p[i]); }
LLMOPS_INLINE F32x16 load(const bf16* p) { LLMOPS_LANES(F32x16, to_f32(p[i])); }
LLMOPS_INLINE void store(float* p, F32x16 x) { std::memcpy(p, x.v, sizeof x.v); }
LLMOPS_INLINE void store(bf16* p, F32x16 x) { for (int i = 0; i < 16; ++i) p[i] = to_bf16(x.v[i]); }
LLMOPS_INLINE F32x16 load_n(const float* p, int n) { LLMOPS_LANES(F32x16, i < n ? p[i] : 0.0f); }
LLMOPS_INLINE void store_n(float* p, F32x16 x, int n) { for (int i = 0; i < n; ++i) p[i] = x.v[i]; }
LLMOPS_INLINE F32x16 operator+(F32x16 a, F32x16 b) { LLMOPS_LANES(F32x16, a.v[i] + b.v[i]); }
LLMOPS_INLINE F32x16 operator-(F32x16 a, F32x16 b) { LLMOPS_LANES(F32x16, a.v[i] - b.v[i]); }
LLMOPS_INLINE F32x16 operator*(F32x16 a, F32x16 b) { LLMOPS_LANES(F32x16, a.v[i] * b.v[i]); }
LLMOPS_INLINE F32x16 operator/(F32x16 a, F32x16 b) { LLMOPS_LANES(F32x16, a.v[i] / b.v[i]); }
LLMOPS_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { LLMOPS_LANES(F32x16, __builtin_fmaf(a.v[i], b.v[i], c.v[i])); }
LLMOPS_INLINE F32x16 max(F32x16 a, F32x16 b) { LLMOPS_LANES(F32x16, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
LLMOPS_INLINE F32x16 min(F32x16 a, F32x16 b) { LLMOPS_LANES(F32x16, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
LLMOPS_INLINE F32x16 sqrt(F32x16 a) { LLMOPS_LANES(F32x16, std::sqrt(a.v[i])); }
LLMOPS_INLINE F32x16 round_even(F32x16 a) { LLMOPS_LANES(F32x16, std::nearbyint(a.v[i])); }
LLMOPS_INLINE F32x16 abs(F32x16 a) { LLMOPS_LANES(F32x16, std::fabs(a.v[i])); }
LLMOPS_INLINE Mask16 less(F32x16 a, F32x16 b) { LLMOPS_LANES(Mask16, a.v[i] < b.v[i]); }
LLMOPS_INLINE Mask16 less_equal(F32x16 a, F32x16 b) { LLMOPS_LANES(Mask16, a.v[i] <= b.v[i]); }
LLMOPS_INLINE bool any(Mask16 m) {
  bool r = false;
  for (int i = 0; i < 16; ++i) r |= m.v[i];
  return r;
}
LLMOPS_INLINE F32x16 select(Mask16 m, F32x16 a, F32x16 b) { LLMOPS_LANES(F32x16, m.v[i] ? a.v[i] : b.v[i]); }
LLMOPS_INLINE int32_t truncate_lane(float x) {  // out of range and NaN as cvttps2dq
  return x >= -0x1p31f && x < 0x1p31f ? static_cast<int32_t>(x) : INT32_MIN;
}
LLMOPS_INLINE I32x16 to_int(F32x16 a) { LLMOPS_LANES(I32x16, truncate_lane(a.v[i])); }
LLMOPS_INLINE F32x16 to_float(I32x16 a) { LLMOPS_LANES(F32x16, static_cast<float>(a.v[i])); }
LLMOPS_INLINE I32x16 bits_of(F32x16 a) { LLMOPS_LANES(I32x16, std::bit_cast<int32_t>(a.v[i])); }
LLMOPS_INLINE F32x16 from_bits(I32x16 a) { LLMOPS_LANES(F32x16, std::bit_cast<float>(a.v[i])); }
LLMOPS_INLINE I32x16 set1_int(int32_t x) { LLMOPS_LANES(I32x16, x); }
LLMOPS_INLINE int32_t wrap(uint32_t x) { return static_cast<int32_t>(x); }
LLMOPS_INLINE I32x16 operator+(I32x16 a, I32x16 b) { LLMOPS_LANES(I32x16, wrap(uint32_t(a.v[i]) + uint32_t(b.v[i]))); }
LLMOPS_INLINE I32x16 operator-(I32x16 a, I32x16 b) { LLMOPS_LANES(I32x16, wrap(uint32_t(a.v[i]) - uint32_t(b.v[i]))); }
LLMOPS_INLINE I32x16 operator&(I32x16 a, I32x16 b) { LLMOPS_LANES(I32x16, a.v[i] & b.v[i]); }
LLMOPS_INLINE I32x16 operator|(I32x16 a, I32x16 b) { LLMOPS_LANES(I32x16, a.v[i] | b.v[i]); }
template <int k>
LLMOPS_INLINE I32x16 shift_left(I32x16 a) { LLMOPS_LANES(I32x16, wrap(uint32_t(a.v[i]) << k)); }
template <int k>
LLMOPS_INLINE I32x16 shift_right(I32x16 a) { LLMOPS_LANES(I32x16, a.v[i] >> k); }
LLMOPS_INLINE float fold_sum(F32x16 x) {
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) x.v[i] += x.v[i + width];
  return x.v[0];
}
LLMOPS_INLINE float fold_max(F32x16 x) {
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) x.v[i] = x.v[i] > x.v[i + width] ? x.v[i] : x.v[i + width];
  return x.v[0];
}
#endif

LLMOPS_INLINE F32x16 zero() { return set1(0.0f); }
// First n (0..16) elements of a row, 0 beyond; nothing past them is touched.
LLMOPS_INLINE F32x16 load_n(const bf16* p, int n) {
  bf16 part[16] = {};
  std::memcpy(part, p, static_cast<size_t>(n) * sizeof(bf16));
  return load(part);
}
LLMOPS_INLINE void store_n(bf16* p, F32x16 x, int n) {
  bf16 part[16];
  store(part, x);
  std::memcpy(p, part, static_cast<size_t>(n) * sizeof(bf16));
}

}  // namespace llmops::LLMOPS_ISA
