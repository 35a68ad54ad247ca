// The text of a completion as it grows: whole characters only, and nothing that may turn out to be a stop string.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace llmops {

class StopText {
 public:
  // Without a tokenizer the text is the ids in decimal, joined by blanks.
  StopText(const Tokenizer* tokenizer, std::vector<std::string> stop);
  // Adds a token; true when a stop string is complete: the text then ends before it.
  Result<bool> push(int32_t id);
  void finish();                 // no more tokens: what was held back is text
  std::string_view take();       // what became final since the last call; valid until the next push
  const std::string& text() const { return text_; }  // all of it, after finish()

 private:
  size_t held_back() const;      // bytes at the end that may begin a stop string

  std::optional<StreamDecoder> decoder_;
  std::vector<std::string> stop_;
  std::string text_;
  size_t final_ = 0;             // bytes that are final
  size_t taken_ = 0;
  bool stopped_ = false;
};

}  // namespace llmops
