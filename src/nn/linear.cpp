#include "nn/linear.h"

namespace llmops {

Status linear(const BlockCtx& ctx, ConstTensorView x, ConstTensorView weight, ConstTensorView bias,
              const LinearOut& to) {
  return matmul(ctx.stream, {.a = x,
                             .b = {.data = weight, .pack = Pack::plain, .scales = {}, .group = 0},
                             .out = to.out,
                             .bias = bias,
                             .residual = to.residual,
                             .aux = to.pre,
                             .act_backward = {},
                             .act = to.act,
                             .a_trans = false,
                             .b_trans = !ctx.config.weights_in_out,
                             .accumulate = false});
}

Status linear_dgrad(const BlockCtx& ctx, ConstTensorView dy, ConstTensorView weight, TensorView dx, Activation act,
                    ConstTensorView pre) {
  return matmul(ctx.stream, {.a = dy,
                             .b = {.data = weight, .pack = Pack::plain, .scales = {}, .group = 0},
                             .out = dx,
                             .bias = {},
                             .residual = {},
                             .aux = {},
                             .act_backward = pre,
                             .act = act,
                             .a_trans = false,
                             .b_trans = ctx.config.weights_in_out,
                             .accumulate = false});
}

Status linear_wgrad(const BlockCtx& ctx, ConstTensorView x, ConstTensorView dy, TensorView dweight, TensorView dbias) {
  WeightGradient args = {dy, x, dweight, dbias, {}, ctx.accumulate};
  if (ctx.config.weights_in_out) args = {x, dy, dweight, {}, dbias, ctx.accumulate};
  return weight_gradient(ctx.stream, ctx.parts, args);
}

Status norm(const BlockCtx& ctx, int group, Role weight, Role bias, ConstTensorView x, TensorView out,
            const NormSaved& saved) {
  const float eps = static_cast<float>(ctx.config.norm_eps);
  if (ctx.config.norm == NormKind::rms)
    return rms_norm(ctx.stream, {.x = x,
                                 .delta = {},
                                 .weight = ctx.weights.at(group, weight),
                                 .sum = {},
                                 .out = out,
                                 .rstd = saved.rstd,
                                 .eps = eps});
  return layer_norm(ctx.stream, {.x = x,
                                 .delta = {},
                                 .weight = ctx.weights.at(group, weight),
                                 .bias = ctx.weights.at(group, bias),
                                 .sum = {},
                                 .out = out,
                                 .mean = saved.mean,
                                 .rstd = saved.rstd,
                                 .eps = eps});
}

Status norm_backward(const BlockCtx& ctx, int group, Role weight, Role bias, ConstTensorView dout, ConstTensorView x,
                     const NormSaved& saved, TensorView grad, bool add_to_grad) {
  const GradPair place = {ctx.grads.at(group, weight), ctx.grads.at(group, bias)};
  return part_gradients(ctx, x.dim[0], place, [&](int64_t begin, int64_t n, const GradPair& to, bool accumulate) {
    const TensorView dx = rows(grad, begin, n);
    const ConstTensorView past = add_to_grad ? ConstTensorView(dx) : ConstTensorView();
    if (ctx.config.norm == NormKind::rms)
      return rms_norm_backward(ctx.stream, {.dout = rows(dout, begin, n),
                                            .x = rows(x, begin, n),
                                            .weight = ctx.weights.at(group, weight),
                                            .rstd = rows(saved.rstd, begin, n),
                                            .dresidual = past,
                                            .dx = dx,
                                            .dweight = to[0],
                                            .accumulate = accumulate});
    return layer_norm_backward(ctx.stream, {.dout = rows(dout, begin, n),
                                            .x = rows(x, begin, n),
                                            .weight = ctx.weights.at(group, weight),
                                            .mean = rows(saved.mean, begin, n),
                                            .rstd = rows(saved.rstd, begin, n),
                                            .dresidual = past,
                                            .dx = dx,
                                            .dweight = to[0],
                                            .dbias = to[1],
                                            .accumulate = accumulate});
  });
}

TensorView heads_view(TensorView view, int64_t begin, int64_t heads, int64_t head_dim) {
  view = columns(view, begin, heads * head_dim);
  view.rank = 3;
  view.dim[1] = heads;
  view.dim[2] = head_dim;
  view.stride[1] = head_dim;
  view.stride[2] = 1;
  return view;
}

}  // namespace llmops
