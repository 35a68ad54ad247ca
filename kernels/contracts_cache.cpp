// Contracts of the KV cache store and of the plain sum.
#include "kernels/contract.h"

namespace llmops {

Contract contract_of(const KvStoreArgs& a, DeviceId device) {
  Contract c("kv_store", device);
  c.in("k", a.k, kT, "nke", Layout::strided).in("v", a.v, kT, "nke", Layout::strided).in("rows", a.rows, only(DType::i32), "n");
  c.out("k_cache", a.k_cache, kT, "mke", Layout::strided).out("v_cache", a.v_cache, kT, "mke", Layout::strided);
  return c.apart();
}

Contract contract_of(const SumArgs& a, DeviceId device) {
  Contract c("sum", device);
  c.in("x", a.x, only(DType::f32), "n").bind('o', 1).out("out", a.out, only(DType::f64), "o");
  return c.apart();
}

}  // namespace llmops
