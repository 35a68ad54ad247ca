// Transformer blocks, forward and backward, written out over kernels: no autograd, no tape.
//
// A model is embed, blocks 0..l-1, head (groups 0, 1..l, l+1 of layout's params). Axes as in kernels/ops.h. All
// matrices of a block are [in,out] or [out,in] by config.weights_in_out. Residual stream r: block input -> r_mid = r +
// attention(norm1(r)) -> r_out = r_mid + mlp(norm2(r_mid)).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/ops.h"
#include "layout/model_config.h"
#include "nn/parts.h"
#include "nn/slot.h"

namespace llmops {

// A ragged batch on the device: n token rows of s sequences. Training: kv rows are the query rows (kv_begin = q_begin).
struct Batch {
  int64_t n = 0, s = 0;
  ConstTensorView tokens, positions;                           // i32 [n]
  ConstTensorView targets;                                     // i32 [n], -1: no loss; absent in inference
  ConstTensorView q_begin, kv_begin, kv_len, q_pos0, kv_pos0;  // i32, see AttentionArgs
  int64_t kv_max = 0;
};

// Everything a block needs besides its tensors.
struct BlockCtx {
  Stream& stream;
  const ModelConfig& config;
  FlatView weights;         // compute dtype
  FlatView grads;           // f32; absent in inference
  ConstTensorView cos_sin;  // f32 [p, e/2, 2]; absent with learned positions
  bool accumulate = false;  // add to the gradients instead of overwriting them; not with parts
  const GradParts* parts = nullptr;  // of the batch, which then has at most kHeadRows rows; null: it is one
  // Called when the last gradient of a group is enqueued (buckets hang here). May be empty.
  std::function<Status(int group)> grad_ready;
};

// KV cache of one block: rows [m,k,e] each; new tokens go to row kv_rows[i]. Absent in training.
struct KvCache {
  TensorView k, v;
  ConstTensorView kv_rows;  // i32 [n]
};

// cos and sin of every position, computed in double. Llama-3 scaling after Meta's apply_scaling (llama3 reference
// model).
std::vector<float> rope_table(const ModelConfig& config, int64_t positions);

Status embed_forward(const BlockCtx& ctx, const Batch& batch, TensorView out);
// grads of the token table: added when the head has already written them (tied), or with ctx.accumulate.
Status embed_backward(const BlockCtx& ctx, const Batch& batch, ConstTensorView dout);

Status block_forward(const BlockCtx& ctx, int layer, const Batch& batch, const Slot& slot, const KvCache& cache,
                     TensorView out);
// grad [n,d]: gradient of the block's output on entry, of its input on return.
Status block_backward(const BlockCtx& ctx, int layer, const Batch& batch, const Slot& slot, const Slot& scratch,
                      TensorView grad);

// losses[n] of the final norm's input; with `grad` present also the backward pass of the head: the gradient of that
// input [n,d] and the head's weight gradients, chunk of rows by chunk. scale = 1 / valid tokens of the whole batch.
Status head_loss(const BlockCtx& ctx, const Batch& batch, const Slot& slot, const Slot& scratch, float scale,
                 TensorView grad);
// logits[n,v] of all rows (inference).
Status head_logits(const BlockCtx& ctx, ConstTensorView residual, TensorView norm_out, TensorView logits);

}  // namespace llmops
