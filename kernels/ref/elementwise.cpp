#include <cmath>
#include <numbers>

#include "kernels/ref/ref.h"

namespace llmops::ref {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Any shape, dense: element i in memory order.
template <class View>
View flat(View t) {
  t.stride[0] = 1;
  return t;
}

}  // namespace

// gelu_tanh: 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3); gelu_erf: x Phi(x).
double activate(Activation act, double x) {
  const double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  if (act == Activation::gelu_tanh) return 0.5 * x * (1 + std::tanh(u));
  if (act == Activation::gelu_erf) return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
  return x;
}

double activate_slope(Activation act, double x) {
  if (act == Activation::gelu_tanh) {
    const double c = std::sqrt(2 / std::numbers::pi);
    const double t = std::tanh(c * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
  }
  if (act == Activation::gelu_erf) {
    const double density = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
    return 0.5 * std::erfc(-x / std::numbers::sqrt2) + x * density;
  }
  return 1;
}

Status gelu(Stream&, const GeluArgs& a) {
  for (int64_t i = 0; i < a.x.elems(); ++i) put(flat(a.out), activate(a.act, get(flat(a.x), i)), i);
  return {};
}

Status gelu_backward(Stream&, const GeluBackwardArgs& a) {
  for (int64_t i = 0; i < a.x.elems(); ++i)
    put(flat(a.dx), get(flat(a.dout), i) * activate_slope(a.act, get(flat(a.x), i)), i);
  return {};
}

Status swiglu(Stream&, const SwigluArgs& a) {
  const int64_t width = a.out.dim[1];
  for (int64_t n = 0; n < a.out.dim[0]; ++n)
    for (int64_t f = 0; f < width; ++f) {
      const double gate = get(a.x, n, f), up = get(a.x, n, width + f);
      put(a.out, gate * sigmoid(gate) * up, n, f);
    }
  return {};
}

Status swiglu_backward(Stream&, const SwigluBackwardArgs& a) {
  const int64_t width = a.dout.dim[1];
  for (int64_t n = 0; n < a.dout.dim[0]; ++n)
    for (int64_t f = 0; f < width; ++f) {
      const double gate = get(a.x, n, f), up = get(a.x, n, width + f), dout = get(a.dout, n, f), s = sigmoid(gate);
      put(a.dx, dout * up * s * (1 + gate * (1 - s)), n, f);
      put(a.dx, dout * gate * s, n, width + f);
    }
  return {};
}

Status add(Stream&, const AddArgs& a) {
  for (int64_t i = 0; i < a.a.elems(); ++i) put(flat(a.out), get(flat(a.a), i) + get(flat(a.b), i), i);
  return {};
}

Status cast(Stream&, const CastArgs& a) {
  for (int64_t i = 0; i < a.x.elems(); ++i) put(flat(a.out), get(flat(a.x), i), i);
  return {};
}

}  // namespace llmops::ref
