#include "kernels/cpu/sequences.h"

#include <fmt/format.h>

namespace llmops {
namespace {

Status check_blocks(const Sequences& sequences, int64_t s, int64_t kv_rows) {
  const Sequence seq = sequences[s];
  if (seq.kv_count < 0 || seq.kv_count > sequences.table_width * kKvBlock)
    return invalid_error(fmt::format("sequence {}: {} KV rows found, at most the {} of its {} blocks expected", s,
                                     seq.kv_count, sequences.table_width * kKvBlock, sequences.table_width));
  if (seq.kv_pos % kKvBlock != 0)
    return invalid_error(fmt::format("sequence {}: kv_pos0 {} found, a multiple of {} expected with a block table", s,
                                     seq.kv_pos, kKvBlock));
  for (int64_t i = 0; i * kKvBlock < seq.kv_count; ++i)
    if (seq.blocks[i] < 0 || seq.blocks[i] >= kv_rows / kKvBlock)
      return invalid_error(fmt::format("sequence {}: block {} found at {} of its table, expected within [0, {})", s,
                                       seq.blocks[i], i, kv_rows / kKvBlock));
  return {};
}

}  // namespace

Status check_sequences(const Sequences& sequences, int64_t q_rows, int64_t kv_rows) {
  for (int64_t s = 0; s < sequences.count; ++s) {
    const Sequence seq = sequences[s];
    if (seq.q_begin < 0 || seq.q_count < 0 || seq.q_begin + seq.q_count > q_rows)
      return invalid_error(
          fmt::format("sequence {}: query rows [{}, {}) found, an ascending range within [0, {}) expected", s,
                      seq.q_begin, seq.q_begin + seq.q_count, q_rows));
    if (sequences.kv_max > 0 && seq.kv_count > sequences.kv_max)
      return invalid_error(fmt::format("sequence {}: {} KV rows found, at most kv_max {} expected", s, seq.kv_count,
                                       sequences.kv_max));
    if (seq.blocks != nullptr) {
      LLMOPS_TRY(check_blocks(sequences, s, kv_rows));
      continue;
    }
    if (seq.kv_begin < 0 || seq.kv_count < 0 || seq.kv_begin + seq.kv_count > kv_rows)
      return invalid_error(fmt::format("sequence {}: KV rows [{}, {}) found, a range within [0, {}) expected", s,
                                       seq.kv_begin, seq.kv_begin + seq.kv_count, kv_rows));
  }
  return {};
}

Status check_disjoint(const Sequences& sequences) {
  int64_t end = 0;
  for (int64_t s = 0; s < sequences.count; ++s) {
    const Sequence seq = sequences[s];
    if (seq.kv_begin < end)
      return invalid_error(
          fmt::format("sequence {}: KV rows from {} found, from {} or later expected: the gradients of two "
                      "sequences cannot share a row",
                      s, seq.kv_begin, end));
    end = seq.kv_begin + seq.kv_count;
  }
  return {};
}

}  // namespace llmops
