// Letters, numbers and white space of Unicode, as sorted ranges.
#pragma once

#include <cstddef>
#include <cstdint>

namespace llmops {

struct CodeRange {
  uint32_t first, last;  // inclusive
};
extern const CodeRange kLetters[], kNumbers[], kSpaces[];
extern const size_t kLettersCount, kNumbersCount, kSpacesCount;

}  // namespace llmops
