// A native step as a Hugging Face directory that transformers loads.
#pragma once

#include <functional>
#include <string>

#include "ckpt/checkpoint.h"

namespace llmops {

constexpr int64_t kHfShardBytesMax = 5'000'000'000;  // what huggingface_hub cuts at

struct ExportReport {
  int64_t tensors = 0, bytes = 0, files = 0;
  bool has_tokenizer = false;  // byte and character tokenizers have no Hugging Face form
};

// config.json, generation_config.json, model.safetensors (or shards of at most shard_bytes_max with an index), the
// tokenizer's files where HF has such a tokenizer. Fuses what HF fuses. GPT-2 without biases gets zero biases. `out`
// must not exist or be empty (Code::usage). dtype: f32 or bf16. Holds a few MiB at a time; what was written is removed
// on failure. progress(done_bytes, total_bytes).
Result<ExportReport> export_hf(const Checkpoint& checkpoint, const std::string& out, DType dtype,
                               const std::function<void(int64_t, int64_t)>& progress = {},
                               int64_t shard_bytes_max = kHfShardBytesMax);

}  // namespace llmops
