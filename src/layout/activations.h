// The activation table: every tensor that a block keeps or uses in a step. nn allocates from it and memory predictions
// sum it, so that both say the same, term by term.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "layout/model_config.h"
#include "layout/tensors.h"

namespace llmops {

enum class Keep : uint8_t {
  saved,      // from forward to backward of its micro-batch, one per block
  transient,  // within one call, shared by all blocks
};

enum class Act : uint8_t {
  residual,  // [n,d] input of the block: the normed tensor of norm1
  norm1_mean,
  norm1_rstd,
  norm1_out,
  qkv,     // [n,(h+2k)e] q and k after QK-norm and RoPE, v
  qk_raw,  // [n,(h+k)e] q and k before QK-norm; only with qk_norm
  q_rstd,
  k_rstd,
  attn_out,
  attn_lse,
  residual_mid,  // [n,d] input of norm2
  norm2_mean,
  norm2_rstd,
  norm2_out,
  mlp_pre,  // [n,f] before the activation, or [n,2f] gate and up
  mlp_act,  // [n,f]
  final_residual,
  final_mean,
  final_rstd,
  final_out,  // head
  logits,     // [rows,v], a chunk of rows
  losses,
  grad_residual,
  grad_wide,
  grad_mlp,
  grad_attn,
  grad_qkv,
  grad_norm,  // backward
  kCount
};

struct ActRow {
  Act act;
  std::string_view name;
  Shape dims;
  bool f32 = false;  // statistics; else the compute dtype
  Keep keep = Keep::saved;
};

constexpr int64_t kHeadRows =
    1024;  // logits are made for at most this many rows at a time; a multiple of the matmul's k block

// tokens: of a micro-batch.
std::vector<ActRow> block_activations(const ModelConfig& config, int64_t tokens);
std::vector<ActRow> head_activations(const ModelConfig& config, int64_t tokens);
std::vector<ActRow> transient_activations(const ModelConfig& config, int64_t tokens);
// Inference keeps nothing: the tensors of one block serve all.
std::vector<ActRow> inference_activations(const ModelConfig& config, int64_t tokens);
int64_t bytes_of_rows(const std::vector<ActRow>& rows, DType dtype);

}  // namespace llmops
