#include "layout/activations.h"

#include <algorithm>

namespace llmops {

std::vector<ActRow> block_activations(const ModelConfig& c, int64_t n) {
  const bool layer_norm = c.norm == NormKind::layer;
  std::vector<ActRow> rows;
  const auto add = [&](Act act, std::string_view name, Shape dims, bool f32 = false) {
    rows.push_back({act, name, std::move(dims), f32, Keep::saved});
  };
  add(Act::residual, "residual", {n, c.d_model});
  if (layer_norm) add(Act::norm1_mean, "norm1 mean", {n}, true);
  add(Act::norm1_rstd, "norm1 rstd", {n}, true);
  add(Act::norm1_out, "norm1 out", {n, c.d_model});
  add(Act::qkv, "qkv", {n, c.qkv_dim()});
  if (c.qk_norm) {
    add(Act::qk_raw, "qk before norm", {n, c.q_dim() + c.kv_dim()});
    add(Act::q_rstd, "q norm rstd", {n, c.heads}, true);
    add(Act::k_rstd, "k norm rstd", {n, c.kv_heads}, true);
  }
  add(Act::attn_out, "attention out", {n, c.q_dim()});
  add(Act::attn_lse, "attention logsumexp", {n, c.heads}, true);
  add(Act::residual_mid, "residual mid", {n, c.d_model});
  if (layer_norm) add(Act::norm2_mean, "norm2 mean", {n}, true);
  add(Act::norm2_rstd, "norm2 rstd", {n}, true);
  add(Act::norm2_out, "norm2 out", {n, c.d_model});
  add(Act::mlp_pre, "mlp before activation", {n, c.up_dim()});
  add(Act::mlp_act, "mlp activation", {n, c.ffn});
  return rows;
}

std::vector<ActRow> head_activations(const ModelConfig& c, int64_t n) {
  std::vector<ActRow> rows;
  rows.push_back({Act::final_residual, "final residual", {n, c.d_model}});
  if (c.norm == NormKind::layer) rows.push_back({Act::final_mean, "final norm mean", {n}, true});
  rows.push_back({Act::final_rstd, "final norm rstd", {n}, true});
  rows.push_back({Act::final_out, "final norm out", {n, c.d_model}});
  rows.push_back({Act::losses, "losses", {n}, true});
  return rows;
}

std::vector<ActRow> transient_activations(const ModelConfig& c, int64_t n) {
  std::vector<ActRow> rows;
  const auto add = [&](Act act, std::string_view name, Shape dims) {
    rows.push_back({act, name, std::move(dims), false, Keep::transient});
  };
  add(Act::logits, "logits", {std::min(n, kHeadRows), c.vocab});
  add(Act::grad_residual, "residual gradient", {n, c.d_model});
  add(Act::grad_norm, "norm gradient", {n, c.d_model});
  add(Act::grad_mlp, "mlp gradient", {n, c.up_dim()});
  if (c.mlp == MlpKind::swiglu) add(Act::grad_wide, "mlp activation gradient", {n, c.ffn});
  add(Act::grad_attn, "attention out gradient", {n, c.q_dim()});
  add(Act::grad_qkv, "qkv gradient", {n, c.qkv_dim()});
  return rows;
}

std::vector<ActRow> inference_activations(const ModelConfig& c, int64_t n) {
  std::vector<ActRow> rows = block_activations(c, n);
  for (ActRow& row : rows) row.keep = Keep::transient;
  return rows;
}

int64_t bytes_of_rows(const std::vector<ActRow>& rows, DType dtype) {
  int64_t bytes = 0;
  for (const ActRow& row : rows) bytes += elems_of(row.dims) * (row.f32 ? 4 : info(dtype).block_bytes);
  return bytes;
}

}  // namespace llmops
