// The tensors that blocks keep or use, allocated from layout's activation table.
#pragma once

#include <array>
#include <vector>

#include "kernels/runtime.h"
#include "layout/activations.h"

namespace llmops {

// One in-flight micro-batch's tensors of one block (saved), or the scratch that all blocks share (transient).
class Slot {
 public:
  static Result<Slot> make(Device& device, const std::vector<ActRow>& rows, DType dtype, Category category);
  // The first n rows of a tensor; absent when the table has no such row.
  TensorView operator()(Act act, int64_t n) const;

 private:
  Buffer memory_;
  std::array<TensorView, static_cast<size_t>(Act::kCount)> views_{};
};

}  // namespace llmops
