// Embedding lookup and its gradient.
#include "kernels/cpu/entries.h"
#include "kernels/cpu/tasks.h"
#include "kernels/cpu/vec.h"

#include "kernels/cpu/lanes.h"

namespace llmops::LLMOPS_ISA {
namespace {

template <class T>
void lookup_row(const EmbeddingArgs& a, int64_t r) {
  const int64_t d = a.out.dim[1];
  const T* from = row<T>(a.table, static_cast<const int32_t*>(a.ids.data)[r]);
  T* out = row<T>(a.out, r);
  if (!a.pos_table.present()) {
    std::memcpy(out, from, static_cast<size_t>(d) * sizeof(T));
    return;
  }
  const T* position = row<T>(a.pos_table, static_cast<const int32_t*>(a.positions.data)[r]);
  for_lanes(d, [&](int64_t i, int n) LLMOPS_BODY {
    store_part(out + i, load_part(from + i, n) + load_part(position + i, n), n);
  });
}

template <class T>
Status forward(Stream& stream, const EmbeddingArgs& a) {
  LLMOPS_TRY(check_ids("embedding", "ids", a.ids, a.table.dim[0], false));
  if (a.pos_table.present()) LLMOPS_TRY(check_ids("embedding", "positions", a.positions, a.pos_table.dim[0], false));
  for_row_ranges(stream, a.out.dim[0], a.out.dim[1], [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) lookup_row<T>(a, r);
  });
  return {};
}

void clear_rows(Stream& stream, const TensorView& table) {
  for_row_ranges(stream, table.dim[0], table.dim[1], [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      std::memset(row<float>(table, r), 0, static_cast<size_t>(table.dim[1]) * sizeof(float));
  });
}

// table[ids[r], first + (0..count)] += dout[r, first + (0..count)], ascending in r, but for ids[r] == frozen.
template <class T>
void scatter_columns(const ConstTensorView& ids, const ConstTensorView& dout, const TensorView& table, int32_t frozen,
                     int64_t first, int64_t count) {
  const auto* id = static_cast<const int32_t*>(ids.data);
  for (int64_t r = 0; r < ids.dim[0]; ++r) {
    if (id[r] == frozen) continue;
    const T* from = row<T>(dout, r) + first;
    float* to = row<float>(table, id[r]) + first;
    for_lanes(count, [&](int64_t i, int n) LLMOPS_BODY {
      store_part(to + i, load_part(to + i, n) + load_part(from + i, n), n);
    });
  }
}

// A task owns 64 columns of every row, so tokens may repeat without atomics, sorting or copies, and only rows that
// occur are touched (but for clearing, when the table is overwritten).
template <class T>
void scatter(Stream& stream, const ConstTensorView& ids, const ConstTensorView& dout, const TensorView& table,
             bool accumulate, int32_t frozen) {
  constexpr int64_t kSlice = 64;
  if (!accumulate) clear_rows(stream, table);
  for_ranges(stream, table.dim[1], kSlice, [&](int64_t begin, int64_t end) {
    scatter_columns<T>(ids, dout, table, frozen, begin, end - begin);
  });
}

template <class T>
Status backward(Stream& stream, const EmbeddingBackwardArgs& a) {
  const bool has_positions = a.dpos_table.present();
  LLMOPS_TRY(check_ids("embedding_backward", "ids", a.ids, a.dtable.dim[0], false));
  if (has_positions) LLMOPS_TRY(check_ids("embedding_backward", "positions", a.positions, a.dpos_table.dim[0], false));
  scatter<T>(stream, a.ids, a.dout, a.dtable, a.accumulate, a.frozen_id);
  if (has_positions) scatter<T>(stream, a.positions, a.dout, a.dpos_table, a.accumulate_pos, -1);
  return {};
}

}  // namespace

Status embedding(Stream& stream, const EmbeddingArgs& a) {
  return a.table.dtype == DType::f32 ? forward<float>(stream, a) : forward<bf16>(stream, a);
}

Status embedding_backward(Stream& stream, const EmbeddingBackwardArgs& a) {
  return a.dout.dtype == DType::f32 ? backward<float>(stream, a) : backward<bf16>(stream, a);
}

}  // namespace llmops::LLMOPS_ISA

#include "kernels/cpu/vec_end.h"
