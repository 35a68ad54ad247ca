// The gradient of a bias: a sum over rows.
#include "kernels/cpu/entries.h"
#include "kernels/cpu/tasks.h"
#include "kernels/cpu/vec.h"

#include "kernels/cpu/lanes.h"

namespace llmops::LLMOPS_ISA {
namespace {

// sum[0, count) = sum over rows [begin, end) of dout, from column `first` on. The sums stay in L1: count <= 1024.
template <class T>
void sum_rows(const ConstTensorView& dout, int64_t begin, int64_t end, int64_t first, int64_t count, float* sum) {
  std::memset(sum, 0, static_cast<size_t>(count) * sizeof(float));
  for (int64_t r = begin; r < end; ++r) {
    const T* x = row<T>(dout, r) + first;
    for_lanes(count, [&](int64_t i, int n) LLMOPS_BODY {
      store_part(sum + i, load_part(sum + i, n) + load_part(x + i, n), n);
    });
  }
}

template <class T>
Status run(Stream& stream, const BiasBackwardArgs& a) {
  constexpr int64_t kSlice = 1024;
  const int64_t m = a.dout.dim[0];
  const int64_t n = a.dout.dim[1];
  const int64_t blocks = ceil_div(m, kRowBlock);
  const int64_t slices = ceil_div(n, kSlice);
  LLMOPS_ASSIGN(void* scratch, stream.workspace(blocks * n * static_cast<int64_t>(sizeof(float))));
  auto* partial = static_cast<float*>(scratch);
  for_ranges(stream, blocks * slices, 1, [&](int64_t task, int64_t) {
    const int64_t begin = task / slices * kRowBlock;
    const int64_t first = task % slices * kSlice;
    sum_rows<T>(a.dout, begin, std::min(m, begin + kRowBlock), first, std::min(kSlice, n - first),
                partial + task / slices * n + first);
  });
  tree_sum(stream, partial, blocks, n, static_cast<float*>(a.dbias.data), a.accumulate);
  return {};
}

}  // namespace

Status bias_backward(Stream& stream, const BiasBackwardArgs& a) {
  return a.dout.dtype == DType::f32 ? run<float>(stream, a) : run<bf16>(stream, a);
}

}  // namespace llmops::LLMOPS_ISA

#include "kernels/cpu/vec_end.h"
