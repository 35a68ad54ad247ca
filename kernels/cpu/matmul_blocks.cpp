#include "kernels/cpu/matmul_blocks.h"

#include <algorithm>

#include "base/checked.h"
#include "kernels/ops.h"

namespace llmops {
namespace {

constexpr int64_t kChain = 512;  // k steps of a chain (kernels/ops.h)
constexpr int64_t kLanes = 16;
constexpr int64_t kCacheLine = 64, kPage = 4096;
// All of b is packed once when several tasks read it, unless the copy would crowd the last-level cache and memory.
constexpr int64_t kSharedBytesMax = int64_t{32} << 20;

}  // namespace

MatmulBlocks matmul_blocks(const MatmulShape& s) {
  MatmulBlocks b = {.m = s.m, .n = s.n, .k = s.k};
  b.chains = std::max<int64_t>(1, ceil_div(s.k, kChain));
  const int64_t kc = std::min(s.k, kChain);
  // A copied block of a (at most 96 KiB: it stays in L2) should serve many columns; else narrow tasks of many rows keep
  // their panels of b (128 KiB) in L2 and read a where it lies. 256 tokens are one task high: b is then packed only once.
  b.m_task = round_up(std::min<int64_t>(s.m, s.copies_a ? 48 : 264), s.tile_rows);
  b.n_task = round_up(std::min<int64_t>(s.n, s.copies_a ? 768 : 64), s.tile_cols);
  b.m_block = std::min(b.m_task, round_up(48, s.tile_rows));
  b.m_tasks = ceil_div(s.m, b.m_task);
  b.n_tasks = ceil_div(s.n, b.n_task);
  const int64_t b_bytes = round_up(s.n, kLanes) * s.k * 4;
  if (!s.b_ready && b.m_tasks > 1 && b_bytes <= kSharedBytesMax) b.shared_bytes = round_up(b_bytes, kCacheLine);
  b.partial_elems = b.chains == 1 ? s.tile_rows * s.tile_cols : b.m_task * b.n_task;
  b.b_elems = s.b_ready || b.shared_bytes > 0 ? 0 : kc * b.n_task;
  b.a_elems = s.copies_a ? (kc + kLanes) * b.m_block : 0;
  b.worker_bytes = round_up((b.partial_elems + b.b_elems + b.a_elems) * 4, kPage);
  return b;
}

int64_t matmul_pack_bytes(DType dtype, int64_t k, int64_t n) {
  return round_up(n, kLanes) * (dtype == DType::bf16 ? round_up(k, 2) : k) * info(dtype).block_bytes;
}

}  // namespace llmops
