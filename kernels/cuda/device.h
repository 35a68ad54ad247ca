// The only header through which kernels/cuda sees CUDA. nvcc takes NVIDIA's; LLMOPS_SIMT (the test executable test_simt)
// takes a shim with which g++ compiles the same sources and runs them on the CPU: tests/support/simt.h.
//
// So that both compile them, kernels are written in this dialect: launch() in place of <<<>>>; shared memory only as one
// struct, by block_shared<S>(); no atomics on floats, whose order no one fixes; __restrict__ only where the contract keeps
// tensors apart.
#pragma once

#ifdef LLMOPS_SIMT
#include "support/simt.h"
#else
#include <cuda_runtime.h>
#endif

#include <cstdint>
#include <tuple>
#include <type_traits>

#include "base/dtype.h"
#include "base/status.h"

namespace llmops::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr size_t kSharedBytesPlain = 48 << 10;  // of a block; beyond that a kernel must ask

// "what: cudaErrorX (700): an illegal memory access"; ok for cudaSuccess.
Status status_of(cudaError_t error, const char* what);

// Enqueues kernel(args...) on a stream. What the launch itself violates is returned; what the kernel does wrong comes
// from a later call. `name` is for the message.
template <class... Params, class... Args>
Status launch(void* stream, dim3 grid, dim3 block, size_t shared_bytes, const char* name, void (*kernel)(Params...),
              Args... args) {
#ifdef LLMOPS_SIMT
  return status_of(simt::launch(static_cast<cudaStream_t>(stream), grid, block, shared_bytes, name,
                                [=] { kernel(Params(args)...); }), name);
#else
  const auto* function = reinterpret_cast<const void*>(kernel);
  if (shared_bytes > kSharedBytesPlain)
    LLMOPS_TRY(status_of(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(shared_bytes)), name));
  std::tuple<Params...> values{Params(args)...};
  return std::apply(
      [&](auto&... value) {
        void* pointers[] = {&value...};
        return status_of(cudaLaunchKernel(function, grid, block, pointers, shared_bytes, static_cast<cudaStream_t>(stream)),
                         name);
      },
      values);
#endif
}

#if defined(__CUDACC__) || defined(LLMOPS_SIMT)

// The block's shared memory, uninitialised. The launch passes sizeof(S).
template <class S>
__device__ __forceinline__ S& block_shared() {
  static_assert(std::is_trivial_v<S> && alignof(S) <= 16);
#ifdef LLMOPS_SIMT
  return *static_cast<S*>(simt::block_shared(sizeof(S)));
#else
  extern __shared__ __align__(16) unsigned char llmops_shared_bytes[];
  return *reinterpret_cast<S*>(llmops_shared_bytes);
#endif
}

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(bf16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }

// Rounds to nearest even, as to_bf16() of base/dtype.h does.
template <class T>
__device__ __forceinline__ T narrow(float x);
template <>
__device__ __forceinline__ float narrow<float>(float x) { return x; }
template <>
__device__ __forceinline__ bf16 narrow<bf16>(float x) {
  const unsigned u = __float_as_uint(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>(u >> 16 | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1u)) >> 16)};
}

// N elements that are loaded and stored together, in accesses of up to 16 bytes: the widest there are.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vec {
  T v[N];
};
template <int N, class T>
__device__ __forceinline__ Vec<T, N> load(const T* p) {
  return *reinterpret_cast<const Vec<T, N>*>(p);
}
// A struct is stored element by element where the compiler has put code between its elements, and a word that is copied
// from it may pass through local memory; a word made of registers is one store.
using Word [[gnu::may_alias]] = unsigned __int128;
template <int N, class T>
__device__ __forceinline__ void store(T* p, const Vec<T, N>& x) {
  if constexpr (sizeof(x) % sizeof(Word) == 0) {
    constexpr int kWordElems = sizeof(Word) / sizeof(T);
    for (int i = 0; i < N; i += kWordElems) {
      uint32_t part[4];
      memcpy(part, x.v + i, sizeof(part));
      Word word = 0;
      for (int j = 3; j >= 0; --j) word = word << 32 | part[j];
      *reinterpret_cast<Word*>(p + i) = word;
    }
  } else {
    *reinterpret_cast<Vec<T, N>*>(p) = x;
  }
}

// The fold of 16 virtual lanes (kernels/ops.h): 8, 4, 2, 1. Every lane of an aligned group of 16 gets the sum; the whole
// warp calls it.
template <class T>
__device__ __forceinline__ T fold_lanes(T x) {
  for (int step = 8; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

#endif

}  // namespace llmops::cuda
