// GELU and its derivative, one text for the elementwise ops and the matmul's epilogue, so that fused and unfused results
// have the same bits. Included as kernels/math.h is.
//   tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))    (Hendrycks & Gimpel 2016)
//   erf form:  0.5 x (1 + erf(x / sqrt(2)))
#pragma once

#include "kernels/math.h"

namespace llmops::LLMOPS_ISA {

// 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2u)): one exp and one division, and no cancellation for negative u.
template <class V>
LLMOPS_INLINE V gelu_gate(V x) {
  const auto c = [](float k) LLMOPS_ATTR { return splat<V>(k); };
  const V minus_2u = x * fma(x * x, c(-0.0713548162f), c(-1.59576912f));  // -2 sqrt(2/pi) * {0.044715, 1}
  return c(1.0f) / (c(1.0f) + exp(minus_2u));
}

template <class V>
LLMOPS_INLINE V gelu_tanh(V x) {
  return x * gelu_gate(x);
}

template <class V>
LLMOPS_INLINE V gelu_erf(V x) {
  const auto c = [](float k) LLMOPS_ATTR { return splat<V>(k); };
  return c(0.5f) * x * (c(1.0f) + erf(x * c(0.707106781f)));
}

// The derivatives are 0 and 1 to f32 well before |x| = 16; the clamp keeps x^2 finite there and lets NaN through.
template <class V>
LLMOPS_INLINE V gelu_tanh_grad(V x) {
  const auto c = [](float k) LLMOPS_ATTR { return splat<V>(k); };
  const V y = min(c(16.0f), max(c(-16.0f), x));
  const V gate = gelu_gate(y);
  const V slope = fma(y * y, c(0.214064448f), c(1.59576912f));  // d 2u / dx
  return fma(y * gate * (c(1.0f) - gate), slope, gate);
}

template <class V>
LLMOPS_INLINE V gelu_erf_grad(V x) {
  const auto c = [](float k) LLMOPS_ATTR { return splat<V>(k); };
  const V y = min(c(16.0f), max(c(-16.0f), x));
  const V density = c(0.398942280f) * exp(c(-0.5f) * y * y);
  const V half = c(0.5f) * (c(1.0f) + erf(y * c(0.707106781f)));
  return fma(y, density, half);
}

}  // namespace llmops::LLMOPS_ISA
