// GELU and its derivative, one text for the elementwise ops and the matmul's epilogue, so that fused and unfused results
// have the same bits. Included after kernels/cpu/vec.h.
//   tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))    (Hendrycks & Gimpel 2016)
//   erf form:  0.5 x (1 + erf(x / sqrt(2)))
#pragma once

#include "kernels/math.h"

namespace llmops::LLMOPS_ISA {

template <class V>
LLMOPS_INLINE V gelu_tanh(V x) {
  const auto c = [](float k) LLMOPS_ATTR { return splat<V>(k); };
  const V inner = x * fma(x * x, c(0.0356774081f), c(0.797884561f));  // sqrt(2/pi) * {0.044715, 1}
  return c(0.5f) * x * (c(1.0f) + tanh(inner));
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
  const V z = y * y;
  const V t = tanh(y * fma(z, c(0.0356774081f), c(0.797884561f)));
  const V slope = fma(z, c(0.107032224f), c(0.797884561f));  // d inner / dx
  const V half = c(0.5f) * (c(1.0f) + t);
  return fma(c(0.5f) * y * (c(1.0f) - t * t), slope, half);
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
