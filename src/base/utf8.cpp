// UTF-8, by table 3-7 (well-formed sequences) and the "maximal subpart" rule of the Unicode Standard, chapter 3.9.
#include "base/text.h"

namespace llmops {
namespace {

struct Sequence {
  int bytes;       // of the well-formed character, or of the longest start of one (at least 1)
  bool complete;
  bool cut_short;  // not complete, but the text ended rather than going wrong
};

// The sequence that begins at text[at].
Sequence sequence_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) return {1, true, false};
  const int length = lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
  if (length == 0) return {1, false, false};
  // The second byte is narrower where the character would be overlong, a surrogate or above U+10FFFF.
  unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (int i = 1; i < length; ++i, low = 0x80, high = 0xbf) {
    if (at + i >= text.size()) return {i, false, true};
    if (byte(at + i) < low || byte(at + i) > high) return {i, false, false};
  }
  return {length, true, false};
}

// What must not reach a terminal raw: C0, DEL, C1, and the marks that reorder text (bidirectional overrides and isolates).
bool is_control(uint32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) ||
         (c >= 0x2066 && c <= 0x2069);
}

void append_escaped(std::string& out, std::string_view bytes) {
  constexpr char kHex[] = "0123456789abcdef";
  for (const unsigned char c : bytes) {
    out += "\\x";
    out += kHex[c >> 4];
    out += kHex[c & 15];
  }
}

}  // namespace

bool utf8_valid(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Sequence sequence = sequence_at(text, at);
    if (!sequence.complete) return false;
    at += sequence.bytes;
  }
  return true;
}

std::string utf8_repair(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Sequence sequence = sequence_at(text, at);
    if (sequence.complete)
      out.append(text, at, sequence.bytes);
    else
      out += "\xEF\xBF\xBD";
    at += sequence.bytes;
  }
  return out;
}

size_t utf8_tail(std::string_view text) {
  for (size_t bytes = 1; bytes <= 3 && bytes <= text.size(); ++bytes) {
    const size_t at = text.size() - bytes;
    if ((static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) continue;
    const Sequence sequence = sequence_at(text, at);
    return sequence.cut_short ? bytes : 0;
  }
  return 0;
}

uint32_t utf8_next(std::string_view text, size_t* pos) {
  const auto byte = [&](int i) { return uint32_t{static_cast<unsigned char>(text[*pos + i])}; };
  const Sequence sequence = sequence_at(text, *pos);
  uint32_t code_point = 0xfffd;
  if (sequence.complete) {
    constexpr uint32_t kLeadBits[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    code_point = byte(0) & kLeadBits[sequence.bytes];
    for (int i = 1; i < sequence.bytes; ++i) code_point = code_point << 6 | (byte(i) & 0x3f);
  }
  *pos += sequence.bytes;
  return code_point;
}

void utf8_append(std::string& out, uint32_t code_point) {
  const auto add = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (code_point > 0x10ffff || (code_point >= 0xd800 && code_point < 0xe000)) code_point = 0xfffd;
  if (code_point < 0x80) return add(code_point);
  if (code_point < 0x800) {
    add(0xc0 | code_point >> 6);
  } else {
    if (code_point < 0x10000) {
      add(0xe0 | code_point >> 12);
    } else {
      add(0xf0 | code_point >> 18);
      add(0x80 | (code_point >> 12 & 0x3f));
    }
    add(0x80 | (code_point >> 6 & 0x3f));
  }
  add(0x80 | (code_point & 0x3f));
}

std::string escape_control(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Sequence sequence = sequence_at(text, at);
    size_t next = at;
    const std::string_view bytes = text.substr(at, sequence.bytes);
    if (sequence.complete && !is_control(utf8_next(text, &next)))
      out += bytes;
    else
      append_escaped(out, bytes);
    at += sequence.bytes;
  }
  return out;
}

}  // namespace llmops
