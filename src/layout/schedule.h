// The order of work within a step. One chunk (no pipeline) for now: forward and backward of each micro-batch in turn.
#pragma once

#include <cstdint>
#include <vector>

namespace llmops {

struct Action {
  enum class Kind : uint8_t { forward, backward } kind;
  int chunk = 0;
  int micro_batch = 0;
};

std::vector<Action> schedule_single_chunk(int micro_batches);

// Contiguous split of `count` items over `parts`: the first count % parts get one more.
struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
Range split_range(int64_t count, int64_t parts, int64_t part);

}  // namespace llmops
