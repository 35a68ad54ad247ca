// Micro-batches of equal-length windows on the device.
#pragma once

#include <span>

#include "nn/block.h"

namespace llmops {

class BatchBuffer {
 public:
  // Room for `sequences` windows of `seq` tokens.
  static Result<BatchBuffer> make(Device& device, int64_t sequences, int64_t seq);
  // windows: count x (seq + 1) tokens. Inputs are the first seq of each, targets the last seq. Every window is a sequence of its
  // own at positions 0..seq-1. The previous batch's work must be done.
  void fill(std::span<const int32_t> windows);
  const Batch& batch() const { return batch_; }  // of the last fill
  int64_t seq() const { return seq_; }

 private:
  Buffer memory_;
  Batch batch_;
  int64_t sequences_ = 0, seq_ = 0;
  DeviceId device_;
};

}  // namespace llmops
