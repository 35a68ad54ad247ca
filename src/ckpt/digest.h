// The logical digest of a tensor: what its elements are, whatever files, chunks or ranks hold them.
//
// Each element is mixed with its row-major index into 128 bits, and the mixes are added modulo 2^64 in two lanes: sums
// over any regions that tile the tensor add up to the same value. Bound to dtype and shape by a final hash. Integrity,
// not authenticity.
#pragma once

#include <span>

#include "base/dtype.h"
#include "base/hash.h"
#include "layout/tensors.h"

namespace llmops {

struct DigestSum {
  uint64_t lo = 0, hi = 0;
  void add(const DigestSum& other) {
    lo += other.lo;
    hi += other.hi;
  }
};

// `count` elements of element_bytes (1, 2, 4 or 8) each, at flat indexes first, first + 1, ...
DigestSum digest_run(const void* data, int element_bytes, uint64_t first, int64_t count);
// The digest of elements first, first + 1, ... (by place in the box, which is dense) of a box of a tensor of rank 0 to
// 2; `data` holds whole elements.
DigestSum digest_part(const Shape& shape, const Box& box, int64_t first, std::span<const std::byte> data,
                      int element_bytes);
Hash128 finish_digest(const DigestSum& sum, DType dtype, const Shape& shape);

}  // namespace llmops
