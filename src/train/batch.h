// Windows of tokens, and micro-batches of them on the device.
#pragma once

#include <span>
#include <vector>

#include "nn/block.h"

namespace llmops {

// Sequences of two or more tokens: all but the last are inputs, all but the first are targets.
class Windows {
 public:
  // Room for one more of n tokens, to be written by the caller; valid until the next call.
  std::span<int32_t> add(int64_t n) {
    tokens_.resize(tokens_.size() + static_cast<size_t>(n));
    begin_.push_back(tokens_.size());
    return std::span(tokens_).last(static_cast<size_t>(n));
  }
  int64_t count() const { return static_cast<int64_t>(begin_.size()) - 1; }
  std::span<const int32_t> operator[](int64_t i) const { return std::span(tokens_).subspan(begin_[i], begin_[i + 1] - begin_[i]); }

 private:
  std::vector<int32_t> tokens_;
  std::vector<size_t> begin_{0};
};

class BatchBuffer {
 public:
  // Room for `sequences` windows of `seq` inputs.
  static Result<BatchBuffer> make(Device& device, int64_t sequences, int64_t seq);
  // Enqueues windows [first, first + count), each a sequence of its own from position 0. The previous batch's work must be
  // done.
  void fill(Stream& stream, const Windows& windows, int64_t first, int64_t count);
  const Batch& batch() const { return batch_; }  // of the last fill

 private:
  Buffer memory_;
  HostSide host_;
  Batch batch_;
  int64_t sequences_ = 0, seq_ = 0;
  DeviceId device_;
};

}  // namespace llmops
