// What a Tokenizer shares among its copies. Private to the tokenizer's own files.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "data/bpe.h"
#include "data/tokenizer.h"

namespace llmops {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = true;
  bool normalized = false;  // matched after all those that are not
};

// Added tokens that are looked for in one pass over the text.
struct AddedSet {
  std::vector<AddedToken> tokens;    // longest first
  std::array<bool, 256> starts = {};  // by first byte
};

struct Tokenizer::Tables {
  TokenizerKind kind = TokenizerKind::byte;
  std::vector<std::string> bytes;      // by id; empty: no such id
  std::vector<uint32_t> characters;    // character: code points ascending, the index is the id
  Bpe bpe;                             // gpt2
  AddedSet added[2];                   // gpt2: those not `normalized`, matched first, and those that are
  std::unordered_set<int32_t> special;  // ids of added tokens that are special
  std::optional<int32_t> eos;
  std::vector<NamedFile> files;

  bool cuttable = true;  // no added token holds white space, so text may be cut before a line break
};

// The pieces of a GPT-2 tokenizer, as read from any of its files.
struct Gpt2Parts {
  std::vector<std::pair<std::string, int32_t>> vocab;          // in the alphabet of byte symbols
  std::vector<std::pair<std::string, std::string>> merges;     // by rank
  std::vector<AddedToken> added;
};
Result<Gpt2Parts> read_gpt2(std::string_view vocab_json, std::string_view merges_txt);
Result<Gpt2Parts> read_tokenizer_json(std::string_view text);
Result<std::shared_ptr<Tokenizer::Tables>> gpt2_tables(const Gpt2Parts& parts);

constexpr std::string_view kEndOfText = "<|endoftext|>";
constexpr int32_t kIdMax = 1 << 22;  // ids index tables: a larger one is taken for damage

}  // namespace llmops
