// Reads little-endian data of untrusted origin: every offset and length is checked before use.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "base/status.h"

namespace llmops {

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> data) : data_(data) {}
  size_t position() const { return position_; }
  size_t remaining() const { return data_.size() - position_; }

  template <class T>
    requires std::is_trivially_copyable_v<T>
  Result<T> read() {
    if (sizeof(T) > remaining()) return truncated(sizeof(T));
    T value;
    std::memcpy(&value, data_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }
  Result<std::span<const std::byte>> take(uint64_t bytes) {
    if (bytes > remaining()) return truncated(bytes);
    auto part = data_.subspan(position_, bytes);
    position_ += bytes;
    return part;
  }
  // A count of entries of at least entry_bytes_min each: refused when the rest of the data cannot hold them.
  Result<uint64_t> bounded_count(uint64_t count, uint64_t entry_bytes_min);

 private:
  Status truncated(uint64_t wanted) const;
  std::span<const std::byte> data_;
  size_t position_ = 0;
};

}  // namespace llmops
