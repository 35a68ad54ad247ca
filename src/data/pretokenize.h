// Cuts text into the pieces that GPT-2's pattern gives, in the form of Hugging Face's ByteLevel:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
#pragma once

#include <cstdint>
#include <string_view>

namespace llmops {

enum class CharClass : uint8_t { other, letter, number, space };
CharClass char_class(uint32_t code_point);

// Bytes of the piece that starts at text[pos]; text is valid UTF-8 and pos < text.size().
size_t piece_bytes(std::string_view text, size_t pos);

}  // namespace llmops
