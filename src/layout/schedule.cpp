#include "layout/schedule.h"

#include <algorithm>

namespace llmops {

std::vector<Action> schedule_single_chunk(int micro_batches) {
  std::vector<Action> actions;
  for (int i = 0; i < micro_batches; ++i) {
    actions.push_back({Action::Kind::forward, 0, i});
    actions.push_back({Action::Kind::backward, 0, i});
  }
  return actions;
}

Range split_range(int64_t count, int64_t parts, int64_t part) {
  const int64_t base = count / parts, rest = count % parts;
  const int64_t begin = part * base + std::min(part, rest);
  return {begin, begin + base + (part < rest ? 1 : 0)};
}

}  // namespace llmops
