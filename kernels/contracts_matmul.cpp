// Contracts of the matmul family, rope and attention.
#include "kernels/contract.h"

namespace llmops {
namespace {

constexpr TypeRule kF32 = only(DType::f32);
constexpr TypeRule kI32 = only(DType::i32);
constexpr TypeRule kBytes = only(DType::u8);

void attention_scalars(Contract& c, float scale, float softcap, int32_t window) {
  c.finite("scale", scale).finite("softcap", softcap);
  c.require(softcap >= 0, "softcap is below 0; 0 means none");
  c.require(window >= 0, "window is below 0; 0 means none");
  c.require(c.size('k') > 0 && c.size('h') % c.size('k') == 0,
            "the query heads (h of q) are not a multiple of the KV heads (k of k and v)");
}

template <class Args>
void attention_sequences(Contract& c, const Args& a) {
  c.in("kv_len", a.kv_len, kI32, "s");
  c.in("q_pos0", a.q_pos0, kI32, "s").in("kv_pos0", a.kv_pos0, kI32, "s");
  c.bind('S', c.size('s') + 1).in("q_begin", a.q_begin, kI32, "S");
}

}  // namespace

Contract contract_of(const MatmulArgs& a, DeviceId device) {
  Contract c("matmul", device);
  c.in("a", a.a, kT, a.a_trans ? "km" : "mk", Layout::strided).out("out", a.out, kAnyFloat, "mn", Layout::strided);
  if (a.b.pack == Pack::plain) {
    c.in("b", a.b.data, kT, a.b_trans ? "nk" : "kn", Layout::strided);
  } else {
    if (c.ok()) c.bind('W', matmul_pack_bytes(a.a.dtype, c.size('k'), c.size('n')));
    c.in("b (panels)", a.b.data, kBytes, "W").aligned("b (panels)", a.b.data.data);
  }
  c.maybe_in("bias", a.bias, kT, "n").maybe_in("residual", a.residual, kT, "mn", Layout::strided);
  c.maybe_out("aux", a.aux, kT, "mn", Layout::strided);
  c.maybe_in("act_backward", a.act_backward, kT, "mn", Layout::strided);
  c.maybe_out("a_sums", a.a_sums, kF32, "m").maybe_out("b_sums", a.b_sums, kF32, "n");
  const bool act = a.act != Activation::none;
  const bool backward = a.act_backward.present();
  c.require(!a.b.scales.present() && a.b.group == 0, "b has scales; quantised weights are not supported");
  c.require(!(a.accumulate && (act || a.residual.present())), "accumulate excludes an activation and a residual");
  c.require(act || !a.aux.present(), "aux is given without an activation");
  c.require(act || !backward, "act_backward is given without an activation");
  c.require(!a.a_sums.present() || a.a_trans, "a_sums is given for an a that is not stored [k,m]");
  c.require(!a.b_sums.present() || (a.b.pack == Pack::plain && !a.b_trans),
            "b_sums is given for a b that is not stored [k,n]");
  c.require(!a.a_sums.present() || !a.b_sums.present(), "both a_sums and b_sums are given");
  c.require(!(backward && (a.bias.present() || a.residual.present() || a.aux.present())),
            "act_backward excludes bias, residual and aux");
  return c.apart();
}

Contract contract_of(const MatmulPackArgs& a, DeviceId device) {
  Contract c("matmul_pack", device);
  c.in("b", a.b, kT, a.b_trans ? "nk" : "kn", Layout::strided);
  if (c.ok()) c.bind('W', matmul_pack_bytes(a.b.dtype, c.size('k'), c.size('n')));
  c.out("out", a.out, kBytes, "W").aligned("out", a.out.data);
  return c.apart();
}

Contract contract_of(const BiasBackwardArgs& a, DeviceId device) {
  Contract c("bias_backward", device);
  return c.in("dout", a.dout, kT, "mn").out("dbias", a.dbias, kF32, "n").apart();
}

Contract contract_of(const RopeArgs& a, DeviceId device) {
  Contract c("rope", device);
  c.in("x", a.x, kT, "nhe", Layout::strided).in("positions", a.positions, kI32, "n");
  c.bind('c', 2).in("cos_sin", a.cos_sin, kF32, "prc").out("out", a.out, kT, "nhe", Layout::strided);
  c.require(2 * c.size('r') <= c.size('e'), "cos_sin [p,r/2,2] turns more elements than a head has (r > e of x)");
  return c.apart({{"out", "x"}});
}

Contract contract_of(const AttentionArgs& a, DeviceId device) {
  Contract c("attention", device);
  c.in("q", a.q, kT, "nhe", Layout::strided).in("k", a.k, kT, "mke", Layout::strided);
  c.in("v", a.v, kT, "mke", Layout::strided).out("out", a.out, kT, "nhe").out("lse", a.lse, kF32, "nh");
  attention_sequences(c, a);
  if (a.block_table.present()) {
    c.in("block_table", a.block_table, kI32, "sw");
    c.require(!a.kv_begin.present(), "kv_begin and block_table are both given; a paged cache has no kv_begin");
    c.require(c.size('m') % kKvBlock == 0, "k and v are no pool of whole blocks: m is not a multiple of 16");
  } else {
    c.in("kv_begin", a.kv_begin, kI32, "s");
  }
  attention_scalars(c, a.scale, a.softcap, a.window);
  c.require(a.kv_max >= 0, "kv_max is below 0; 0 means not known");
  return c.apart();
}

Contract contract_of(const AttentionBackwardArgs& a, DeviceId device) {
  Contract c("attention_backward", device);
  c.in("q", a.q, kT, "nhe", Layout::strided).in("k", a.k, kT, "mke", Layout::strided);
  c.in("v", a.v, kT, "mke", Layout::strided).in("out", a.out, kT, "nhe").in("dout", a.dout, kT, "nhe");
  c.in("lse", a.lse, kF32, "nh").out("dq", a.dq, kT, "nhe", Layout::strided);
  c.out("dk", a.dk, kT, "mke", Layout::strided).out("dv", a.dv, kT, "mke", Layout::strided);
  attention_sequences(c, a);
  c.in("kv_begin", a.kv_begin, kI32, "s");
  attention_scalars(c, a.scale, a.softcap, a.window);
  return c.apart();
}

}  // namespace llmops
