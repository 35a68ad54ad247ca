// exp, tanh, erf, log from our own polynomials: the same text for every device and instruction set, so the same bits.
// V is F32x16 (kernels/cpu/vec.h) or F32 (kernels/cuda/lane.h, one lane); this header comes after one of them. Operators and
// fma, min, max, abs, round_even, less, select, to_int, to_float, bits_of, from_bits, shift_left, shift_right, set1 and
// set1_int are that header's.
//
// exp and log after the ranges of Cephes (S. L. Moshier, expf, logf, tanhf); erf split at |x| = 1 with Chebyshev fits of our
// own (largest fit error 1.2e-9 and 6.5e-9). tests/kernels/math_test.cpp bounds each against libm's double.
#pragma once

namespace llmops::LLMOPS_ISA {

template <class V>
LLMOPS_INLINE V splat(float x) { return set1(x); }

// e^x; 0 below -103.97, inf above 88.72, NaN for NaN. Error < 1.1 ulp in the normal range.
template <class V>
LLMOPS_INLINE V exp(V x) {
  const auto c = [](float k) LLMOPS_ATTR { return splat<V>(k); };
  x = min(c(89.0f), max(c(-105.0f), x));  // min and max return their second operand for NaN
  const V n = round_even(x * c(1.44269504089f));
  V r = fma(n, c(-0.693359375f), x);
  r = fma(n, c(2.12194440e-4f), r);
  V p = c(1.9875691500e-4f);
  p = fma(p, r, c(1.3981999507e-3f));
  p = fma(p, r, c(8.3334519073e-3f));
  p = fma(p, r, c(4.1665795894e-2f));
  p = fma(p, r, c(1.6666665459e-1f));
  p = fma(p, r, c(5.0000001201e-1f));
  p = fma(p, r * r, r) + c(1.0f);
  // 2^n in two factors: n reaches -151 and 128, past the exponents of one float.
  const auto i = to_int(n);
  const auto half = shift_right<1>(i);
  const auto bias = set1_int(127);
  return p * from_bits(shift_left<23>(half + bias)) * from_bits(shift_left<23>((i - half) + bias));
}

// tanh(x), odd to the bit; error < 2 ulp.
template <class V>
LLMOPS_INLINE V tanh(V x) {
  const auto c = [](float k) LLMOPS_ATTR { return splat<V>(k); };
  const V a = abs(x);
  const V z = x * x;
  V p = c(-5.70498872745e-3f);
  p = fma(p, z, c(2.06390887954e-2f));
  p = fma(p, z, c(-5.37397155531e-2f));
  p = fma(p, z, c(1.33314422036e-1f));
  p = fma(p, z, c(-3.33332819422e-1f));
  const V small = fma(p * z, x, x);
  const V big = c(1.0f) - c(2.0f) / (exp(a + a) + c(1.0f));
  return select(less(a, c(0.625f)), small, select(less(x, c(0.0f)), c(0.0f) - big, big));
}

// The error function; absolute error < 2e-7.
template <class V>
LLMOPS_INLINE V erf(V x) {
  const auto c = [](float k) LLMOPS_ATTR { return splat<V>(k); };
  const V a = abs(x);
  const V z = x * x;
  V p = c(7.882497108e-05f);
  p = fma(p, z, c(-8.018854992e-04f));
  p = fma(p, z, c(5.189311943e-03f));
  p = fma(p, z, c(-2.685432880e-02f));
  p = fma(p, z, c(1.128359746e-01f));
  p = fma(p, z, c(-3.761262690e-01f));
  p = fma(p, z, c(1.128379166e+00f));
  const V t = min(c(4.0f), a);  // erf(4) is 1 in f32
  V q = c(-6.582857884e-08f);
  q = fma(q, t, c(3.095204635e-06f));
  q = fma(q, t, c(-6.006879566e-05f));
  q = fma(q, t, c(6.733375482e-04f));
  q = fma(q, t, c(-5.021044751e-03f));
  q = fma(q, t, c(2.699949710e-02f));
  q = fma(q, t, c(-1.109074170e-01f));
  q = fma(q, t, c(-6.310888680e-01f));
  q = fma(q, t, c(-1.130604469e+00f));
  q = fma(q, t, c(4.005004982e-04f));
  const V big = c(1.0f) - exp(q);
  return select(less(a, c(1.0f)), p * x, select(less(x, c(0.0f)), c(0.0f) - big, big));
}

// ln(x) for normal x > 0; -inf for 0, NaN for negative x and NaN, inf for inf. Error < 1 ulp away from 1.
template <class V>
LLMOPS_INLINE V log(V x) {
  const auto c = [](float k) LLMOPS_ATTR { return splat<V>(k); };
  const auto bits = bits_of(x);
  auto e = shift_right<23>(bits) - set1_int(126);
  V m = from_bits((bits & set1_int(0x007fffff)) | set1_int(0x3f000000));  // in [0.5, 1)
  const auto low = less(m, c(0.707106781186547524f));
  V exponent = to_float(e);
  exponent = select(low, exponent - c(1.0f), exponent);
  m = select(low, m + m, m) - c(1.0f);
  const V z = m * m;
  V p = c(7.0376836292e-2f);
  p = fma(p, m, c(-1.1514610310e-1f));
  p = fma(p, m, c(1.1676998740e-1f));
  p = fma(p, m, c(-1.2420140846e-1f));
  p = fma(p, m, c(1.4249322787e-1f));
  p = fma(p, m, c(-1.6668057665e-1f));
  p = fma(p, m, c(2.0000714765e-1f));
  p = fma(p, m, c(-2.4999993993e-1f));
  p = fma(p, m, c(3.3333331174e-1f));
  V y = m * z * p;
  y = fma(exponent, c(-2.12194440e-4f), y);
  y = fma(c(-0.5f), z, y);
  V r = fma(exponent, c(0.693359375f), m + y);
  const V inf = c(__builtin_inff());
  r = select(less(x, c(1.17549435e-38f)), c(0.0f) - inf, r);          // 0 and denormals
  r = select(less(x, c(0.0f)), c(__builtin_nanf("")), r);
  return select(less(x, inf), r, x);                                  // inf and NaN pass through
}

}  // namespace llmops::LLMOPS_ISA
