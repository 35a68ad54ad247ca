// Text <-> token ids: bytes, characters of a data set, and GPT-2's byte-level BPE.
//
// A Tokenizer is immutable and cheap to copy (its tables are shared). What goes into a checkpoint is to_json() and the
// contents of files(); from_json() of both gives the same tokenizer back, so inference needs nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace llmops {

enum class TokenizerKind : uint8_t { byte, character, gpt2 };

// Whether the text of a special token ("<|endoftext|>") inside the input is that token or plain text.
enum class Specials : uint8_t { match, as_text };

struct NamedFile {
  std::string name;  // a plain file name
  std::string content;
};

class Tokenizer {
 public:
  static Tokenizer bytes();
  // nanoGPT's rule: the sorted code points of the text. Code::invalid when it is empty or no valid UTF-8.
  static Result<Tokenizer> characters_of(std::string_view text);
  static Result<Tokenizer> from_characters(std::vector<uint32_t> code_points);  // any order, repeats are an error
  // What --tokenizer takes: "byte"; a tokenizer.json; a vocab.json (merges.txt beside it); a folder that holds one of
  // the two. Each file may be .gz or .zst. ("char" needs the data: Corpus::open makes that one.)
  static Result<Tokenizer> load(const std::string& spec);
  static Result<Tokenizer> load_gpt2(const std::string& vocab_path, const std::string& merges_path);
  // Contents rather than paths; `object` is named in messages.
  static Result<Tokenizer> parse_gpt2(std::string_view vocab_json, std::string_view merges_txt);
  static Result<Tokenizer> parse_tokenizer_json(std::string_view text);

  Json to_json() const;                         // {"kind": ..., ...}: small; vocabularies of BPE are in files()
  const std::vector<NamedFile>& files() const;  // to be stored beside the manifest; empty for byte and character
  static Result<Tokenizer> from_json(const Json& json, const std::vector<NamedFile>& files);

  TokenizerKind kind() const;
  std::string_view kind_name() const;  // "byte", "char", "gpt2"
  int32_t vocab_size() const;          // highest id + 1
  std::optional<int32_t> eos() const;

  // UTF-8 in; invalid parts become U+FFFD (the rule of utf8_repair) except for `byte`, which takes any bytes.
  // A character outside the vocabulary is Code::invalid and named.
  Result<std::vector<int32_t>> encode(std::string_view text, Specials specials = Specials::match) const;
  // The bytes of the ids, joined; they need not be valid UTF-8 (see StreamDecoder). A bad id is Code::invalid.
  Result<std::string> decode(std::span<const int32_t> ids) const;
  // The bytes of one id; empty for an id that the vocabulary does not have.
  std::string_view token_bytes(int32_t id) const;
  bool is_special(int32_t id) const;

  struct Tables;

 private:
  friend class Encoder;
  explicit Tokenizer(std::shared_ptr<const Tables> tables) : tables_(std::move(tables)) {}
  std::shared_ptr<const Tables> tables_;
};

// Encodes many texts with one cache of words already seen. One per thread.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer);
  Encoder(Encoder&&) noexcept;
  ~Encoder();
  // Appends the ids of `text`. On failure `out` may have grown.
  Status append(std::string_view text, std::vector<int32_t>& out, Specials specials = Specials::match);
  // Bytes of a prefix of `text` that may be encoded apart from the rest with the same result; 0: no such place known.
  size_t safe_cut(std::string_view text) const;

 private:
  Status append_around(std::string_view text, std::vector<int32_t>& out, Specials specials, bool normalized);
  Status append_words(std::string_view text, std::vector<int32_t>& out);

  struct Cache;
  std::shared_ptr<const Tokenizer::Tables> tables_;
  std::unique_ptr<Cache> cache_;
};

// Turns ids into text as they come: what push() returned so far is always whole characters of valid UTF-8. Bytes that
// may be the start of a character are held back; bytes that cannot be become U+FFFD.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  Result<std::string> push(int32_t id);
  std::string finish();  // an unfinished character at the end becomes U+FFFD
  bool pending() const { return !held_.empty(); }

 private:
  Tokenizer tokenizer_;
  std::string held_;
};

}  // namespace llmops
