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

// The batches of a step on the device: all are written to the host's side, one copy takes them over, and nothing need be
// waited for between them.
class BatchFeed {
 public:
  // Room for `sequences` windows of `seq` inputs in all.
  static Result<BatchFeed> make(Device& device, int64_t sequences, int64_t seq);
  static int64_t bytes_of(int64_t sequences, int64_t seq);
  // Forgets the batches; their work must be done.
  void clear();
  void begin_batch();
  // Adds windows [first, first + count) to the last batch as its next part, each a sequence of its own from position 0.
  void add(const Windows& windows, int64_t first, int64_t count);
  void push(Stream& stream);  // after the last batch

  struct Entry {
    Batch batch;
    std::vector<int64_t> part_begin{0};  // rows; one more than parts
  };
  int64_t count() const { return std::ssize(entries_); }
  const Entry& operator[](int64_t i) const { return entries_[i]; }

 private:
  ConstTensorView view(int64_t begin, int64_t count) const;  // elements of memory_

  Buffer memory_;
  HostSide host_;
  std::vector<Entry> entries_;
  int64_t rows_before_ = 0, sequences_before_ = 0;  // the last batch
  int64_t sequences_ = 0, seq_ = 0;
  DeviceId device_;
};

}  // namespace llmops
