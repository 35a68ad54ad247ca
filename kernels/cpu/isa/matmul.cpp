// The packed matmul. Every element of out is the same chain of fma whatever the tile, thread or instruction set
// (ops.h); all that is chosen is the order in which tiles are computed and where their operands lie in the caches.
#include "base/checked.h"
#include "kernels/cpu/entries.h"
#include "kernels/cpu/matmul_bf16.h"
#include "kernels/cpu/matmul_blocks.h"
#include "kernels/cpu/tasks.h"
#include "kernels/cpu/vec.h"

#include "kernels/gelu.h"
#include "kernels/cpu/lanes.h"

#include "kernels/cpu/matmul_kernel.h"
#include "kernels/cpu/matmul_pack.h"

#include "kernels/cpu/matmul_driver.h"

namespace llmops::LLMOPS_ISA {

namespace {

// All panels of b, in groups of columns so that rows of b[k,n] are read in longer runs.
template <class Layout>
Status run_pack(Stream& stream, const MatmulPackArgs& args) {
  using In = typename Layout::In;
  constexpr int64_t kColumns = 4 * kLanes;
  const int64_t k = args.b.dim[args.b_trans ? 1 : 0], n = args.b.dim[args.b_trans ? 0 : 1];
  stream.device().pool().parallel_for(ceil_div(n, kColumns), [&](int64_t group, int) {
    const int64_t n0 = group * kColumns, n1 = std::min(n, n0 + kColumns);
    for (int64_t k0 = 0; k0 < k; k0 += kChain) {
      const int64_t kc = std::min(kChain, k - k0), steps = ceil_div(kc, Layout::kPerStep), panel_elems = steps * kLanes;
      float* out = static_cast<float*>(args.out.data) + k0 / Layout::kPerStep * round_up(n, kLanes) + n0 * steps;
      if (!args.b_trans) {
        Layout::b_columns(at<const In>(args.b, k0, n0), args.b.stride[0], n1 - n0, kc, panel_elems, out);
        continue;
      }
      for (int64_t i = n0; i < n1; i += kLanes, out += panel_elems) {
        const int columns = static_cast<int>(std::min<int64_t>(kLanes, n1 - i));
        Layout::b_rows(at<const In>(args.b, i, k0), args.b.stride[0], columns, kc, out);
      }
    }
  });
  return {};
}

Status run_product(Stream& stream, const MatmulArgs& args) {
  if (args.a.dtype == DType::f32) return run_matmul<F32>(stream, args);
#if LLMOPS_ISA_LEVEL == 3
  if (stream.device().isa() == Isa::avx512_bf16) return avx512_bf16::matmul(stream, args);
#endif
  return run_matmul<Widened>(stream, args);
}

}  // namespace

Status matmul(Stream& stream, const MatmulArgs& args) {
  LLMOPS_TRY(run_product(stream, args));
  const BiasBackwardArgs sums = sums_of(args);
  return sums.dbias.present() ? LLMOPS_ISA::bias_backward(stream, sums) : Status();
}

Status matmul_pack(Stream& stream, const MatmulPackArgs& args) {
  return args.b.dtype == DType::f32 ? run_pack<Single<float>>(stream, args) : run_pack<Pairs>(stream, args);
}

}  // namespace llmops::LLMOPS_ISA

#include "kernels/cpu/vec_end.h"
