#include "nn/block.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "nn/linear.h"

namespace llmops {
namespace {

Activation activation(const ModelConfig& config) {
  return config.mlp == MlpKind::gelu_erf ? Activation::gelu_erf : Activation::gelu_tanh;
}

// The q, k and v columns of a fused [n, (h+2k)e] tensor as heads; qk are those of q and k in one.
struct Qkv {
  TensorView q, k, v, qk;
  Qkv(const ModelConfig& c, TensorView fused)
      : q(heads_view(fused, 0, c.heads, c.head_dim)),
        k(heads_view(fused, c.q_dim(), c.kv_heads, c.head_dim)),
        v(heads_view(fused, c.q_dim() + c.kv_dim(), c.kv_heads, c.head_dim)),
        qk(heads_view(fused, 0, c.heads + c.kv_heads, c.head_dim)) {}
};

Status rotate(const BlockCtx& ctx, const Batch& batch, TensorView x, bool inverse) {
  return rope(ctx.stream, {.x = x,
                           .positions = batch.positions,
                           .cos_sin = ctx.cos_sin,
                           .out = x,
                           .interleaved = ctx.config.rope.interleaved,
                           .inverse = inverse});
}

// With QK-norm the products for q and k go to qk_raw, which backward needs, and their norms to qkv.
Status project_qkv(const BlockCtx& ctx, int group, int64_t n, const Slot& slot) {
  const ModelConfig& c = ctx.config;
  const TensorView x = slot(Act::norm1_out, n), qkv = slot(Act::qkv, n), raw = slot(Act::qk_raw, n);
  const TensorView weight = ctx.weights.at(group, Role::qkv), bias = ctx.weights.at(group, Role::qkv_bias);
  if (!c.qk_norm) return linear(ctx, x, weight, bias, {.out = qkv});
  const int64_t qk = c.q_dim() + c.kv_dim();
  LLMOPS_TRY(linear(ctx, x, rows(weight, 0, qk), bias.present() ? rows(bias, 0, qk) : bias, {.out = raw}));
  LLMOPS_TRY(linear(ctx, x, rows(weight, qk, c.kv_dim()), bias.present() ? rows(bias, qk, c.kv_dim()) : bias,
                    {.out = columns(qkv, qk, c.kv_dim())}));
  const Qkv out(c, qkv);
  const float eps = static_cast<float>(c.norm_eps);
  LLMOPS_TRY(rms_norm(ctx.stream, {.x = heads_view(raw, 0, c.heads, c.head_dim),
                                   .delta = {},
                                   .weight = ctx.weights.at(group, Role::q_norm),
                                   .sum = {},
                                   .out = out.q,
                                   .rstd = slot(Act::q_rstd, n),
                                   .eps = eps}));
  return rms_norm(ctx.stream, {.x = heads_view(raw, c.q_dim(), c.kv_heads, c.head_dim),
                               .delta = {},
                               .weight = ctx.weights.at(group, Role::k_norm),
                               .sum = {},
                               .out = out.k,
                               .rstd = slot(Act::k_rstd, n),
                               .eps = eps});
}

// RoPE, in place but for a k that enters a cache: that is turned on its way.
Status turn_and_store(const BlockCtx& ctx, const Batch& batch, const Qkv& qkv, const KvCache& cache) {
  const bool turns = !ctx.config.learned_positions;
  if (!cache.k.present()) return turns ? rotate(ctx, batch, qkv.qk, false) : Status();
  KvStoreArgs store = {.k = qkv.k, .v = qkv.v, .rows = cache.kv_rows, .k_cache = cache.k, .v_cache = cache.v};
  if (turns) {
    store.q = qkv.q;
    store.positions = batch.positions;
    store.cos_sin = ctx.cos_sin;
    store.interleaved = ctx.config.rope.interleaved;
  }
  return kv_store(ctx.stream, store);
}

Status attend(const BlockCtx& ctx, const Batch& batch, const Slot& slot, const KvCache& cache) {
  const ModelConfig& c = ctx.config;
  const Qkv qkv(c, slot(Act::qkv, batch.n));
  LLMOPS_TRY(turn_and_store(ctx, batch, qkv, cache));
  return attention(ctx.stream, {.q = qkv.q,
                                .k = cache.k.present() ? cache.k : qkv.k,
                                .v = cache.v.present() ? cache.v : qkv.v,
                                .out = heads_view(slot(Act::attn_out, batch.n), 0, c.heads, c.head_dim),
                                .lse = slot(Act::attn_lse, batch.n),
                                .q_begin = batch.q_begin,
                                .kv_begin = batch.kv_begin,
                                .kv_len = batch.kv_len,
                                .q_pos0 = batch.q_pos0,
                                .kv_pos0 = batch.kv_pos0,
                                .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
                                .softcap = 0,
                                .window = 0,
                                .block_table = {},
                                .kv_max = batch.kv_max});
}

Status mlp_forward(const BlockCtx& ctx, int group, int64_t n, const Slot& slot, TensorView out) {
  const TensorView pre = slot(Act::mlp_pre, n), act = slot(Act::mlp_act, n);
  const TensorView up = ctx.weights.at(group, Role::mlp_up), up_bias = ctx.weights.at(group, Role::mlp_up_bias);
  if (ctx.config.mlp == MlpKind::swiglu) {
    LLMOPS_TRY(linear(ctx, slot(Act::norm2_out, n), up, up_bias, {.out = pre}));
    LLMOPS_TRY(swiglu(ctx.stream, {.x = pre, .out = act}));
  } else {
    LLMOPS_TRY(
        linear(ctx, slot(Act::norm2_out, n), up, up_bias, {.out = act, .act = activation(ctx.config), .pre = pre}));
  }
  return linear(ctx, act, ctx.weights.at(group, Role::mlp_down), ctx.weights.at(group, Role::mlp_down_bias),
                {.out = out, .residual = slot(Act::residual_mid, n)});
}

Status mlp_backward(const BlockCtx& ctx, int group, int64_t n, const Slot& slot, const Slot& scratch, TensorView grad) {
  const TensorView pre = slot(Act::mlp_pre, n), act = slot(Act::mlp_act, n);
  const TensorView dpre = scratch(Act::grad_mlp, n), dnorm = scratch(Act::grad_norm, n);
  const TensorView down = ctx.weights.at(group, Role::mlp_down);
  LLMOPS_TRY(
      linear_wgrad(ctx, act, grad, ctx.grads.at(group, Role::mlp_down), ctx.grads.at(group, Role::mlp_down_bias)));
  if (ctx.config.mlp == MlpKind::swiglu) {
    const TensorView dact = scratch(Act::grad_wide, n);
    LLMOPS_TRY(linear_dgrad(ctx, grad, down, dact));
    LLMOPS_TRY(swiglu_backward(ctx.stream, {.x = pre, .dout = dact, .dx = dpre}));
  } else {
    LLMOPS_TRY(linear_dgrad(ctx, grad, down, dpre, activation(ctx.config), pre));
  }
  LLMOPS_TRY(linear_wgrad(ctx, slot(Act::norm2_out, n), dpre, ctx.grads.at(group, Role::mlp_up),
                          ctx.grads.at(group, Role::mlp_up_bias)));
  LLMOPS_TRY(linear_dgrad(ctx, dpre, ctx.weights.at(group, Role::mlp_up), dnorm));
  return norm_backward(ctx, group, Role::norm2, Role::norm2_bias, dnorm, slot(Act::residual_mid, n),
                       {slot(Act::norm2_mean, n), slot(Act::norm2_rstd, n)}, grad, true);
}

// From the gradient of q and k after RoPE and QK-norm to that of the products, in place.
Status qk_backward(const BlockCtx& ctx, int group, const Batch& batch, const Slot& slot, const Qkv& dqkv) {
  const ModelConfig& c = ctx.config;
  if (!c.learned_positions) LLMOPS_TRY(rotate(ctx, batch, dqkv.qk, true));
  if (!c.qk_norm) return {};
  const TensorView raw = slot(Act::qk_raw, batch.n);
  struct Half {
    TensorView grad, raw, rstd;
    Role weight;
  };
  for (const Half& half :
       {Half{dqkv.q, heads_view(raw, 0, c.heads, c.head_dim), slot(Act::q_rstd, batch.n), Role::q_norm},
        Half{dqkv.k, heads_view(raw, c.q_dim(), c.kv_heads, c.head_dim), slot(Act::k_rstd, batch.n), Role::k_norm}})
    LLMOPS_TRY(part_gradients(ctx, batch.n, {ctx.grads.at(group, half.weight)},
                              [&](int64_t begin, int64_t n, const GradPair& to, bool accumulate) {
                                return rms_norm_backward(ctx.stream, {.dout = rows(half.grad, begin, n),
                                                                      .x = rows(half.raw, begin, n),
                                                                      .weight = ctx.weights.at(group, half.weight),
                                                                      .rstd = rows(half.rstd, begin, n),
                                                                      .dresidual = {},
                                                                      .dx = rows(half.grad, begin, n),
                                                                      .dweight = to[0],
                                                                      .accumulate = accumulate});
                              }));
  return {};
}

Status attention_block_backward(const BlockCtx& ctx, int group, const Batch& batch, const Slot& slot,
                                const Slot& scratch, TensorView grad) {
  const ModelConfig& c = ctx.config;
  const int64_t n = batch.n;
  const TensorView dattn = scratch(Act::grad_attn, n), dfused = scratch(Act::grad_qkv, n),
                   dnorm = scratch(Act::grad_norm, n);
  LLMOPS_TRY(linear_wgrad(ctx, slot(Act::attn_out, n), grad, ctx.grads.at(group, Role::attn_out),
                          ctx.grads.at(group, Role::attn_out_bias)));
  LLMOPS_TRY(linear_dgrad(ctx, grad, ctx.weights.at(group, Role::attn_out), dattn));
  const Qkv qkv(c, slot(Act::qkv, n)), dqkv(c, dfused);
  LLMOPS_TRY(attention_backward(ctx.stream, {.q = qkv.q,
                                             .k = qkv.k,
                                             .v = qkv.v,
                                             .out = heads_view(slot(Act::attn_out, n), 0, c.heads, c.head_dim),
                                             .dout = heads_view(dattn, 0, c.heads, c.head_dim),
                                             .lse = slot(Act::attn_lse, n),
                                             .q_begin = batch.q_begin,
                                             .kv_begin = batch.kv_begin,
                                             .kv_len = batch.kv_len,
                                             .q_pos0 = batch.q_pos0,
                                             .kv_pos0 = batch.kv_pos0,
                                             .dq = dqkv.q,
                                             .dk = dqkv.k,
                                             .dv = dqkv.v,
                                             .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
                                             .softcap = 0,
                                             .window = 0}));
  LLMOPS_TRY(qk_backward(ctx, group, batch, slot, dqkv));
  LLMOPS_TRY(linear_wgrad(ctx, slot(Act::norm1_out, n), dfused, ctx.grads.at(group, Role::qkv),
                          ctx.grads.at(group, Role::qkv_bias)));
  LLMOPS_TRY(linear_dgrad(ctx, dfused, ctx.weights.at(group, Role::qkv), dnorm));
  return norm_backward(ctx, group, Role::norm1, Role::norm1_bias, dnorm, slot(Act::residual, n),
                       {slot(Act::norm1_mean, n), slot(Act::norm1_rstd, n)}, grad, true);
}

}  // namespace

Status block_forward(const BlockCtx& ctx, int layer, const Batch& batch, const Slot& slot, const KvCache& cache,
                     TensorView out) {
  const int group = layer + 1;
  const int64_t n = batch.n;
  const TensorView residual = slot(Act::residual, n), mid = slot(Act::residual_mid, n);
  LLMOPS_TRY(norm(ctx, group, Role::norm1, Role::norm1_bias, residual, slot(Act::norm1_out, n),
                  {slot(Act::norm1_mean, n), slot(Act::norm1_rstd, n)}));
  LLMOPS_TRY(project_qkv(ctx, group, n, slot));
  LLMOPS_TRY(attend(ctx, batch, slot, cache));
  LLMOPS_TRY(linear(ctx, slot(Act::attn_out, n), ctx.weights.at(group, Role::attn_out),
                    ctx.weights.at(group, Role::attn_out_bias), {.out = mid, .residual = residual}));
  LLMOPS_TRY(norm(ctx, group, Role::norm2, Role::norm2_bias, mid, slot(Act::norm2_out, n),
                  {slot(Act::norm2_mean, n), slot(Act::norm2_rstd, n)}));
  return mlp_forward(ctx, group, n, slot, out);
}

Status block_backward(const BlockCtx& ctx, int layer, const Batch& batch, const Slot& slot, const Slot& scratch,
                      TensorView grad) {
  const int group = layer + 1;
  LLMOPS_TRY(mlp_backward(ctx, group, batch.n, slot, scratch, grad));
  LLMOPS_TRY(attention_block_backward(ctx, group, batch, slot, scratch, grad));
  return ctx.grad_ready ? ctx.grad_ready(group) : Status();
}

std::vector<float> rope_table(const ModelConfig& config, int64_t positions) {
  const RopeConfig& rope = config.rope;
  const int64_t half = config.head_dim / 2;
  std::vector<float> table(static_cast<size_t>(positions * half * 2));
  for (int64_t i = 0; i < half; ++i) {
    double frequency = std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim));
    if (rope.scaling == RopeScaling::linear) frequency /= rope.factor;
    if (rope.scaling == RopeScaling::llama3) {
      const double original = static_cast<double>(rope.original_positions);
      const double wavelength = 2 * std::numbers::pi / frequency;
      const double smooth =
          (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
      if (wavelength > original / rope.low_freq_factor)
        frequency /= rope.factor;
      else if (wavelength >= original / rope.high_freq_factor)
        frequency *= (1 - smooth) / rope.factor + smooth;
    }
    for (int64_t p = 0; p < positions; ++p) {
      const double angle = static_cast<double>(p) * frequency;
      table[static_cast<size_t>((p * half + i) * 2)] = static_cast<float>(std::cos(angle));
      table[static_cast<size_t>((p * half + i) * 2 + 1)] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

}  // namespace llmops
