#include "base/hash.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

using namespace llmops;

namespace {
std::string hex_of(std::string_view text) { return to_hex(hash128(std::as_bytes(std::span(text)))); }

std::string pattern(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 7);
  return text;
}
}  // namespace

// Digests printed by the Python package xxhash 4.1.0 (xxHash 0.8.4), one for each path of the algorithm by length.
TEST_CASE("XXH3-128 gives the digests of the reference implementation") {
  CHECK(hex_of("") == "99aa06d3014798d86001c324468d497f");
  CHECK(hex_of("abc") == "06b05ab6733a618578af5f94892f3950");
  CHECK(hex_of(pattern(17)) == "263f67af63088041735fe434ded90c3c");
  CHECK(hex_of(pattern(130)) == "5340617cf4d03829e1dddd718dcc8e41");
  CHECK(hex_of(pattern(250)) == "04c40fff8f8ca28d8caf990e347fbe5a");
  CHECK(hex_of(pattern(5000)) == "a4ba2a60fb07e0166abe8be5abcb2760");
}

TEST_CASE("hashing in pieces gives the digest of the whole, wherever it is cut") {
  const std::string text = pattern(5000);
  const Hash128 whole = hash128(std::as_bytes(std::span(text)));
  for (size_t step : {1, 7, 63, 64, 255, 256, 257, 1024, 4999, 5000}) {
    Hasher hasher;
    for (size_t at = 0; at < text.size(); at += step) hasher.update(std::string_view(text).substr(at, step));
    CHECK(hasher.digest() == whole);
    CHECK(hasher.digest() == whole);  // reading the digest does not disturb the state
  }
}

TEST_CASE("any changed byte changes the digest") {
  std::string text = pattern(300);
  const std::string before = hex_of(text);
  for (char& c : text) {
    c ^= 1;
    CHECK(hex_of(text) != before);
    c ^= 1;
  }
}

TEST_CASE("hexadecimal digests: 32 digits, nothing else") {
  const Hash128 hash{0x0123456789abcdef, 0x00000000000000ff};
  CHECK(to_hex(hash) == "0123456789abcdef00000000000000ff");
  CHECK(*hash_from_hex(to_hex(hash)) == hash);
  CHECK(*hash_from_hex("0123456789ABCDEF00000000000000FF") == hash);
  for (const char* bad : {"", "0123456789abcdef00000000000000f", "0123456789abcdef00000000000000fff",
                          "0123456789abcdefg0000000000000ff", "-123456789abcdef00000000000000ff",
                          "0x23456789abcdef00000000000000ff"})
    CHECK(hash_from_hex(bad).status().code() == Code::invalid);
}
