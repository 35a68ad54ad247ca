#include "layout/flops.h"

#include "layout/tensors.h"

namespace llmops {

double train_flops_per_token(const ModelConfig& c, int64_t seq) {
  const double block = static_cast<double>(c.d_model) * c.qkv_dim() + static_cast<double>(c.q_dim()) * c.d_model +
                       static_cast<double>(c.d_model) * (c.up_dim() + c.ffn);
  const double head = static_cast<double>(c.vocab) * c.d_model;
  // A query sees (seq + 1) / 2 keys on average; each costs a multiply-add per element in QK^T and in PV.
  const double attention = 2.0 * c.q_dim() * (static_cast<double>(seq) + 1) / 2;
  return 3 * 2 * (c.layers * (block + attention) + head);
}

double train_flops_per_token_nanogpt(const ModelConfig& c, int64_t seq) {
  double params = static_cast<double>(parameter_count(c));
  if (c.learned_positions) params -= static_cast<double>(c.positions) * c.d_model;
  return 6 * params + 12.0 * c.layers * c.d_model * seq;
}

double train_flops_per_token_llmc(const ModelConfig& c, int64_t seq) {
  return 6.0 * parameter_count(c) + 6.0 * c.layers * c.d_model * seq;
}

double adamw_bytes(int64_t params) { return 28.0 * static_cast<double>(params); }

}  // namespace llmops
