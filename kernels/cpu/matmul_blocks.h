// How a matmul is cut into tasks and blocks. Results do not depend on any of it (kernels/ops.h), only speed does.
#pragma once

#include <cstdint>

namespace llmops {

struct MatmulShape {
  int64_t m, n;
  int64_t steps;              // of the whole k: k, or pairs of k for bf16 dot products
  int64_t chain_steps;        // of one chain of 512 k
  int tile_rows, tile_cols;   // of the register tile
  bool a_trans;               // a is stored [k,m]
  bool copies_a;              // a is widened or packed block by block
  bool b_ready;               // the kernel can read b as it lies
};

struct MatmulBlocks {
  int64_t m, n, steps;
  int64_t chains;             // at least one, so that k = 0 writes zeros
  int64_t m_task, n_task;     // rows and columns of one task
  int64_t m_tasks, n_tasks;
  int64_t m_block;            // rows of a that pass over the task's panels together
  int64_t partial_elems, b_elems;  // f32 scratch of a worker: sums of earlier chains, panels; a follows
  int64_t worker_bytes;
  int64_t shared_bytes;       // > 0: all of b is packed once, before the tasks
};

MatmulBlocks matmul_blocks(const MatmulShape& shape);

}  // namespace llmops
