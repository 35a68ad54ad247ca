// SwiGLU, GELU, addition and conversion: one pass over memory, ranges of elements or rows.
#include "kernels/cpu/entries.h"
#include "kernels/cpu/tasks.h"
#include "kernels/cpu/vec.h"

#include "kernels/gelu.h"
#include "kernels/cpu/lanes.h"

namespace llmops::LLMOPS_ISA {
namespace {

template <class T>
void swiglu_row(const T* x, T* out, int64_t f) {
  for_lanes(f, [&](int64_t i, int n) LLMOPS_BODY {
    const F32x16 gate = load_part(x + i, n);
    const F32x16 silu = gate / (set1(1.0f) + exp(zero() - gate));
    store_part(out + i, silu * load_part(x + f + i, n), n);
  });
}

template <class T>
Status swiglu_of(Stream& stream, const SwigluArgs& a) {
  const int64_t f = a.out.dim[1];
  for_row_ranges(stream, a.out.dim[0], 2 * f, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) swiglu_row(row<T>(a.x, r), row<T>(a.out, r), f);
  });
  return {};
}

// silu'(g) = s + g s (1 - s) with s = sigmoid(g) = 1 / (1 + e), and g s (1 - s) = silu e s. exp() gives inf for g below
// -88, where e s would be NaN; the clamp keeps e finite, and what it changes is below |g| 2^-125.
template <class T>
void swiglu_backward_row(const T* x, const T* dout, T* dx, int64_t f) {
  for_lanes(f, [&](int64_t i, int n) LLMOPS_BODY {
    const F32x16 gate = load_part(x + i, n);
    const F32x16 up = load_part(x + f + i, n);
    const F32x16 dy = load_part(dout + i, n);
    const F32x16 e = exp(min(set1(87.0f), zero() - gate));
    const F32x16 sigmoid = set1(1.0f) / (set1(1.0f) + e);
    const F32x16 silu = gate * sigmoid;
    store_part(dx + i, dy * up * (sigmoid + silu * (e * sigmoid)), n);
    store_part(dx + f + i, dy * silu, n);
  });
}

template <class T>
Status swiglu_backward_of(Stream& stream, const SwigluBackwardArgs& a) {
  const int64_t f = a.dout.dim[1];
  for_row_ranges(stream, a.dout.dim[0], 2 * f, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      swiglu_backward_row(row<T>(a.x, r), row<T>(a.dout, r), row<T>(a.dx, r), f);
  });
  return {};
}

template <class T, Activation act>
void gelu_range(const T* x, T* out, int64_t count) {
  for_lanes(count, [&](int64_t i, int n) LLMOPS_BODY {
    const F32x16 v = load_part(x + i, n);
    store_part(out + i, act == Activation::gelu_tanh ? gelu_tanh(v) : gelu_erf(v), n);
  });
}

template <class T, Activation act>
void gelu_backward_range(const T* x, const T* dout, T* dx, int64_t count) {
  for_lanes(count, [&](int64_t i, int n) LLMOPS_BODY {
    const F32x16 v = load_part(x + i, n);
    const F32x16 slope = act == Activation::gelu_tanh ? gelu_tanh_grad(v) : gelu_erf_grad(v);
    store_part(dx + i, load_part(dout + i, n) * slope, n);
  });
}

template <class T>
Status gelu_of(Stream& stream, const GeluArgs& a) {
  const auto range =
      a.act == Activation::gelu_tanh ? gelu_range<T, Activation::gelu_tanh> : gelu_range<T, Activation::gelu_erf>;
  const auto* x = static_cast<const T*>(a.x.data);
  auto* out = static_cast<T*>(a.out.data);
  for_ranges(stream, a.x.elems(), kTaskElems, [&](int64_t begin, int64_t end) {
    range(x + begin, out + begin, end - begin);
  });
  return {};
}

template <class T>
Status gelu_backward_of(Stream& stream, const GeluBackwardArgs& a) {
  const auto range = a.act == Activation::gelu_tanh ? gelu_backward_range<T, Activation::gelu_tanh>
                                                    : gelu_backward_range<T, Activation::gelu_erf>;
  const auto* x = static_cast<const T*>(a.x.data);
  const auto* dout = static_cast<const T*>(a.dout.data);
  auto* dx = static_cast<T*>(a.dx.data);
  for_ranges(stream, a.x.elems(), kTaskElems, [&](int64_t begin, int64_t end) {
    range(x + begin, dout + begin, dx + begin, end - begin);
  });
  return {};
}

template <class T>
void add_range(const T* a, const T* b, T* out, int64_t count) {
  for_lanes(count, [&](int64_t i, int n) LLMOPS_BODY {
    store_part(out + i, load_part(a + i, n) + load_part(b + i, n), n);
  });
}

template <class T>
Status add_of(Stream& stream, const AddArgs& args) {
  const auto* a = static_cast<const T*>(args.a.data);
  const auto* b = static_cast<const T*>(args.b.data);
  auto* out = static_cast<T*>(args.out.data);
  for_ranges(stream, args.a.elems(), kTaskElems, [&](int64_t begin, int64_t end) {
    add_range(a + begin, b + begin, out + begin, end - begin);
  });
  return {};
}

template <class From, class To>
void cast_range(const From* x, To* out, int64_t count) {
  for_lanes(count, [&](int64_t i, int n) LLMOPS_BODY { store_part(out + i, load_part(x + i, n), n); });
}

template <class From, class To>
Status cast_of(Stream& stream, const CastArgs& a) {
  const auto* x = static_cast<const From*>(a.x.data);
  auto* out = static_cast<To*>(a.out.data);
  for_ranges(stream, a.x.elems(), kTaskElems, [&](int64_t begin, int64_t end) {
    cast_range(x + begin, out + begin, end - begin);
  });
  return {};
}

}  // namespace

Status swiglu(Stream& stream, const SwigluArgs& a) {
  return a.x.dtype == DType::f32 ? swiglu_of<float>(stream, a) : swiglu_of<bf16>(stream, a);
}

Status swiglu_backward(Stream& stream, const SwigluBackwardArgs& a) {
  return a.x.dtype == DType::f32 ? swiglu_backward_of<float>(stream, a) : swiglu_backward_of<bf16>(stream, a);
}

Status gelu(Stream& stream, const GeluArgs& a) {
  return a.x.dtype == DType::f32 ? gelu_of<float>(stream, a) : gelu_of<bf16>(stream, a);
}

Status gelu_backward(Stream& stream, const GeluBackwardArgs& a) {
  return a.x.dtype == DType::f32 ? gelu_backward_of<float>(stream, a) : gelu_backward_of<bf16>(stream, a);
}

Status add(Stream& stream, const AddArgs& a) {
  return a.a.dtype == DType::f32 ? add_of<float>(stream, a) : add_of<bf16>(stream, a);
}

Status cast(Stream& stream, const CastArgs& a) {
  return a.x.dtype == DType::f32 ? cast_of<float, bf16>(stream, a) : cast_of<bf16, float>(stream, a);
}

}  // namespace llmops::LLMOPS_ISA

#include "kernels/cpu/vec_end.h"
