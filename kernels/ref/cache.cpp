#include "kernels/cpu/tasks.h"
#include "kernels/ref/ref.h"

namespace llmops::ref {

void turn_row(const ConstTensorView& x, int64_t n, const TensorView& out, int64_t to, const ConstTensorView& cos_sin,
              int64_t position, bool interleaved, bool inverse) {
  const int64_t half = cos_sin.dim[1];
  for (int64_t h = 0; h < x.dim[1]; ++h) {
    for (int64_t i = 0; i < half; ++i) {
      const int64_t first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + half;
      const double a = get(x, n, h, first), b = get(x, n, h, second);
      const double cos = get(cos_sin, position, i, 0), sin = get(cos_sin, position, i, 1) * (inverse ? -1 : 1);
      put(out, a * cos - b * sin, to, h, first);
      put(out, a * sin + b * cos, to, h, second);
    }
    for (int64_t e = 2 * half; e < x.dim[2]; ++e) put(out, get(x, n, h, e), to, h, e);
  }
}

Status rope(Stream&, const RopeArgs& a) {
  LLMOPS_TRY(check_ids("rope", "positions", a.positions, a.cos_sin.dim[0], false));
  for (int64_t n = 0; n < a.x.dim[0]; ++n)
    turn_row(a.x, n, a.out, n, a.cos_sin, geti(a.positions, n), a.interleaved, a.inverse);
  return {};
}

Status kv_store(Stream&, const KvStoreArgs& a) {
  const bool turns = a.cos_sin.present();
  LLMOPS_TRY(check_ids("kv_store", "rows", a.rows, a.k_cache.dim[0], false));
  if (turns) LLMOPS_TRY(check_ids("kv_store", "positions", a.positions, a.cos_sin.dim[0], false));
  const auto* rows = static_cast<const int32_t*>(a.rows.data);
  for (int64_t i = 0; i < a.k.dim[0]; ++i) {
    for (int64_t head = 0; head < a.k.dim[1]; ++head)
      for (int64_t e = 0; e < a.k.dim[2]; ++e) {
        put(a.k_cache, get(a.k, i, head, e), rows[i], head, e);
        put(a.v_cache, get(a.v, i, head, e), rows[i], head, e);
      }
    if (!turns) continue;
    turn_row(a.k, i, a.k_cache, rows[i], a.cos_sin, geti(a.positions, i), a.interleaved, false);
    turn_row(a.q, i, a.q, i, a.cos_sin, geti(a.positions, i), a.interleaved, false);
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
