// Sums over rows (weight gradients), in the order of kernels/ops.h: a kernel writes one partial per block of 64 rows,
// ascending within it; these fold the partials as a balanced binary tree. No atomics: the order is the same in every run.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/ops.h"

namespace llmops::cuda {

constexpr int64_t kSumRows = 64;
constexpr int kSumThreads = 128;  // columns of a block

inline int64_t row_sums_blocks(int64_t n) { return (n + kSumRows - 1) / kSumRows; }
// One block per (block of rows, slice of columns).
inline dim3 row_sums_grid(int64_t n, int64_t d) {
  return dim3(static_cast<unsigned>(row_sums_blocks(n)), static_cast<unsigned>((d + kSumThreads - 1) / kSumThreads));
}

Result<float*> row_sums_workspace(Stream& stream, int64_t n, int64_t d);  // [row_sums_blocks(n), d]

// out[d] (+)= the sum of the partials, which are overwritten.
Status fold_row_sums(Stream& stream, float* partial, int64_t n, int64_t d, float* out, bool accumulate);

}  // namespace llmops::cuda
