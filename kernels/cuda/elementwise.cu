// SwiGLU, GELU, addition and conversion: one pass over memory, 16 bytes a thread and access.
#include "kernels/cuda/each.h"
#include "kernels/cuda/entries.h"
#include "kernels/cuda/lane.h"
#include "kernels/cuda/rows.h"

namespace llmops::cuda {
namespace {

// The body of an op of one tensor: out[i] = f(x[i]).
template <class In, class Out, class F>
struct Map {
  const In* x;
  Out* out;
  template <int k>
  __device__ __forceinline__ void at(int64_t i) const {
    const Vec<In, k> v = load<k>(x + i);
    Vec<Out, k> y;
    for (int j = 0; j < k; ++j) y.v[j] = narrow<Out>(F()(F32{widen(v.v[j])}).v);
    store(out + i, y);
  }
};
// And of two: out[i] = f(x[i], y[i]). out may be one of them.
template <class T, class F>
struct Zip {
  const T *x, *y;
  T* out;
  template <int k>
  __device__ __forceinline__ void at(int64_t i) const {
    const Vec<T, k> a = load<k>(x + i), b = load<k>(y + i);
    Vec<T, k> c;
    for (int j = 0; j < k; ++j) c.v[j] = narrow<T>(F()(F32{widen(a.v[j])}, F32{widen(b.v[j])}).v);
    store(out + i, c);
  }
};

struct Same {
  __device__ F32 operator()(F32 x) const { return x; }
};
struct Sum {
  __device__ F32 operator()(F32 x, F32 y) const { return x + y; }
};
template <Activation act>
struct Gelu {
  __device__ F32 operator()(F32 x) const { return act == Activation::gelu_tanh ? gelu_tanh(x) : gelu_erf(x); }
};
template <Activation act>
struct GeluBackward {
  __device__ F32 operator()(F32 x, F32 dout) const {
    return dout * (act == Activation::gelu_tanh ? gelu_tanh_grad(x) : gelu_erf_grad(x));
  }
};

// Vectors are counted in elements of the narrower type: 16 bytes of it, two accesses of the wider one.
template <class F, class In, class Out = In>
Status map(Stream& stream, const char* name, const ConstTensorView& x, const TensorView& out) {
  const Map<In, Out, F> body = {static_cast<const In*>(x.data), static_cast<Out*>(out.data)};
  constexpr int kVec = 16 / (sizeof(In) < sizeof(Out) ? sizeof(In) : sizeof(Out));
  return run_each<kVec>(stream, name, aligned(body.x, body.out), x.elems(), body);
}
template <class F, class T>
Status zip(Stream& stream, const char* name, const ConstTensorView& x, const ConstTensorView& y, const TensorView& out) {
  const Zip<T, F> body = {static_cast<const T*>(x.data), static_cast<const T*>(y.data), static_cast<T*>(out.data)};
  return run_each<16 / sizeof(T)>(stream, name, aligned(body.x, body.y, body.out), x.elems(), body);
}

template <class T>
Status gelu_of(Stream& stream, const GeluArgs& a) {
  return a.act == Activation::gelu_tanh ? map<Gelu<Activation::gelu_tanh>, T>(stream, "gelu", a.x, a.out)
                                        : map<Gelu<Activation::gelu_erf>, T>(stream, "gelu", a.x, a.out);
}
template <class T>
Status gelu_backward_of(Stream& stream, const GeluBackwardArgs& a) {
  return a.act == Activation::gelu_tanh
             ? zip<GeluBackward<Activation::gelu_tanh>, T>(stream, "gelu_backward", a.x, a.dout, a.dx)
             : zip<GeluBackward<Activation::gelu_erf>, T>(stream, "gelu_backward", a.x, a.dout, a.dx);
}

// SwiGLU's tensors are rows of f or 2f elements: blockIdx.x is a slice of columns, blockIdx.y a row and every 65535th after.
constexpr int kRowThreads = 128;
constexpr int64_t kGridRows = 65535;

template <int kVec, class Body>
__global__ void __launch_bounds__(kRowThreads) each_in_rows(Body body, int64_t n, int64_t f) {
  const int64_t i = (int64_t{blockIdx.x} * kRowThreads + threadIdx.x) * kVec;
  for (int64_t r = blockIdx.y; i < f && r < n; r += gridDim.y) body.template at<kVec>(r, i, f);
}

template <class T, class Body>
Status run_each_in_rows(Stream& stream, const char* name, bool whole_vectors, int64_t n, int64_t f, const Body& body) {
  if (n == 0 || f == 0) return {};
  constexpr int kVec = 16 / sizeof(T);
  const int64_t per_block = kRowThreads * (whole_vectors ? kVec : 1);
  const dim3 grid(static_cast<unsigned>((f + per_block - 1) / per_block), static_cast<unsigned>(std::min(n, kGridRows)));
  return launch(stream.native(), grid, kRowThreads, 0, name,
                whole_vectors ? each_in_rows<kVec, Body> : each_in_rows<1, Body>, body, n, f);
}

template <class T>
struct Swiglu {
  const T* x;
  T* out;
  template <int k>
  __device__ __forceinline__ void at(int64_t r, int64_t i, int64_t f) const {
    const Vec<T, k> g = load<k>(x + 2 * r * f + i), u = load<k>(x + 2 * r * f + f + i);
    Vec<T, k> y;
    for (int j = 0; j < k; ++j) {
      const F32 gate = {widen(g.v[j])};
      const F32 silu = gate / (F32{1.0f} + exp(F32{0.0f} - gate));
      y.v[j] = narrow<T>(silu.v * widen(u.v[j]));
    }
    store(out + r * f + i, y);
  }
};

// silu'(g) = s + g s (1 - s) with s = sigmoid(g) = 1 / (1 + e), and g s (1 - s) = silu e s. exp() gives inf for g below
// -88, where e s would be NaN; the clamp keeps e finite, and what it changes is below |g| 2^-125. dx may be x.
template <class T>
struct SwigluBackward {
  const T *x, *dout;
  T* dx;
  template <int k>
  __device__ __forceinline__ void at(int64_t r, int64_t i, int64_t f) const {
    const Vec<T, k> g = load<k>(x + 2 * r * f + i), u = load<k>(x + 2 * r * f + f + i), d = load<k>(dout + r * f + i);
    Vec<T, k> dgate, dup;
    for (int j = 0; j < k; ++j) {
      const F32 gate = {widen(g.v[j])}, up = {widen(u.v[j])}, dy = {widen(d.v[j])};
      const F32 e = exp(min(F32{87.0f}, F32{0.0f} - gate));
      const F32 sigmoid = F32{1.0f} / (F32{1.0f} + e);
      const F32 silu = gate * sigmoid;
      dgate.v[j] = narrow<T>((dy * up * (sigmoid + silu * (e * sigmoid))).v);
      dup.v[j] = narrow<T>((dy * silu).v);
    }
    store(dx + 2 * r * f + i, dgate);
    store(dx + 2 * r * f + f + i, dup);
  }
};

template <class T>
Status swiglu_of(Stream& stream, const SwigluArgs& a) {
  const Swiglu<T> body = {static_cast<const T*>(a.x.data), static_cast<T*>(a.out.data)};
  return run_each_in_rows<T>(stream, "swiglu", rows_aligned(a.out) && aligned(body.x), a.out.dim[0], a.out.dim[1], body);
}
template <class T>
Status swiglu_backward_of(Stream& stream, const SwigluBackwardArgs& a) {
  const SwigluBackward<T> body = {static_cast<const T*>(a.x.data), static_cast<const T*>(a.dout.data),
                                  static_cast<T*>(a.dx.data)};
  return run_each_in_rows<T>(stream, "swiglu_backward", rows_aligned(a.dout) && aligned(body.x, body.dx), a.dout.dim[0],
                             a.dout.dim[1], body);
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
  return a.a.dtype == DType::f32 ? zip<Sum, float>(stream, "add", a.a, a.b, a.out)
                                 : zip<Sum, bf16>(stream, "add", a.a, a.b, a.out);
}

Status cast(Stream& stream, const CastArgs& a) {
  return a.x.dtype == DType::f32 ? map<Same, float, bf16>(stream, "cast", a.x, a.out)
                                 : map<Same, bf16, float>(stream, "cast", a.x, a.out);
}

}  // namespace llmops::cuda
