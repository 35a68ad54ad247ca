#include "kernels/cuda/row_sums.h"

namespace llmops::cuda {
namespace {

constexpr int64_t kFan = 64;  // leaves of the subtree that one thread folds

// Folds partial[k] for k = first, first + step, ... (kFan of them) into partial[first], neighbours first.
__global__ void __launch_bounds__(kSumThreads) fold(float* partial, int64_t blocks, int64_t d, int64_t step) {
  const int64_t column = int64_t{blockIdx.y} * kSumThreads + threadIdx.x;
  if (column >= d) return;
  const int64_t first = blockIdx.x * kFan * step;
  const int64_t end = first + kFan * step < blocks ? first + kFan * step : blocks;
  for (int64_t half = step; first + half < end; half *= 2)
    for (int64_t k = first; k + half < end; k += 2 * half) partial[k * d + column] += partial[(k + half) * d + column];
}

__global__ void __launch_bounds__(kSumThreads) finish(const float* partial, int64_t d, float* out, bool accumulate) {
  const int64_t column = int64_t{blockIdx.y} * kSumThreads + threadIdx.x;
  if (column >= d) return;
  const float sum = partial != nullptr ? partial[column] : 0;
  out[column] = accumulate ? out[column] + sum : sum;
}

}  // namespace

Result<float*> row_sums_workspace(Stream& stream, int64_t n, int64_t d, int sums) {
  LLMOPS_ASSIGN(void* const scratch, stream.workspace(sums * row_sums_blocks(n) * d * static_cast<int64_t>(sizeof(float))));
  return static_cast<float*>(scratch);
}

Status fold_row_sums(Stream& stream, float* partial, int64_t n, int64_t d, float* out, bool accumulate) {
  const int64_t blocks = row_sums_blocks(n);
  dim3 grid = row_sums_grid(1, d);
  for (int64_t step = 1; step < blocks; step *= kFan) {
    grid.x = static_cast<unsigned>((blocks + step * kFan - 1) / (step * kFan));
    LLMOPS_TRY(launch(stream.native(), grid, kSumThreads, 0, "fold of row sums", fold, partial, blocks, d, step));
  }
  grid.x = 1;
  return launch(stream.native(), grid, kSumThreads, 0, "end of row sums", finish, blocks > 0 ? partial : nullptr, d, out,
                accumulate);
}

}  // namespace llmops::cuda
