// A native step as a Hugging Face directory that transformers loads.
#pragma once

#include <string>

#include "ckpt/checkpoint.h"

namespace llmops {

struct ExportReport {
  int64_t tensors = 0, bytes = 0, files = 0;
};

// config.json, generation_config.json, model.safetensors (or shards of at most 5 GB with an index), the tokenizer's files where HF has such a
// tokenizer. Fuses what HF fuses. GPT-2 without biases gets zero biases. `out` must not exist or be empty. dtype: f32 or bf16.
Result<ExportReport> export_hf(const Checkpoint& checkpoint, const std::string& out, DType dtype);

}  // namespace llmops
