// Copies and folds of ranks' buffers, cut into tasks of fixed size for the device's pool.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/pool.h"
#include "comm/comm.h"

namespace llmops {

// The dtypes that can be reduced: f32, f64, i64.
bool is_reducible(DType dtype);

// out[i] = the tree of comm.h over sources[r][i], r in [0, ranks). out may be one of the sources.
void fold_ranks(Pool& pool, DType dtype, ReduceOp op, const void* const* sources, int ranks, void* out, int64_t elems);

// Nothing happens when out == in; otherwise they must not overlap.
void copy_bytes(Pool& pool, void* out, const void* in, int64_t bytes);

}  // namespace llmops
