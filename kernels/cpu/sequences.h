// The ragged batch of the attention ops, read from their device tensors. Baseline code: safe to include before vec.h.
#pragma once

#include <utility>

#include "kernels/ops.h"

namespace llmops {

// One sequence: rows of q and of k and v, and the absolute positions of the first of each.
struct Sequence {
  int64_t q_begin, q_count, kv_begin, kv_count, q_pos, kv_pos;
  const int32_t* blocks;  // of a paged cache; then kv_begin is 0

  int64_t kv_row(int64_t j) const { return blocks ? blocks[j / kKvBlock] * kKvBlock + j % kKvBlock : kv_begin + j; }
};

struct Sequences {
  const int32_t *q_begin, *kv_begin, *kv_len, *q_pos0, *kv_pos0;
  int64_t count;
  const int32_t* block_table;  // [count, table_width], or null
  int64_t table_width;
  int64_t kv_max;  // of one sequence; 0: not known

  Sequence operator[](int64_t s) const {
    return {q_begin[s], int64_t{q_begin[s + 1]} - q_begin[s], block_table ? 0 : kv_begin[s], kv_len[s], q_pos0[s],
            kv_pos0[s], block_table ? block_table + s * table_width : nullptr};
  }
};

template <class Args>
Sequences sequences_of(const Args& args) {
  const auto i32 = [](const ConstTensorView& view) { return static_cast<const int32_t*>(view.data); };
  Sequences all = {i32(args.q_begin), i32(args.kv_begin), i32(args.kv_len), i32(args.q_pos0), i32(args.kv_pos0),
                   args.kv_len.dim[0], nullptr, 0, 0};
  if constexpr (requires { args.block_table; }) {
    if (args.block_table.present()) all.block_table = i32(args.block_table), all.table_width = args.block_table.dim[1];
    all.kv_max = args.kv_max;
  }
  return all;
}

// The offsets are data, so they are checked where they are read: no row outside [0, q_rows) and [0, kv_rows), no block
// outside of the pool. The lengths are at hand here, so kv_max is only held against them.
Status check_sequences(const Sequences& sequences, int64_t q_rows, int64_t kv_rows);
// For gradients: no KV row belongs to two sequences, and they are in order.
Status check_disjoint(const Sequences& sequences);

// f(begin, end) for every range of rows that no sequence owns, given the rows [begin, end) of sequence s.
template <class RowsOf, class F>
void for_unowned(int64_t sequences, int64_t rows, RowsOf rows_of, F f) {
  int64_t next = 0;
  for (int64_t s = 0; s <= sequences; ++s) {
    const auto [begin, end] = s < sequences ? rows_of(s) : std::pair(rows, rows);
    if (next < begin) f(next, begin);
    if (next < end) next = end;
  }
}

}  // namespace llmops
