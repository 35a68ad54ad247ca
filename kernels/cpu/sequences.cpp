#include "kernels/cpu/sequences.h"

#include <fmt/format.h>

namespace llmops {

Status check_sequences(const Sequences& sequences, int64_t q_rows, int64_t kv_rows) {
  for (int64_t s = 0; s < sequences.count; ++s) {
    const Sequence seq = sequences[s];
    if (seq.q_begin < 0 || seq.q_count < 0 || seq.q_begin + seq.q_count > q_rows)
      return invalid_error(
          fmt::format("sequence {}: query rows [{}, {}) found, an ascending range within [0, {}) expected", s,
                      seq.q_begin, seq.q_begin + seq.q_count, q_rows));
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
