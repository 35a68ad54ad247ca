// Contracts of the elementwise ops, the loss, the optimizer and the sampler.
#include <algorithm>

#include "base/checked.h"
#include "kernels/contract.h"

namespace llmops {
namespace {

constexpr TypeRule kF32 = only(DType::f32);
constexpr TypeRule kF64 = only(DType::f64);
constexpr TypeRule kI32 = only(DType::i32);
constexpr TypeRule kI64 = only(DType::i64);
constexpr int64_t kControl = 4;  // norm, clip scale, all finite, first bad block

// One letter per axis of x, for ops that take any shape.
std::string_view axes_like(const ConstTensorView& x) {
  return std::string_view("abcde").substr(0, size_t(std::clamp<int>(x.rank, 0, kRankMax)));
}

}  // namespace

Contract contract_of(const SwigluArgs& a, DeviceId device) {
  Contract c("swiglu", device);
  c.out("out", a.out, kT, "nf").bind('F', 2 * c.size('f')).in("x", a.x, kT, "nF");
  return c.apart();
}

Contract contract_of(const SwigluBackwardArgs& a, DeviceId device) {
  Contract c("swiglu_backward", device);
  c.in("dout", a.dout, kT, "nf").bind('F', 2 * c.size('f')).in("x", a.x, kT, "nF").out("dx", a.dx, kT, "nF");
  return c.apart({{"dx", "x"}});
}

Contract contract_of(const GeluArgs& a, DeviceId device) {
  Contract c("gelu", device);
  c.in("x", a.x, kT, axes_like(a.x)).out("out", a.out, kT, axes_like(a.x));
  c.require(a.act != Activation::none, "act is none, expected gelu_tanh or gelu_erf");
  return c.apart();
}

Contract contract_of(const GeluBackwardArgs& a, DeviceId device) {
  Contract c("gelu_backward", device);
  const std::string_view axes = axes_like(a.x);
  c.in("x", a.x, kT, axes).in("dout", a.dout, kT, axes).out("dx", a.dx, kT, axes);
  c.require(a.act != Activation::none, "act is none, expected gelu_tanh or gelu_erf");
  return c.apart();
}

Contract contract_of(const AddArgs& a, DeviceId device) {
  Contract c("add", device);
  c.in("a", a.a, kT, axes_like(a.a)).in("b", a.b, kT, axes_like(a.a)).out("out", a.out, kT, axes_like(a.a));
  return c.apart({{"out", "a"}, {"out", "b"}});
}

Contract contract_of(const CastArgs& a, DeviceId device) {
  Contract c("cast", device);
  c.in("x", a.x, kAnyFloat, axes_like(a.x)).out("out", a.out, kAnyFloat, axes_like(a.x));
  c.require(a.x.dtype != a.out.dtype, "x and out have the same dtype; cast is between F32 and BF16");
  return c.apart();
}

Contract contract_of(const CrossEntropyArgs& a, DeviceId device) {
  Contract c("cross_entropy", device);
  c.in("logits", a.logits, kT, "nv").in("targets", a.targets, kI32, "n").out("losses", a.losses, kF32, "n");
  c.maybe_out("dlogits", a.dlogits, kT, "nv").finite("scale", a.scale);
  c.require(a.vocab > 0 && a.vocab <= c.size('v'), "vocab is outside [1, v of logits]");
  return c.apart({{"dlogits", "logits"}});
}

Contract contract_of(const SquareSumsArgs& a, DeviceId device) {
  Contract c("square_sums", device);
  c.in("x", a.x, kF32, "n").bind('B', ceil_div(c.size('n'), kSquareSumBlock)).out("sums", a.sums, kF64, "B");
  return c.apart();
}

Contract contract_of(const ClipScaleArgs& a, DeviceId device) {
  Contract c("clip_scale", device);
  c.in("sums", a.sums, kF64, "B").bind('C', kControl).out("control", a.control, kF32, "C").finite("clip", a.clip);
  return c.apart();
}

Contract contract_of(const AdamwArgs& a, DeviceId device) {
  Contract c("adamw", device);
  c.out("param", a.param, kF32, "n").out("m", a.m, kF32, "n").out("v", a.v, kF32, "n").in("grad", a.grad, kF32, "n");
  c.maybe_out("param_bf16", a.param_bf16, only(DType::bf16), "n").bind('C', kControl);
  c.in("control", a.control, kF32, "C");
  c.finite("lr", a.lr).positive("eps", a.eps).finite("weight_decay", a.weight_decay);
  c.require(a.beta1 >= 0 && a.beta1 < 1, "beta1 is outside [0, 1)");
  c.require(a.beta2 >= 0 && a.beta2 < 1, "beta2 is outside [0, 1)");
  c.require(a.step >= 1, "step is below 1; the first step is 1");
  c.require(!a.stochastic || a.param_bf16.present(), "stochastic is given without param_bf16, which alone is rounded");
  c.require(a.first_element >= 0 && a.first_element % 8 == 0, "first_element is not a multiple of 8 from 0 on");
  return c.apart();
}

Contract contract_of(const SampleArgs& a, DeviceId device) {
  Contract c("sample", device);
  c.in("logits", a.logits, kF32, "nv").in("temperature", a.temperature, kF32, "n").in("top_k", a.top_k, kI32, "n");
  c.in("top_p", a.top_p, kF32, "n").in("key", a.key, kI64, "n").in("position", a.position, kI64, "n");
  c.out("ids", a.ids, kI32, "n");
  c.require(a.vocab > 0 && a.vocab <= c.size('v'), "vocab is outside [1, v of logits]");
  return c.apart();
}

}  // namespace llmops
