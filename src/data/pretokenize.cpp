#include "data/pretokenize.h"

#include <algorithm>
#include <array>

#include "base/text.h"
#include "data/unicode_tables.h"

namespace llmops {
namespace {

bool contains(const CodeRange* table, size_t count, uint32_t code_point) {
  const CodeRange* end = table + count;
  const CodeRange* it = std::lower_bound(table, end, code_point,
                                         [](const CodeRange& range, uint32_t c) { return range.last < c; });
  return it != end && it->first <= code_point;
}

CharClass find_class(uint32_t code_point) {
  if (contains(kLetters, kLettersCount, code_point)) return CharClass::letter;
  if (contains(kNumbers, kNumbersCount, code_point)) return CharClass::number;
  if (contains(kSpaces, kSpacesCount, code_point)) return CharClass::space;
  return CharClass::other;
}

std::array<CharClass, 128> ascii_classes() {
  std::array<CharClass, 128> classes;
  for (uint32_t c = 0; c < 128; ++c) classes[c] = find_class(c);
  return classes;
}
const std::array<CharClass, 128> kAscii = ascii_classes();

CharClass next_class(std::string_view text, size_t* pos) {
  const auto byte = static_cast<unsigned char>(text[*pos]);
  if (byte < 128) {
    ++*pos;
    return kAscii[byte];
  }
  return find_class(utf8_next(text, pos));
}

// Bytes of 's, 't, 're, 've, 'm, 'll or 'd at text[pos], else 0.
size_t contraction_bytes(std::string_view text, size_t pos) {
  if (text[pos] != '\'' || pos + 1 >= text.size()) return 0;
  const char a = text[pos + 1];
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if (pos + 2 >= text.size()) return 0;
  const char b = text[pos + 2];
  return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

// The end of the run of `wanted` at pos.
size_t run_end(std::string_view text, size_t pos, CharClass wanted) {
  for (size_t next = pos; next < text.size(); pos = next)
    if (next_class(text, &next) != wanted) return pos;
  return pos;
}

// \s+(?!\S)|\s+ : a run that ends the text is one piece; else its last character is left to what follows, unless it is
// all there is.
size_t space_end(std::string_view text, size_t begin) {
  size_t last = begin;  // start of the run's last character
  for (size_t pos = begin; pos < text.size();) {
    const size_t start = pos;
    if (next_class(text, &pos) != CharClass::space) return last > begin ? last : start;
    last = start;
  }
  return text.size();
}

}  // namespace

CharClass char_class(uint32_t code_point) { return code_point < 128 ? kAscii[code_point] : find_class(code_point); }

size_t piece_bytes(std::string_view text, size_t begin) {
  if (const size_t bytes = contraction_bytes(text, begin)) return bytes;
  size_t pos = begin;
  CharClass first = next_class(text, &pos);
  if (first == CharClass::space) {
    if (text[begin] != ' ' || pos == text.size()) return space_end(text, begin) - begin;
    const CharClass second = next_class(text, &pos);
    if (second == CharClass::space) return space_end(text, begin) - begin;
    first = second;
  }
  return run_end(text, pos, first) - begin;
}

}  // namespace llmops
