// Ops that treat the elements of dense tensors one by one: a thread takes as many as 16 bytes hold.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/runtime.h"

namespace llmops::cuda {

constexpr int kEachThreads = 256;

// Whether every pointer is a multiple of 16; an absent one is.
template <class... Pointers>
bool aligned(const Pointers*... p) {
  return (... && (reinterpret_cast<uintptr_t>(p) % 16 == 0));
}

#if defined(__CUDACC__) || defined(LLMOPS_SIMT)

// body.at<k>(i) for elements [i, i + k) that cover [0, n): k is kVec, but 1 at the end.
template <int kVec, class Body>
__global__ void __launch_bounds__(kEachThreads) each(Body body, int64_t n) {
  int64_t i = (int64_t{blockIdx.x} * kEachThreads + threadIdx.x) * kVec;
  if (i + kVec <= n) return body.template at<kVec>(i);
  for (; i < n; ++i) body.template at<1>(i);
}

template <int kVec, class Body>
Status run_each(Stream& stream, const char* name, bool aligned, int64_t n, const Body& body) {
  if (n == 0) return {};
  const int64_t per_block = kEachThreads * (aligned ? kVec : 1);
  return launch(stream.native(), static_cast<unsigned>((n + per_block - 1) / per_block), kEachThreads, 0, name,
                aligned ? each<kVec, Body> : each<1, Body>, body, n);
}

#endif

}  // namespace llmops::cuda
