// FLOPs and bytes of a model, by named conventions (the same run differs by several percent between them, so say which).
#pragma once

#include <cstdint>
#include <string_view>

#include "layout/model_config.h"

namespace llmops {

// Matmul FLOPs of forward and backward (3x forward) per token, 2 per multiply-add, attention over the causal half. This is what
// our kernels execute and what MFU is computed from by default ("matmul-causal").
double train_flops_per_token(const ModelConfig& config, int64_t seq);
// nanoGPT's: 6 N + 12 l d t, N without position table (K. Karpathy, nanoGPT model.py estimate_mfu; PaLM appendix B).
double train_flops_per_token_nanogpt(const ModelConfig& config, int64_t seq);
// llm.c's: 6 N + 6 l d t, N all parameters.
double train_flops_per_token_llmc(const ModelConfig& config, int64_t seq);

// AdamW's traffic per step in bytes for f32 state: read and write of parameter, m and v, read of the gradient.
double adamw_bytes(int64_t params);

}  // namespace llmops
