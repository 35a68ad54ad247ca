// What becomes of the sums of a matmul: bias, activation or its gradient, residual, accumulation (kernels/ops.h).
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/lane.h"
#include "kernels/ops.h"

namespace llmops::cuda {

template <class T>
struct Matrix {
  T* data;  // null: the tensor is absent
  int64_t stride;

#if defined(__CUDACC__) || defined(LLMOPS_SIMT)
  __device__ __forceinline__ T* at(int64_t i, int64_t j) const { return data + i * stride + j; }
#endif
};

template <class T, class Void>
Matrix<T> matrix_of(const BasicView<Void>& view) {
  return {static_cast<T*>(view.data), view.stride[0]};
}

// Whether 16 bytes can be moved at a time from any multiple of 16 bytes of any row. The end of a row may be short.
template <class Void>
bool starts_aligned(const BasicView<Void>& view) {
  const int64_t elem = info(view.dtype).block_bytes;
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 &&
         (view.rank < 2 || view.dim[0] <= 1 || view.stride[0] * elem % 16 == 0);
}

template <class T>
struct Epilogue {
  Matrix<float> out_f32;  // one of the two
  Matrix<bf16> out_bf16;
  const T* bias;
  Matrix<const T> residual, act_backward;
  Matrix<T> aux;
  int64_t m, n;
  Activation act;
  bool accumulate;
  bool aligned;  // all of them
};

template <class T>
Epilogue<T> epilogue_of(const MatmulArgs& a) {
  const bool wide = a.out.dtype == DType::f32;
  return {.out_f32 = wide ? matrix_of<float>(a.out) : Matrix<float>{},
          .out_bf16 = wide ? Matrix<bf16>{} : matrix_of<bf16>(a.out),
          .bias = static_cast<const T*>(a.bias.data),
          .residual = matrix_of<const T>(a.residual),
          .act_backward = matrix_of<const T>(a.act_backward),
          .aux = matrix_of<T>(a.aux),
          .m = a.out.dim[0],
          .n = a.out.dim[1],
          .act = a.act,
          .accumulate = a.accumulate,
          .aligned = starts_aligned(a.out) && starts_aligned(a.bias) && starts_aligned(a.residual) &&
                     starts_aligned(a.act_backward) && starts_aligned(a.aux)};
}

#if defined(__CUDACC__) || defined(LLMOPS_SIMT)

template <int N, class T>
__device__ __forceinline__ Vec<float, N> load_wide(const T* p) {
  const Vec<T, N> v = load<N>(p);
  Vec<float, N> x;
  for (int i = 0; i < N; ++i) x.v[i] = widen(v.v[i]);
  return x;
}
template <class T, int N>
__device__ __forceinline__ void store_narrow(T* p, const Vec<float, N>& x) {
  Vec<T, N> v;
  for (int i = 0; i < N; ++i) v.v[i] = narrow<T>(x.v[i]);
  store(p, v);
}

template <class Out, int N>
__device__ __forceinline__ void put(const Matrix<Out>& out, bool accumulate, int64_t row, int64_t column,
                                    Vec<float, N> x) {
  Out* const p = out.at(row, column);
  if (accumulate) {
    const Vec<float, N> old = load_wide<N>(p);
    for (int i = 0; i < N; ++i) x.v[i] = old.v[i] + x.v[i];
  }
  store_narrow(p, x);
}

// N elements of a row, from (row, column) on, in the order of operations of the cpu table.
template <int N, class T>
__device__ __forceinline__ void finish(const Epilogue<T>& e, int64_t row, int64_t column, Vec<float, N> x) {
  if (e.bias != nullptr) {
    const Vec<float, N> bias = load_wide<N>(e.bias + column);
    for (int i = 0; i < N; ++i) x.v[i] = x.v[i] + bias.v[i];
  }
  if (e.act_backward.data != nullptr) {
    const Vec<float, N> u = load_wide<N>(e.act_backward.at(row, column));
    if (e.act == Activation::gelu_erf)
      for (int i = 0; i < N; ++i) x.v[i] = x.v[i] * gelu_erf_grad(F32{u.v[i]}).v;
    else
      for (int i = 0; i < N; ++i) x.v[i] = x.v[i] * gelu_tanh_grad(F32{u.v[i]}).v;
  } else if (e.act != Activation::none) {
    if (e.aux.data != nullptr) store_narrow(e.aux.at(row, column), x);
    if (e.act == Activation::gelu_erf)
      for (int i = 0; i < N; ++i) x.v[i] = gelu_erf(F32{x.v[i]}).v;
    else
      for (int i = 0; i < N; ++i) x.v[i] = gelu_tanh(F32{x.v[i]}).v;
  }
  if (e.residual.data != nullptr) {
    const Vec<float, N> residual = load_wide<N>(e.residual.at(row, column));
    for (int i = 0; i < N; ++i) x.v[i] = x.v[i] + residual.v[i];
  }
  if (e.out_f32.data != nullptr) put(e.out_f32, e.accumulate, row, column, x);
  else put(e.out_bf16, e.accumulate, row, column, x);
}

#endif

}  // namespace llmops::cuda
