// A model for inference: weights in the flat layout, a contiguous KV cache, and a forward pass over mixed rows.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ckpt/source.h"
#include "nn/block.h"

namespace llmops {

// Rows of one sequence in a forward pass: prefill rows and decode rows are the same thing.
struct SequenceRows {
  int slot = 0;          // which cache
  int64_t position = 0;  // of the first token
  std::span<const int32_t> tokens;
  bool want_logits = false;  // of the last token
};

class InferModel {
 public:
  // Reads all weights as dtype (f32 or bf16).
  static Result<std::unique_ptr<InferModel>> load(Device& device, const TensorSource& source, DType dtype);
  const ModelConfig& config() const { return config_; }
  Device& device() const { return device_; }

  // Room for `slots` sequences of up to `capacity` tokens each, and forward passes of up to `rows` tokens. Code::io
  // when it does not fit.
  Status reserve(int slots, int64_t capacity, int64_t rows);
  // Logits f32 [wanted, v], in the order of `rows`; valid until the next call. Keys and values enter the caches.
  Result<TensorView> forward(std::span<const SequenceRows> rows);

 private:
  InferModel(Device& device, ModelConfig config, DType dtype)
      : device_(device), config_(std::move(config)), dtype_(dtype) {}
  Batch fill_batch(std::span<const SequenceRows> rows);
  Status enqueue_forward(const Batch& batch, int64_t wanted);
  Status decode(const Batch& batch);

  Device& device_;
  ModelConfig config_;
  DType dtype_;
  std::vector<Group> groups_;
  Buffer weights_, cos_sin_, cache_, ints_, wanted_, logits_;
  HostSide host_ints_;
  Slot slot_;
  // A decoding pass of so many rows, recorded when its workspace was known.
  struct Decoding {
    int64_t workspace_moves = -1;
    std::optional<Graph> graph;
  };
  std::map<int64_t, Decoding> decodings_;
  int slots_ = 0;
  int64_t capacity_ = 0, rows_max_ = 0;
};

}  // namespace llmops
