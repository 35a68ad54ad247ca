#include "kernels/cpu/matmul_blocks.h"

#include <algorithm>

#include "base/checked.h"
#include "kernels/ops.h"

namespace llmops {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kCacheLine = 64, kPage = 4096;
// All of b is packed once when several tasks read it, unless the copy would crowd the last-level cache and memory.
constexpr int64_t kSharedBytesMax = int64_t{32} << 20;
constexpr int64_t kBlockRows = 48;  // of a; with 512 steps 96 KiB, a fifth of a small L2
constexpr int64_t kTaskRows = 264;  // 256 tokens are one task high, so b is packed once without being shared

}  // namespace

MatmulBlocks matmul_blocks(const MatmulShape& s) {
  MatmulBlocks b = {.m = s.m, .n = s.n, .steps = s.steps};
  b.chains = std::max<int64_t>(1, ceil_div(s.steps, s.chain_steps));
  const int64_t steps = std::min(s.steps, s.chain_steps);
  const int64_t panel_bytes = round_up(s.n, kLanes) * s.steps * 4;
  // Packed tiles of a should serve many columns: then tasks are one block high and wide. Else tasks are narrow and
  // high: they keep their panels of b (128 KiB) in L2 and stream rows of a. A task that packs its own panels is always
  // high. Both are cut further until a few threads can share the work and finish together.
  const bool wide = s.a_trans && s.copies_a && (s.b_ready || panel_bytes <= kSharedBytesMax);
  b.m_task = round_up(std::min(s.m, wide ? kBlockRows : kTaskRows), s.tile_rows);
  b.n_task = round_up(std::min<int64_t>(s.n, wide ? 768 : 64), s.tile_cols);
  const auto tasks = [&] { return ceil_div(s.m, b.m_task) * ceil_div(s.n, b.n_task); };
  const int64_t tasks_min = wide ? 6 : 12;
  while (tasks() < tasks_min && b.m_task > 24) b.m_task = round_up(b.m_task / 2, s.tile_rows);
  while (tasks() < tasks_min && b.n_task > 64) b.n_task = round_up(b.n_task / 2, s.tile_cols);
  b.m_block = std::min(b.m_task, round_up(kBlockRows, s.tile_rows));
  b.m_tasks = ceil_div(s.m, b.m_task);
  b.n_tasks = ceil_div(s.n, b.n_task);
  if (!s.b_ready && b.m_tasks > 1 && panel_bytes <= kSharedBytesMax) b.shared_bytes = round_up(panel_bytes, kCacheLine);
  b.partial_elems = b.chains == 1 ? s.tile_rows * s.tile_cols : b.m_task * b.n_task;
  b.b_elems = s.b_ready || b.shared_bytes > 0 ? 0 : steps * b.n_task;
  const int64_t a_rows = s.copies_a ? b.m_block : 0, a_elems = (steps + kLanes) * a_rows;
  b.worker_bytes = round_up((b.partial_elems + b.b_elems + a_elems) * 4, kPage);
  return b;
}

int64_t matmul_pack_bytes(DType dtype, int64_t k, int64_t n) {
  return round_up(n, kLanes) * (dtype == DType::bf16 ? round_up(k, 2) : k) * info(dtype).block_bytes;
}

}  // namespace llmops
