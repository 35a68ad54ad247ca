// The gradient of a bias: a sum over rows.
#include "kernels/cuda/entries.h"
#include "kernels/cuda/row_sums.h"
#include "kernels/cuda/rows.h"

namespace llmops::cuda {
namespace {

// partial[b,n] = sum over the rows of block b, ascending.
template <class T, int kVec>
__global__ void __launch_bounds__(kSumThreads) sum_blocks(Rows<const T> dout, int64_t m, int64_t n, float* partial) {
  const SumBlock at = sum_block<kVec>(m);
  if (at.column >= n) return;
  Vec<float, kVec> sum = {};
#pragma unroll 8
  for (int64_t r = at.first; r < at.end; ++r) {
    const Vec<T, kVec> v = load<kVec>(dout.at(r) + at.column);
    for (int j = 0; j < kVec; ++j) sum.v[j] += widen(v.v[j]);
  }
  store(partial + blockIdx.x * n + at.column, sum);
}

template <class T>
Status run(Stream& stream, const BiasBackwardArgs& a) {
  const int64_t m = a.dout.dim[0], n = a.dout.dim[1];
  if (n == 0) return {};
  LLMOPS_ASSIGN(float* const partial, row_sums_workspace(stream, m, n));
  if (m > 0) {
    constexpr int kVec = 16 / sizeof(T);
    const bool aligned = rows_aligned(a.dout);
    LLMOPS_TRY(launch(stream.native(), row_sums_grid(m, n, aligned ? kVec : 1), kSumThreads, 0, "bias_backward",
                      aligned ? sum_blocks<T, kVec> : sum_blocks<T, 1>, rows_of<const T>(a.dout), m, n, partial));
  }
  return fold_row_sums(stream, partial, m, n, static_cast<float*>(a.dbias.data), a.accumulate);
}

}  // namespace

Status bias_backward(Stream& stream, const BiasBackwardArgs& a) {
  return a.dout.dtype == DType::f32 ? run<float>(stream, a) : run<bf16>(stream, a);
}

}  // namespace llmops::cuda
