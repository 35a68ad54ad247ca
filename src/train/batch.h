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
  // Begins a batch; the work of the one before must be done. Then windows [first, first + count), each a sequence of its
  // own from position 0, and push() enqueues them.
  void clear() { batch_.n = batch_.s = 0; }
  void add(const Windows& windows, int64_t first, int64_t count);
  void push(Stream& stream);
  const Batch& batch() const { return batch_; }  // of the last push

 private:
  // tokens, positions, targets [n]; q_begin [s+1]; kv_len, q_pos0, kv_pos0 [s]
  struct Columns {
    int32_t *tokens, *positions, *targets, *begin, *len, *q_pos0, *kv_pos0;
  };
  Columns columns() const;

  Buffer memory_;
  HostSide host_;
  Batch batch_;
  int64_t sequences_ = 0, seq_ = 0;
  DeviceId device_;
};

}  // namespace llmops
