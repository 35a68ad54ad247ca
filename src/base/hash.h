// XXH3-128 (xxHash 0.8): integrity, not authenticity.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace llmops {

struct Hash128 {
  uint64_t hi = 0, lo = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
};
std::string to_hex(const Hash128& hash);  // 32 digits, the canonical (big-endian) form that `xxhsum -H2` prints
Result<Hash128> hash_from_hex(std::string_view hex);

Hash128 hash128(std::span<const std::byte> data);

class Hasher {
 public:
  Hasher();
  ~Hasher();
  void update(std::span<const std::byte> data);
  void update(std::string_view text);
  Hash128 digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace llmops
