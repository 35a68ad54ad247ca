// The three products of a linear layer and the norm of either kind, in the model's own terms.
#pragma once

#include "nn/block.h"

namespace llmops {

struct LinearOut {
  TensorView out;
  ConstTensorView residual;  // added; optional
  Activation act = Activation::none;
  TensorView pre;  // receives the value before the activation; optional
};

// out[m,o] = act(x[m,i] * W + bias) + residual
Status linear(const BlockCtx& ctx, ConstTensorView x, ConstTensorView weight, ConstTensorView bias,
              const LinearOut& to);
// dx[m,i] = dy[m,o] * W^T, times act'(pre) when `pre` is present
Status linear_dgrad(const BlockCtx& ctx, ConstTensorView dy, ConstTensorView weight, TensorView dx,
                    Activation act = Activation::none, ConstTensorView pre = {});
// dW (+)= x, dy; dbias (+)= column sums of dy where the layer has a bias
Status linear_wgrad(const BlockCtx& ctx, ConstTensorView x, ConstTensorView dy, TensorView dweight, TensorView dbias);

struct NormSaved {
  TensorView mean, rstd;
};
Status norm(const BlockCtx& ctx, int group, Role weight, Role bias, ConstTensorView x, TensorView out,
            const NormSaved& saved);
// grad [n,d] += gradient through the norm of dout (grad is the part that goes past it).
Status norm_backward(const BlockCtx& ctx, int group, Role weight, Role bias, ConstTensorView dout, ConstTensorView x,
                     const NormSaved& saved, TensorView grad, bool add_to_grad);

// run(first row, rows, gradients, accumulate) for the batch of n rows, or for each of its parts.
template <class Run>
Status part_gradients(const BlockCtx& ctx, int64_t n, const GradPair& place, const Run& run) {
  return part_gradients(ctx.stream, ctx.parts, n, place, ctx.accumulate, run);
}

// Columns [begin, begin + count) of a rank-2 view; and a [n, heads, e] view of such columns.
template <class Void>
BasicView<Void> columns(BasicView<Void> view, int64_t begin, int64_t count) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  view.data = static_cast<Byte*>(view.data) + begin * info(view.dtype).block_bytes;
  view.dim[1] = count;
  return view;
}
TensorView heads_view(TensorView view, int64_t begin, int64_t heads, int64_t head_dim);

}  // namespace llmops
