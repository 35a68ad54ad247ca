// Sums over rows (weight gradients), in the order of kernels/ops.h: a kernel writes one partial per block of 64 rows,
// ascending within it; these fold the partials as a balanced binary tree. No atomics: the order is the same in every run.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/ops.h"

namespace llmops::cuda {

constexpr int64_t kSumRows = 64;
constexpr int kSumThreads = 128;  // of a block; each has one column, or as many as 16 bytes hold

inline int64_t row_sums_blocks(int64_t n) { return (n + kSumRows - 1) / kSumRows; }
// One block per (block of rows, slice of columns).
inline dim3 row_sums_grid(int64_t n, int64_t d, int columns_per_thread = 1) {
  const int64_t slice = kSumThreads * columns_per_thread;
  return dim3(static_cast<unsigned>(row_sums_blocks(n)), static_cast<unsigned>((d + slice - 1) / slice));
}

#if defined(__CUDACC__) || defined(LLMOPS_SIMT)

// What a thread of that grid adds up: rows [first, end) of columns [column, column + kVec).
struct SumBlock {
  int64_t first, end, column;
};
template <int kVec>
__device__ __forceinline__ SumBlock sum_block(int64_t n) {
  const int64_t first = int64_t{blockIdx.x} * kSumRows;
  return {first, first + kSumRows < n ? first + kSumRows : n, (int64_t{blockIdx.y} * kSumThreads + threadIdx.x) * kVec};
}

#endif

Result<float*> row_sums_workspace(Stream& stream, int64_t n, int64_t d, int sums = 1);  // [sums, row_sums_blocks(n), d]

// out[d] (+)= the sum of the partials, which are overwritten.
Status fold_row_sums(Stream& stream, float* partial, int64_t n, int64_t d, float* out, bool accumulate);

}  // namespace llmops::cuda
