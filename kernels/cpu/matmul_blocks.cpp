#include "kernels/cpu/matmul_blocks.h"

#include <algorithm>

#include "base/checked.h"
#include "kernels/ops.h"

namespace llmops {
namespace {

constexpr int64_t kChain = 512;
constexpr int64_t kLanes = 16;

}  // namespace

MatmulBlocks matmul_blocks(const MatmulShape& s) {
  MatmulBlocks b = {.m = s.m, .n = s.n, .k = s.k};
  b.chains = std::max<int64_t>(1, ceil_div(s.k, kChain));
  const int64_t kc = std::min(s.k, kChain);
  b.m_task = round_up(std::min<int64_t>(s.m, 264), s.tile_rows);
  b.n_task = round_up(std::min<int64_t>(s.n, 64), s.tile_cols);
  b.m_block = round_up(std::min<int64_t>(b.m_task, 48), s.tile_rows);
  b.m_tasks = ceil_div(s.m, b.m_task);
  b.n_tasks = ceil_div(s.n, b.n_task);
  const int64_t b_bytes = round_up(s.n, kLanes) * s.k * 4;
  if (!s.b_ready && b.m_tasks > 1 && b_bytes <= (4 << 20)) b.shared_bytes = round_up(b_bytes, 64);
  b.partial_elems = b.chains == 1 ? s.tile_rows * s.tile_cols : b.m_task * b.n_task;
  b.b_elems = s.b_ready || b.shared_bytes > 0 ? 0 : kc * b.n_task;
  b.a_elems = s.copies_a ? kc * b.m_block : 0;
  b.worker_bytes = round_up((b.partial_elems + b.b_elems + b.a_elems) * 4, 4096);
  return b;
}

int64_t matmul_pack_bytes(DType dtype, int64_t k, int64_t n) {
  return round_up(n, kLanes) * (dtype == DType::bf16 ? round_up(k, 2) : k) * info(dtype).block_bytes;
}

}  // namespace llmops
