#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/rng.h"
#include "data/dataset.h"

namespace llmops {
namespace {

// Philox counters {epoch, purpose << 56 | ...}: a draw of one kind never meets another's.
constexpr uint64_t kPurposeStart = 1, kPurposeOrder = 2;
constexpr int kRounds = 6;

// A permutation of [0, 2^(2 half_bits)): a Feistel network whose round function is Philox.
uint64_t permute(uint64_t x, int half_bits, uint64_t seed, uint64_t epoch) {
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t left = x >> half_bits, right = x & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t counter = kPurposeOrder << 56 | round << 40 | right;  // right has at most 32 bits
    const Philox draw = philox4x32(seed, epoch, counter);
    const uint64_t next = left ^ (draw.v[0] & mask);
    left = right;
    right = next;
  }
  return left << half_bits | right;
}

}  // namespace

Result<SampleOrder> SampleOrder::create(int64_t tokens, int64_t seq, uint64_t seed) {
  if (seq < 1) return usage_error(fmt::format("sequence length: {}, expected at least 1", seq));
  if (tokens - 1 < seq)
    return invalid_error(fmt::format("the training data has {} tokens; one sample of {} needs {}: give more data or a "
                                     "shorter sequence", tokens, seq, seq + 1));
  SampleOrder order;
  order.seq_ = seq;
  order.seed_ = seed;
  // One window fewer than would fit leaves the start free to move by a whole window, so the ends are used too.
  order.windows_ = std::max<int64_t>(1, (tokens - seq) / seq);
  order.slack_ = tokens - 1 - order.windows_ * seq;
  const int bits = std::bit_width(static_cast<uint64_t>(order.windows_ - 1));
  order.half_bits_ = std::max(1, (bits + 1) / 2);
  return order;
}

int64_t SampleOrder::offset(int64_t sample) const {
  const auto epoch = static_cast<uint64_t>(epoch_of(sample)), windows = static_cast<uint64_t>(windows_);
  const Philox draw = philox4x32(seed_, epoch, kPurposeStart << 56);
  const uint64_t start = (uint64_t{draw.v[0]} << 32 | draw.v[1]) % static_cast<uint64_t>(slack_ + 1);
  // The power of four above `windows` is permuted; results outside are permuted again, on average less than four times.
  auto window = static_cast<uint64_t>(sample % windows_);
  do window = permute(window, half_bits_, seed_, epoch);
  while (window >= windows);
  return static_cast<int64_t>(start + window * static_cast<uint64_t>(seq_));
}

int64_t validation_windows(int64_t tokens, int64_t seq) { return seq < 1 || tokens < 1 ? 0 : (tokens - 1) / seq; }

}  // namespace llmops
