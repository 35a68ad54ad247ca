// Text and JSON lines into tokens.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/input.h"
#include "data/token_stream.h"

namespace llmops {

// Appends the tokens of files to streams. Without a tokenizer it numbers characters as they are met; finish() sorts.
class TextReader {
 public:
  TextReader(const std::optional<Tokenizer>& tokenizer, std::string text_field);
  ~TextReader();
  // One document.
  Status read_text(Input& input, TokenStream* stream, std::vector<int64_t>* document_starts);
  // One document a line, each followed by the tokenizer's end-of-sequence token, when it has one.
  Status read_jsonl(Input input, TokenStream* stream, std::vector<int64_t>* document_starts);
  // The tokenizer, given or made of all characters met; ids in the streams are brought to its order.
  Result<Tokenizer> finish(std::span<TokenStream* const> streams);

 private:
  struct Characters;
  Status append(std::string_view text, TokenStream* stream);
  std::optional<Tokenizer> tokenizer_;
  std::optional<Encoder> encoder_;
  std::unique_ptr<Characters> characters_;
  std::string text_field_;
  std::vector<int32_t> ids_;
};

}  // namespace llmops
