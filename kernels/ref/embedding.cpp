#include "kernels/cpu/tasks.h"
#include "kernels/ref/ref.h"

namespace llmops::ref {
namespace {

// table[ids[n], d] += dout[n, d] where ids[n] != frozen.
void scatter(const ConstTensorView& ids, const ConstTensorView& dout, const TensorView& table, bool accumulate, int32_t frozen) {
  const int64_t width = table.dim[1];
  std::vector<double> sums(static_cast<size_t>(table.elems()));
  for (int64_t n = 0; n < dout.dim[0]; ++n)
    for (int64_t d = 0; geti(ids, n) != frozen && d < width; ++d) sums[size_t(geti(ids, n) * width + d)] += get(dout, n, d);
  for (int64_t v = 0; v < table.dim[0]; ++v)
    for (int64_t d = 0; d < width; ++d)
      put(table, sums[size_t(v * width + d)] + (accumulate ? get(table, v, d) : 0), v, d);
}

}  // namespace

Status embedding(Stream&, const EmbeddingArgs& a) {
  LLMOPS_TRY(check_ids("embedding", "ids", a.ids, a.table.dim[0], false));
  const bool positions = a.pos_table.present();
  if (positions) LLMOPS_TRY(check_ids("embedding", "positions", a.positions, a.pos_table.dim[0], false));
  for (int64_t n = 0; n < a.out.dim[0]; ++n)
    for (int64_t d = 0; d < a.out.dim[1]; ++d)
      put(a.out, get(a.table, geti(a.ids, n), d) + (positions ? get(a.pos_table, geti(a.positions, n), d) : 0), n, d);
  return {};
}

Status embedding_backward(Stream&, const EmbeddingBackwardArgs& a) {
  LLMOPS_TRY(check_ids("embedding_backward", "ids", a.ids, a.dtable.dim[0], false));
  if (a.dpos_table.present())
    LLMOPS_TRY(check_ids("embedding_backward", "positions", a.positions, a.dpos_table.dim[0], false));
  scatter(a.ids, a.dout, a.dtable, a.accumulate, a.frozen_id);
  if (a.dpos_table.present()) scatter(a.positions, a.dout, a.dpos_table, a.accumulate_pos, -1);
  return {};
}

}  // namespace llmops::ref
