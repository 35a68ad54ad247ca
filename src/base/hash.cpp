#include "base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <charconv>

namespace llmops {
namespace {

Hash128 from_xxh(XXH128_hash_t h) { return {h.high64, h.low64}; }

void append_hex(std::string& out, uint64_t value) {
  for (int shift = 60; shift >= 0; shift -= 4) out += "0123456789abcdef"[value >> shift & 15];
}

}  // namespace

struct Hasher::State {
  XXH3_state_t xxh;
};

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh); }
Hasher::~Hasher() = default;
void Hasher::update(std::span<const std::byte> data) { XXH3_128bits_update(&state_->xxh, data.data(), data.size()); }
void Hasher::update(std::string_view text) { update(std::as_bytes(std::span(text))); }
Hash128 Hasher::digest() const { return from_xxh(XXH3_128bits_digest(&state_->xxh)); }

Hash128 hash128(std::span<const std::byte> data) { return from_xxh(XXH3_128bits(data.data(), data.size())); }

std::string to_hex(const Hash128& hash) {
  std::string out;
  append_hex(out, hash.hi);
  append_hex(out, hash.lo);
  return out;
}

Result<Hash128> hash_from_hex(std::string_view hex) {
  Hash128 hash;
  const auto half = [&](size_t at, uint64_t* value) {
    const auto end = std::from_chars(hex.data() + at, hex.data() + at + 16, *value, 16);
    return end.ec == std::errc() && end.ptr == hex.data() + at + 16;
  };
  if (hex.size() != 32 || !half(0, &hash.hi) || !half(16, &hash.lo))
    return invalid_error("an XXH3-128 digest of 32 hexadecimal digits was expected");
  return hash;
}

}  // namespace llmops
