// The input is a tokenizer.json; whatever is accepted must encode its own tokens and decode them back.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/text.h"
#include "data/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace llmops;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = Tokenizer::parse_tokenizer_json(text);
  if (!tokenizer.ok()) return 0;
  for (const std::string_view sample : {std::string_view("ab c<|endoftext|>a's  1\n"), text}) {
    const auto ids = tokenizer->encode(sample);
    if (!ids.ok()) continue;  // a vocabulary may lack bytes
    const auto back = tokenizer->decode(*ids);
    if (!back.ok() || *back != utf8_repair(sample)) __builtin_trap();
  }
  const auto again = Tokenizer::from_json(tokenizer->to_json(), tokenizer->files());
  if (!again.ok() || again->vocab_size() != tokenizer->vocab_size()) __builtin_trap();
  return 0;
}
