// Rows of [n,d], or heads of [n,h,d], whose outer axes may be strided.
#pragma once

#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/tensor.h"

namespace llmops::cuda {

template <class T>
struct Rows {
  T* data;  // null: the tensor is absent
  int64_t heads, stride, head_stride;

#if defined(__CUDACC__) || defined(LLMOPS_SIMT)
  __device__ __forceinline__ T* at(int64_t row) const {
    return data + row / heads * stride + row % heads * head_stride;
  }
#endif
};

template <class T, class Void>
Rows<T> rows_of(const BasicView<Void>& view) {
  const bool by_head = view.rank == 3;
  return {static_cast<T*>(view.data), by_head ? std::max<int64_t>(view.dim[1], 1) : 1, view.stride[0],
          by_head ? view.stride[1] : 0};
}

template <class Void>
int64_t row_count(const BasicView<Void>& view) {
  return view.rank == 3 ? view.dim[0] * view.dim[1] : view.dim[0];
}

// Whether every row starts on 16 bytes and is a whole number of them, so that it can be read 16 bytes at a time.
template <class Void>
bool rows_aligned(const BasicView<Void>& view) {
  constexpr int64_t kBytes = 16;
  const int64_t elem = info(view.dtype).block_bytes;
  bool aligned = reinterpret_cast<uintptr_t>(view.data) % kBytes == 0 && view.dim[view.rank - 1] * elem % kBytes == 0;
  for (int i = 0; i + 1 < view.rank; ++i) aligned = aligned && (view.dim[i] <= 1 || view.stride[i] * elem % kBytes == 0);
  return aligned;
}

}  // namespace llmops::cuda
