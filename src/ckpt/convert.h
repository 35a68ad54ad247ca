// Reading part of a stored region of a tensor, with conversion of its elements.
#pragma once

#include "base/dtype.h"
#include "base/io.h"
#include "layout/tensors.h"

namespace llmops {

// A box of a tensor, stored densely from byte `begin` of a file.
struct StoredRegion {
  const File* file = nullptr;
  DType dtype = DType::f32;
  int64_t begin = 0;
  Box box;
};

// Copies the elements that `region` and `wanted` share to their places in `out`, whose element (0,0) is that of
// `wanted` and whose rows are row_stride elements apart. From f32, bf16, f16 to f32 or bf16 (nearest even). Rank 0
// to 2.
Status read_region(const StoredRegion& region, const Box& wanted, DType to, void* out, int64_t row_stride);

}  // namespace llmops
