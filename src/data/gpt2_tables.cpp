// From the vocabulary and merges of a GPT-2 tokenizer to the tables that encode and decode.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/text.h"
#include "data/tokenizer_tables.h"

namespace llmops {
namespace {

// GPT-2's byte symbols: printable bytes of Latin-1 stand for themselves, the others for U+0100 and on in order.
std::array<uint32_t, 256> byte_symbols() {
  std::array<uint32_t, 256> symbols;
  uint32_t next = 256;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    symbols[b] = printable ? b : next++;
  }
  return symbols;
}

// The bytes of a token spelled in byte symbols; nullopt when it has another character.
std::optional<std::string> bytes_of_symbols(std::string_view token) {
  static const auto bytes = [] {
    std::array<int16_t, 256 + 68> table;  // 68 bytes are not printable
    table.fill(-1);
    const auto symbols = byte_symbols();
    for (int b = 0; b < 256; ++b) table[symbols[b]] = static_cast<int16_t>(b);
    return table;
  }();
  std::string out;
  for (size_t pos = 0; pos < token.size();) {
    const uint32_t c = utf8_next(token, &pos);
    if (c >= bytes.size() || bytes[c] < 0) return std::nullopt;
    out.push_back(static_cast<char>(bytes[c]));
  }
  return out;
}

std::string name(std::string_view token) { return escape_control(json_quote(token)); }

using Ids = std::unordered_map<std::string_view, int32_t>;

Status place(Tokenizer::Tables* tables, int32_t id, std::string bytes, std::string_view token) {
  if (static_cast<size_t>(id) >= tables->bytes.size()) tables->bytes.resize(id + 1);
  if (!tables->bytes[id].empty())
    return invalid_error(fmt::format("vocabulary: id {} belongs to {} and to another token", id, name(token)));
  tables->bytes[id] = std::move(bytes);
  return {};
}

Result<Ids> place_added(const std::vector<AddedToken>& added, Tokenizer::Tables* tables) {
  Ids ids;
  for (const AddedToken& token : added) {
    if (!ids.emplace(token.content, token.id).second)
      return invalid_error(fmt::format("added tokens: {} stands there twice", name(token.content)));
    LLMOPS_TRY(place(tables, token.id, token.content, token.content));
    AddedSet& set = tables->added[token.normalized];
    set.tokens.push_back(token);
    set.starts[static_cast<uint8_t>(token.content[0])] = true;
    if (token.special) tables->special.insert(token.id);
    if (token.content.find_first_of(" \t\r\n\v\f") != std::string::npos) tables->cuttable = false;
  }
  for (AddedSet& set : tables->added)
    std::stable_sort(set.tokens.begin(), set.tokens.end(),
                     [](const auto& a, const auto& b) { return a.content.size() > b.content.size(); });
  if (const auto it = ids.find(kEndOfText); it != ids.end()) tables->eos = it->second;
  return ids;
}

Result<Ids> place_vocab(const Gpt2Parts& parts, const Ids& added, Tokenizer::Tables* tables) {
  Ids ids(parts.vocab.size() * 2);
  for (const auto& [token, id] : parts.vocab) {
    ids.emplace(token, id);
    if (const auto it = added.find(token); it != added.end()) {
      if (it->second == id) continue;
      return invalid_error(fmt::format("vocabulary: {} has id {}, as an added token {}", name(token), id, it->second));
    }
    auto bytes = bytes_of_symbols(token);
    if (!bytes || bytes->empty())
      return invalid_error(fmt::format("vocabulary: token {} is not spelled in byte symbols", name(token)));
    LLMOPS_TRY(place(tables, id, std::move(*bytes), token));
  }
  return ids;
}

Status place_merges(const Gpt2Parts& parts, const Ids& ids, Bpe* bpe) {
  bpe->reserve(parts.merges.size());
  for (size_t i = 0; i < parts.merges.size(); ++i) {
    const auto& [left, right] = parts.merges[i];
    const std::string* tokens[3];
    int32_t found[3];
    const std::string joined = left + right;
    tokens[0] = &left, tokens[1] = &right, tokens[2] = &joined;
    for (int k = 0; k < 3; ++k) {
      const auto it = ids.find(*tokens[k]);
      if (it == ids.end())
        return invalid_error(fmt::format("merge {}: token {} is not in the vocabulary", i + 1, name(*tokens[k])));
      found[k] = it->second;
    }
    if (!bpe->add_merge(found[0], found[1], found[2]))
      return invalid_error(fmt::format("merge {}: {} and {} were merged before", i + 1, name(left), name(right)));
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<Tokenizer::Tables>> gpt2_tables(const Gpt2Parts& parts) {
  auto tables = std::make_shared<Tokenizer::Tables>();
  tables->kind = TokenizerKind::gpt2;
  LLMOPS_ASSIGN(const Ids added, place_added(parts.added, tables.get()));
  LLMOPS_ASSIGN(const Ids ids, place_vocab(parts, added, tables.get()));
  const auto symbols = byte_symbols();
  for (int b = 0; b < 256; ++b) {
    std::string symbol;
    utf8_append(symbol, symbols[b]);
    const auto it = ids.find(symbol);
    tables->bpe.byte_ids[b] = it == ids.end() ? Bpe::kNone : it->second;
  }
  LLMOPS_TRY(place_merges(parts, ids, &tables->bpe));
  return tables;
}

}  // namespace llmops
