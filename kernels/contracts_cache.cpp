// Contracts of the KV cache store and of the plain sum.
#include "kernels/contract.h"

namespace llmops {

Contract contract_of(const KvStoreArgs& a, DeviceId device) {
  Contract c("kv_store", device);
  c.in("k", a.k, kT, "nke", Layout::strided).in("v", a.v, kT, "nke", Layout::strided).in("rows", a.rows, only(DType::i32), "n");
  c.out("k_cache", a.k_cache, kT, "mke", Layout::strided).out("v_cache", a.v_cache, kT, "mke", Layout::strided);
  c.maybe_out("q", a.q, kT, "nhe", Layout::strided).maybe_in("positions", a.positions, only(DType::i32), "n");
  c.bind('c', 2).maybe_in("cos_sin", a.cos_sin, only(DType::f32), "prc");
  c.require(a.q.present() == a.cos_sin.present() && a.positions.present() == a.cos_sin.present(),
            "q, positions and cos_sin are not given together");
  c.require(2 * c.size('r') <= c.size('e'), "cos_sin [p,r/2,2] turns more elements than a head has (r > e of k)");
  return c.apart();
}

Contract contract_of(const SumArgs& a, DeviceId device) {
  Contract c("sum", device);
  c.in("x", a.x, only(DType::f32), "n").bind('o', 1).out("out", a.out, only(DType::f64), "o");
  return c.apart();
}

}  // namespace llmops
