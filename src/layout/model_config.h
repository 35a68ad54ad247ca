// What a model is, apart from its weights: enough to list its tensors, run it and count its FLOPs.
//
// Sources of a config: a Hugging Face config.json (both spellings: rope_theta / rope_scaling / torch_dtype of
// transformers 4, rope_parameters / dtype of transformers 5), or a descriptor ("gpt2:d12", "llama:d8", "char"). A field
// that would change the mathematics and is not known here is an error that names it; it is never ignored.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/json.h"
#include "base/status.h"

namespace llmops {

enum class Family : uint8_t { gpt2, llama, qwen3 };  // HF model_type: tensor names and orientation
std::string_view name_of(Family family);

enum class NormKind : uint8_t { layer, rms };
enum class MlpKind : uint8_t { gelu_tanh, gelu_erf, swiglu };
enum class RopeScaling : uint8_t { none, linear, llama3 };

struct RopeConfig {
  double theta = 10000.0;
  bool interleaved = false;  // pairs (2i, 2i+1) instead of (i, i + e/2); never set by HF files
  RopeScaling scaling = RopeScaling::none;
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3 only
  int64_t original_positions = 0;                        // llama3 only
  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

struct ModelConfig {
  Family family = Family::gpt2;
  int64_t layers = 0;     // l
  int64_t d_model = 0;    // d
  int64_t heads = 0;      // h
  int64_t kv_heads = 0;   // k
  int64_t head_dim = 0;   // e
  int64_t ffn = 0;        // f
  int64_t vocab = 0;      // v; 0 in a descriptor whose vocabulary comes from the data
  int64_t positions = 0;  // longest sequence
  NormKind norm = NormKind::layer;
  MlpKind mlp = MlpKind::gelu_tanh;
  double norm_eps = 1e-5;
  bool norm_bias = true;  // layer norm only
  bool qkv_bias = true;
  bool out_bias = true;  // attention output projection
  bool mlp_bias = true;
  bool qk_norm = false;  // RMS norm of each head of q and k before RoPE
  bool learned_positions = true;
  bool tied_head = true;
  bool weights_in_out = true;  // matrices of the blocks are stored [in, out] (GPT-2's Conv1D), else [out, in]
  RopeConfig rope;             // unused with learned_positions
  double init_std = 0.02;
  int64_t bos_id = -1;           // -1: none
  int64_t pad_id = -1;           // its embedding gets no gradient (Llama and Qwen3 in transformers: padding_idx)
  std::vector<int64_t> eos_ids;  // any of them ends a text
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;

  int64_t q_dim() const { return heads * head_dim; }
  int64_t kv_dim() const { return kv_heads * head_dim; }
  int64_t qkv_dim() const { return q_dim() + 2 * kv_dim(); }
  int64_t up_dim() const { return mlp == MlpKind::swiglu ? 2 * ffn : ffn; }  // width of the fused first MLP product
};

// Code::invalid with the field, what was found and what is supported.
Result<ModelConfig> model_config_from_hf(const Json& config);
// The HF config.json of the model, in the spelling that transformers 4 and 5 both read. dtype: that of the weights
// file.
Json model_config_to_hf(const ModelConfig& config, DType dtype);
// Built-in sizes:
//   char            nanoGPT's CPU recipe: 4 layers, 4 heads, width 128, T 64, no biases, tied head, tanh GELU,
//   vocabulary of the data gpt2            124M; gpt2:d12 d24 d36 d48 by depth as in llm.c (768, 1024, 1280, 1600);
//   gpt2:LxD any layers x width llama:LxD       Llama-3 style: head_dim 64 (or D/4 when D < 256), k = max(1, h/4), f =
//   8d/3 rounded up to 32, theta 5e5, untied qwen3:LxD       the same with QK-norm, theta 1e6, eps 1e-6, tied
// vocab: what the tokenizer has; 0 keeps the built-in one where there is one.
Result<ModelConfig> model_config_from_descriptor(std::string_view descriptor, int64_t vocab);
// Cross checks (heads divide, positive sizes, sizes that fit 2^31 elements per axis).
Status check(const ModelConfig& config);

// Our own complete description, for manifests: every field above.
Json to_json(const ModelConfig& config);
Result<ModelConfig> model_config_from_json(const Json& json);

}  // namespace llmops
