// Encoding: added tokens are cut out first, the text between goes through the pre-tokenizer and BPE word by word.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "data/pretokenize.h"
#include "data/tokenizer_tables.h"

namespace llmops {

// A direct-mapped cache of short words: text is words that come again. A slot is one cache line.
struct Encoder::Cache {
  static constexpr size_t kBytesMax = 26, kIdsMax = 9, kSlots = size_t{1} << 15;
  struct Slot {
    uint8_t bytes = 0, ids = 0;
    char text[kBytesMax];
    int32_t id[kIdsMax];
  };
  static_assert(sizeof(Slot) == 64);
  std::vector<Slot> slots = std::vector<Slot>(kSlots);

  Slot& slot_of(std::string_view word) {
    uint64_t hash = word.size();
    for (size_t at = 0; at < word.size(); at += 8) {
      uint64_t part = 0;
      std::memcpy(&part, word.data() + at, std::min<size_t>(8, word.size() - at));
      hash = (hash ^ part) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
    return slots[hash % kSlots];
  }
};

namespace {

using Tables = Tokenizer::Tables;

Status encode_characters(const Tables& tables, std::string_view text, std::vector<int32_t>& out) {
  const auto& characters = tables.characters;
  out.reserve(out.size() + text.size());
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    const uint32_t c = utf8_next(text, &pos);
    const auto it = std::lower_bound(characters.begin(), characters.end(), c);
    if (it == characters.end() || *it != c)
      return invalid_error(fmt::format("character U+{:04X} {} at byte {} is not in the vocabulary of {} characters", c,
                                       escape_control(json_quote(text.substr(start, pos - start))), start,
                                       characters.size()));
    out.push_back(static_cast<int32_t>(it - characters.begin()));
  }
  return {};
}

// The first added token in the text at or after *pos, the longest of those that start there; *pos becomes its place, or
// the end of the text.
const AddedToken* find_added(const AddedSet& set, std::string_view text, Specials specials, size_t* pos) {
  if (set.tokens.empty()) *pos = text.size();
  for (; *pos < text.size(); ++*pos) {
    if (!set.starts[static_cast<uint8_t>(text[*pos])]) continue;
    for (const AddedToken& token : set.tokens)
      if ((specials == Specials::match || !token.special) && text.substr(*pos).starts_with(token.content))
        return &token;
  }
  return nullptr;
}

Status missing_byte(uint8_t byte) {
  return invalid_error(fmt::format("byte 0x{:02X} has no token in the vocabulary", byte));
}

}  // namespace

Encoder::Encoder(const Tokenizer& tokenizer)
    : tables_(tokenizer.tables_),
      cache_(tokenizer.kind() == TokenizerKind::gpt2 ? std::make_unique<Cache>() : nullptr) {}
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder::~Encoder() = default;

Status Encoder::append(std::string_view text, std::vector<int32_t>& out, Specials specials) {
  if (tables_->kind == TokenizerKind::byte) {
    out.reserve(out.size() + text.size());
    for (const char c : text) out.push_back(static_cast<uint8_t>(c));
    return {};
  }
  std::string repaired;
  if (!utf8_valid(text)) {
    repaired = utf8_repair(text);
    text = repaired;
  }
  if (tables_->kind == TokenizerKind::character) return encode_characters(*tables_, text, out);
  return append_around(text, out, specials, false);
}

// Added tokens that are not `normalized` are cut out first, then in what is left those that are.
Status Encoder::append_around(std::string_view text, std::vector<int32_t>& out, Specials specials, bool normalized) {
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    const AddedToken* token = find_added(tables_->added[normalized], text, specials, &end);
    const std::string_view plain = text.substr(begin, end - begin);
    LLMOPS_TRY(normalized ? append_words(plain, out) : append_around(plain, out, specials, true));
    if (token) out.push_back(token->id);
    begin = end + (token ? token->content.size() : 0);
  }
  return {};
}

Status Encoder::append_words(std::string_view text, std::vector<int32_t>& out) {
  for (size_t pos = 0; pos < text.size();) {
    const std::string_view word = text.substr(pos, piece_bytes(text, pos));
    pos += word.size();
    if (word.size() > Cache::kBytesMax) {
      if (const auto byte = tables_->bpe.encode(word, out)) return missing_byte(*byte);
      continue;
    }
    Cache::Slot& slot = cache_->slot_of(word);
    if (slot.bytes == word.size() && std::memcmp(slot.text, word.data(), word.size()) == 0) {
      out.insert(out.end(), slot.id, slot.id + slot.ids);
      continue;
    }
    const size_t begin = out.size();
    if (const auto byte = tables_->bpe.encode(word, out)) return missing_byte(*byte);
    const size_t count = out.size() - begin;
    if (count > Cache::kIdsMax) continue;
    slot.bytes = static_cast<uint8_t>(word.size());
    slot.ids = static_cast<uint8_t>(count);
    std::memcpy(slot.text, word.data(), word.size());
    std::copy(out.begin() + static_cast<ptrdiff_t>(begin), out.end(), slot.id);
  }
  return {};
}

// Before a line break that follows a character other than white space a new piece starts, whatever is around: no piece
// has white space after another character. (Beyond ASCII the preceding character is not looked at.)
size_t Encoder::safe_cut(std::string_view text) const {
  if (tables_->kind == TokenizerKind::byte) return text.size();
  if (tables_->kind == TokenizerKind::character) return text.size() - utf8_tail(text);
  if (!tables_->cuttable) return 0;
  for (size_t at = text.size(); at-- > 1;)
    if (text[at] == '\n' && text[at - 1] > ' ' && text[at - 1] < 0x7f) return at;
  return 0;
}

}  // namespace llmops
