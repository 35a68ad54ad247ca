#include "data/bpe.h"

#include <bit>
#include <queue>

namespace llmops {
namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

size_t slot_of(uint64_t pair, size_t mask) {
  const uint64_t mixed = pair * 0x9E3779B97F4A7C15u;
  return static_cast<size_t>(mixed >> 32 ^ mixed) & mask;
}

// Above this many bytes the quadratic scan for the next merge costs more than a heap.
constexpr size_t kShortMax = 48;

}  // namespace

const Bpe::Merge& Bpe::find(int32_t left, int32_t right) const {
  const uint64_t key = pair_key(left, right);
  const size_t mask = slots_.size() - 1;
  size_t i = slot_of(key, mask);
  while (slots_[i].pair != key && slots_[i].merged != kNone) i = (i + 1) & mask;
  return slots_[i];
}

void Bpe::reserve(size_t merges) {
  const size_t slots = std::bit_ceil(merges * 2 + 2);
  if (slots <= slots_.size()) return;
  std::vector<Merge> old(slots);
  old.swap(slots_);
  for (const Merge& merge : old)
    if (merge.merged != kNone)
      const_cast<Merge&>(find(static_cast<int32_t>(merge.pair >> 32), static_cast<int32_t>(merge.pair))) = merge;
}

bool Bpe::add_merge(int32_t left, int32_t right, int32_t merged) {
  reserve(size_ + 1);
  auto& slot = const_cast<Merge&>(find(left, right));
  if (slot.merged != kNone) return false;
  slot = {pair_key(left, right), static_cast<uint32_t>(size_++), merged};
  return true;
}

std::optional<uint8_t> Bpe::encode(std::string_view word, std::vector<int32_t>& out) const {
  const size_t begin = out.size();
  for (const char c : word) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte_ids[byte] == kNone) return byte;
    out.push_back(byte_ids[byte]);
  }
  if (word.size() <= kShortMax)
    merge_short(out, begin);
  else
    merge_long(out, begin);
  return std::nullopt;
}

void Bpe::merge_short(std::vector<int32_t>& ids, size_t begin) const {
  int32_t* id = ids.data() + begin;
  size_t count = ids.size() - begin;
  const Merge* next[kShortMax];  // next[i]: the merge of id[i] and id[i + 1]
  for (size_t i = 0; i + 1 < count; ++i) next[i] = &find(id[i], id[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (next[i]->rank < next[best]->rank) best = i;
    if (next[best]->merged == kNone) break;
    id[best] = next[best]->merged;
    for (size_t i = best + 1; i + 1 < count; ++i) id[i] = id[i + 1];
    for (size_t i = best + 1; i + 2 < count; ++i) next[i] = next[i + 1];
    --count;
    if (best > 0) next[best - 1] = &find(id[best - 1], id[best]);
    if (best + 1 < count) next[best] = &find(id[best], id[best + 1]);
  }
  ids.resize(begin + count);
}

void Bpe::merge_long(std::vector<int32_t>& ids, size_t begin) const {
  struct Candidate {
    uint32_t rank;
    size_t at;
    int32_t left, right, merged;  // stale when the ids there changed since
    bool operator<(const Candidate& b) const { return rank != b.rank ? rank > b.rank : at > b.at; }  // least on top
  };
  int32_t* id = ids.data() + begin;
  const size_t count = ids.size() - begin;
  std::vector<size_t> previous(count), next(count);
  std::priority_queue<Candidate> queue;
  const auto offer = [&](size_t at) {
    if (next[at] >= count) return;
    const Merge& merge = find(id[at], id[next[at]]);
    if (merge.merged != kNone) queue.push({merge.rank, at, id[at], id[next[at]], merge.merged});
  };
  for (size_t i = 0; i < count; ++i) previous[i] = i - 1, next[i] = i + 1;
  for (size_t i = 0; i < count; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    const size_t right = next[best.at];
    if (id[best.at] != best.left || right >= count || id[right] != best.right) continue;
    id[best.at] = best.merged;
    id[right] = kNone;
    next[best.at] = next[right];
    if (next[right] < count) previous[next[right]] = best.at;
    if (best.at > 0) offer(previous[best.at]);
    offer(best.at);
  }
  size_t kept = 0;
  for (size_t i = 0; i < count; ++i)
    if (id[i] != kNone) id[kept++] = id[i];
  ids.resize(begin + kept);
}

}  // namespace llmops
