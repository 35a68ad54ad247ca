// Numbers and text from people and files, and for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace llmops {

// Decimal only, whole text, no leading '+', no spaces, no octal, no hex; Code::usage with what was found and the range.
Result<int64_t> parse_int(std::string_view text, int64_t min, int64_t max);
// Finite decimal ("1e-3", "0.5"); nan, inf and out of range are refused.
Result<double> parse_double(std::string_view text, double min, double max);
// "64", "1.5GiB", "10MB", "4k": k M G T = 10^3.., Ki Mi Gi Ti = 2^10.., an optional B; exact, refused when not whole bytes.
Result<int64_t> parse_bytes(std::string_view text);
// "90", "90s", "1.5h", "2d", "10m", "250ms", or clock form "1:30:00": seconds.
Result<double> parse_duration(std::string_view text);

std::string format_bytes(int64_t bytes);        // "1.50 GiB"
std::string format_count(double count);         // "124.4 M"
std::string format_duration(double seconds);    // "1 h 02 min", "3.2 s", "45 ms"
std::string format_si(double value, int digits = 3);  // "1.23 G", "456 k"

// The nearest candidate within a small edit distance; empty when none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

bool utf8_valid(std::string_view text);
// Valid UTF-8: each maximal invalid part becomes U+FFFD (the rule of Unicode 15, 3.9, table 3-8, and of Python).
std::string utf8_repair(std::string_view text);
// Bytes at the end that may be the start of an unfinished character (0..3).
size_t utf8_tail(std::string_view text);
// Decodes one code point at text[*pos] (valid UTF-8) and advances.
uint32_t utf8_next(std::string_view text, size_t* pos);
void utf8_append(std::string& out, uint32_t code_point);
// Text from a file, safe on a terminal: control characters and invalid bytes as \xNN.
std::string escape_control(std::string_view text);
// Columns that a terminal uses for the text (wide and combining characters counted).
int display_width(std::string_view text);

}  // namespace llmops
