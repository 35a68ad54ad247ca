// Contracts of the embedding and the norms.
#include "kernels/contract.h"

namespace llmops {
namespace {

constexpr TypeRule kF32 = only(DType::f32);
constexpr TypeRule kI32 = only(DType::i32);

// rms_norm takes [n,d] or, for a norm per head, [n,h,d].
std::string_view rms_axes(const ConstTensorView& x) { return x.rank == 3 ? "nhd" : "nd"; }
std::string_view rms_rows(const ConstTensorView& x) { return x.rank == 3 ? "nh" : "n"; }

}  // namespace

Contract contract_of(const EmbeddingArgs& a, DeviceId device) {
  Contract c("embedding", device);
  c.in("ids", a.ids, kI32, "n").in("table", a.table, kT, "vd").out("out", a.out, kT, "nd");
  c.maybe_in("positions", a.positions, kI32, "n").maybe_in("pos_table", a.pos_table, kT, "pd");
  c.require(a.positions.present() == a.pos_table.present(), "positions and pos_table come together or not at all");
  return c.apart();
}

Contract contract_of(const EmbeddingBackwardArgs& a, DeviceId device) {
  Contract c("embedding_backward", device);
  c.in("ids", a.ids, kI32, "n").in("dout", a.dout, kT, "nd").out("dtable", a.dtable, kF32, "vd");
  c.maybe_in("positions", a.positions, kI32, "n").maybe_out("dpos_table", a.dpos_table, kF32, "pd");
  c.require(a.positions.present() == a.dpos_table.present(), "positions and dpos_table come together or not at all");
  return c.apart();
}

Contract contract_of(const LayerNormArgs& a, DeviceId device) {
  Contract c("layer_norm", device);
  c.in("x", a.x, kT, "nd").maybe_in("delta", a.delta, kT, "nd");
  c.in("weight", a.weight, kT, "d").maybe_in("bias", a.bias, kT, "d");
  c.maybe_out("sum", a.sum, kT, "nd").out("out", a.out, kT, "nd");
  c.maybe_out("mean", a.mean, kF32, "n").maybe_out("rstd", a.rstd, kF32, "n");
  c.require(a.delta.present() == a.sum.present(), "delta and sum come together or not at all");
  c.require(a.mean.present() == a.rstd.present(), "mean and rstd come together or not at all");
  c.require(c.size('d') > 0, "a row has no elements (d = 0)");
  return c.positive("eps", a.eps).apart();
}

Contract contract_of(const LayerNormBackwardArgs& a, DeviceId device) {
  Contract c("layer_norm_backward", device);
  c.in("dout", a.dout, kT, "nd").in("x", a.x, kT, "nd").in("weight", a.weight, kT, "d");
  c.in("mean", a.mean, kF32, "n").in("rstd", a.rstd, kF32, "n").maybe_in("dresidual", a.dresidual, kT, "nd");
  c.out("dx", a.dx, kT, "nd").out("dweight", a.dweight, kF32, "d").maybe_out("dbias", a.dbias, kF32, "d");
  c.require(c.size('d') > 0, "a row has no elements (d = 0)");
  return c.apart({{"dx", "dout"}, {"dx", "dresidual"}});
}

Contract contract_of(const RmsNormArgs& a, DeviceId device) {
  Contract c("rms_norm", device);
  const std::string_view axes = rms_axes(a.x);
  c.in("x", a.x, kT, axes, Layout::strided).maybe_in("delta", a.delta, kT, axes, Layout::strided);
  c.in("weight", a.weight, kT, "d");
  c.maybe_out("sum", a.sum, kT, axes, Layout::strided).out("out", a.out, kT, axes, Layout::strided);
  c.maybe_out("rstd", a.rstd, kF32, rms_rows(a.x));
  c.require(a.delta.present() == a.sum.present(), "delta and sum come together or not at all");
  c.require(c.size('d') > 0, "a row has no elements (d = 0)");
  return c.positive("eps", a.eps).apart({{"out", "x"}});
}

Contract contract_of(const RmsNormBackwardArgs& a, DeviceId device) {
  Contract c("rms_norm_backward", device);
  const std::string_view axes = rms_axes(a.x);
  c.in("dout", a.dout, kT, axes, Layout::strided).in("x", a.x, kT, axes, Layout::strided);
  c.in("weight", a.weight, kT, "d").in("rstd", a.rstd, kF32, rms_rows(a.x));
  c.maybe_in("dresidual", a.dresidual, kT, axes, Layout::strided).out("dx", a.dx, kT, axes, Layout::strided);
  c.out("dweight", a.dweight, kF32, "d");
  c.require(c.size('d') > 0, "a row has no elements (d = 0)");
  return c.apart({{"dx", "dout"}, {"dx", "dresidual"}});
}

}  // namespace llmops
