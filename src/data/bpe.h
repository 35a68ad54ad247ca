// Byte-pair encoding of one word over a table of merges.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace llmops {

class Bpe {
 public:
  static constexpr int32_t kNone = -1;

  // The id of each single byte, kNone where the vocabulary has none.
  std::array<int32_t, 256> byte_ids;

  // Adds the merge of rank size(): left then right becomes `merged`. False when the pair is there already.
  void reserve(size_t merges);
  bool add_merge(int32_t left, int32_t right, int32_t merged);
  size_t size() const { return size_; }

  // Appends the ids of `word`: again and again the pair of lowest rank is merged, the leftmost first. Returns the byte
  // that has no id, when there is one.
  std::optional<uint8_t> encode(std::string_view word, std::vector<int32_t>& out) const;

 private:
  struct Merge {
    uint64_t pair = ~uint64_t{0};  // left << 32 | right
    uint32_t rank = ~uint32_t{0};  // ~0: no such pair
    int32_t merged = kNone;
  };
  const Merge& find(int32_t left, int32_t right) const;
  void merge_short(std::vector<int32_t>& ids, size_t begin) const;
  void merge_long(std::vector<int32_t>& ids, size_t begin) const;

  std::vector<Merge> slots_ = std::vector<Merge>(2);  // open addressing, a power of two, at most half full
  size_t size_ = 0;
};

}  // namespace llmops
