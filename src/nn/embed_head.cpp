// The two ends of a model: embedding and head.
#include <algorithm>

#include "nn/linear.h"

namespace llmops {
namespace {

constexpr int kEmbed = 0;

int head_group(const ModelConfig& config) { return static_cast<int>(config.layers) + 1; }

// The head's matrix is [v,d] whatever the orientation of the blocks' matrices.
ConstTensorView head_weight(const BlockCtx& ctx) {
  return ctx.config.tied_head ? ctx.weights.at(kEmbed, Role::token_table)
                              : ctx.weights.at(head_group(ctx.config), Role::head);
}

// run(first row, rows, gradients of group 0) for the batch or each of its parts.
template <class Run>
Status embed_parts(const BlockCtx& ctx, int64_t n, const Run& run) {
  if (!ctx.parts) return run(int64_t{0}, n, ctx.grads);
  for (int i = 0; i < ctx.parts->count(); ++i) {
    const int64_t begin = ctx.parts->begin[i];
    LLMOPS_TRY(run(begin, ctx.parts->begin[i + 1] - begin, ctx.parts->embed[i]));
  }
  return {};
}

MatmulArgs product(ConstTensorView a, ConstTensorView b, TensorView out) {
  return {.a = a,
          .b = {.data = b, .pack = Pack::plain, .scales = {}, .group = 0},
          .out = out,
          .bias = {},
          .residual = {},
          .aux = {},
          .act_backward = {},
          .act = Activation::none,
          .a_trans = false,
          .b_trans = false,
          .accumulate = false};
}

Status logits_of(const BlockCtx& ctx, ConstTensorView x, TensorView logits) {
  MatmulArgs args = product(x, head_weight(ctx), logits);
  args.b_trans = true;
  return matmul(ctx.stream, args);
}

// dlogits [n,v], x [n,d]: with parts the whole batch.
Status head_wgrad(const BlockCtx& ctx, ConstTensorView dlogits, ConstTensorView x, bool accumulate) {
  if (!ctx.config.tied_head)
    return weight_gradient(ctx.stream, ctx.parts,
                           {dlogits, x, ctx.grads.at(head_group(ctx.config), Role::head), {}, {}, accumulate});
  return embed_parts(ctx, x.dim[0], [&](int64_t begin, int64_t n, const FlatView& grads) {
    return weight_gradient(
        ctx.stream, nullptr,
        {rows(dlogits, begin, n), rows(x, begin, n), grads.at(kEmbed, Role::token_table), {}, {}, accumulate});
  });
}

// Loss of rows [begin, begin + count), and with dout present their part of the head's backward pass. Chunks are
// multiples of the matmul's block of 512 k, so the weight gradient has the bits of one product over all rows.
Status head_chunk(const BlockCtx& ctx, const Batch& batch, const Slot& slot, const Slot& scratch, float scale,
                  int64_t begin, int64_t count, TensorView dout) {
  const ConstTensorView x = rows(slot(Act::final_out, batch.n), begin, count);
  const TensorView logits = scratch(Act::logits, count);
  LLMOPS_TRY(logits_of(ctx, x, logits));
  LLMOPS_TRY(cross_entropy(ctx.stream, {.logits = logits,
                                        .targets = rows(batch.targets, begin, count),
                                        .losses = rows(slot(Act::losses, batch.n), begin, count),
                                        .dlogits = dout.present() ? logits : TensorView(),
                                        .vocab = ctx.config.vocab,
                                        .scale = scale}));
  if (!dout.present()) return {};
  LLMOPS_TRY(head_wgrad(ctx, logits, x, ctx.accumulate || begin > 0));
  return matmul(ctx.stream, product(logits, head_weight(ctx), rows(dout, begin, count)));
}

}  // namespace

Status embed_forward(const BlockCtx& ctx, const Batch& batch, TensorView out) {
  const TensorView positions = ctx.weights.at(kEmbed, Role::position_table);
  return embedding(ctx.stream, {.ids = batch.tokens,
                                .positions = positions.present() ? batch.positions : ConstTensorView(),
                                .table = ctx.weights.at(kEmbed, Role::token_table),
                                .pos_table = positions,
                                .out = out});
}

Status embed_backward(const BlockCtx& ctx, const Batch& batch, ConstTensorView dout) {
  LLMOPS_TRY(embed_parts(ctx, batch.n, [&](int64_t begin, int64_t n, const FlatView& grads) {
    const TensorView dpos = grads.at(kEmbed, Role::position_table);
    return embedding_backward(
        ctx.stream, {.ids = rows(batch.tokens, begin, n),
                     .positions = dpos.present() ? rows(batch.positions, begin, n) : ConstTensorView(),
                     .dout = rows(dout, begin, n),
                     .dtable = grads.at(kEmbed, Role::token_table),
                     .dpos_table = dpos,
                     .accumulate = ctx.accumulate || ctx.config.tied_head,
                     .accumulate_pos = ctx.accumulate,
                     .frozen_id = static_cast<int32_t>(ctx.config.pad_id)});
  }));
  if (ctx.parts) LLMOPS_TRY(fold_embed(ctx.stream, *ctx.parts));
  return ctx.grad_ready ? ctx.grad_ready(kEmbed) : Status();
}

Status head_loss(const BlockCtx& ctx, const Batch& batch, const Slot& slot, const Slot& scratch, float scale,
                 TensorView grad) {
  const int group = head_group(ctx.config);
  const int64_t n = batch.n;
  const NormSaved saved = {slot(Act::final_mean, n), slot(Act::final_rstd, n)};
  const TensorView residual = slot(Act::final_residual, n);
  LLMOPS_TRY(norm(ctx, group, Role::final_norm, Role::final_norm_bias, residual, slot(Act::final_out, n), saved));
  const TensorView dout = grad.present() ? scratch(Act::grad_norm, n) : TensorView();
  for (int64_t begin = 0; begin < n; begin += kHeadRows)
    LLMOPS_TRY(head_chunk(ctx, batch, slot, scratch, scale, begin, std::min(kHeadRows, n - begin), dout));
  if (!grad.present()) return {};
  LLMOPS_TRY(norm_backward(ctx, group, Role::final_norm, Role::final_norm_bias, dout, residual, saved, grad, false));
  return ctx.grad_ready ? ctx.grad_ready(group) : Status();
}

Status head_logits(const BlockCtx& ctx, ConstTensorView residual, TensorView norm_out, TensorView logits) {
  LLMOPS_TRY(norm(ctx, head_group(ctx.config), Role::final_norm, Role::final_norm_bias, residual, norm_out, {}));
  return logits_of(ctx, norm_out, logits);
}

}  // namespace llmops
