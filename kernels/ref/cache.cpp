#include "kernels/cpu/tasks.h"
#include "kernels/ref/ref.h"

namespace llmops::ref {

Status kv_store(Stream&, const KvStoreArgs& a) {
  LLMOPS_TRY(check_ids("kv_store", "rows", a.rows, a.k_cache.dim[0], false));
  const auto* rows = static_cast<const int32_t*>(a.rows.data);
  for (int64_t i = 0; i < a.k.dim[0]; ++i)
    for (int64_t head = 0; head < a.k.dim[1]; ++head)
      for (int64_t e = 0; e < a.k.dim[2]; ++e) {
        put(a.k_cache, get(a.k, i, head, e), rows[i], head, e);
        put(a.v_cache, get(a.v, i, head, e), rows[i], head, e);
      }
  return {};
}

Status sum(Stream&, const SumArgs& a) {
  double total = a.accumulate ? *static_cast<const double*>(a.out.data) : 0.0;
  for (int64_t i = 0; i < a.x.dim[0]; ++i) total += get(a.x, i);
  *static_cast<double*>(a.out.data) = total;
  return {};
}

}  // namespace llmops::ref
