#include "ckpt/digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace llmops {
namespace {

// Odd 64-bit constants; multiply and xor-shift as in the finalizers of MurmurHash3 (A. Appleby) and splitmix64 (S.
// Vigna).
template <class Bits>
DigestSum run_of(const char* data, uint64_t first, int64_t count) {
  DigestSum sum;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, data + i * static_cast<int64_t>(sizeof bits), sizeof bits);
    uint64_t x = (first + static_cast<uint64_t>(i)) * 0x9E3779B97F4A7C15ull ^
                 (static_cast<uint64_t>(bits) + 0x632BE59BD9B4E019ull) * 0xD6E8FEB86659FD93ull;
    x = (x ^ x >> 32) * 0xBF58476D1CE4E5B9ull;
    x ^= x >> 29;
    sum.lo += x;
    x *= 0x94D049BB133111EBull;
    sum.hi += x ^ x >> 31;
  }
  return sum;
}

}  // namespace

DigestSum digest_run(const void* data, int element_bytes, uint64_t first, int64_t count) {
  const auto* bytes = static_cast<const char*>(data);
  switch (element_bytes) {
    case 1:
      return run_of<uint8_t>(bytes, first, count);
    case 2:
      return run_of<uint16_t>(bytes, first, count);
    case 4:
      return run_of<uint32_t>(bytes, first, count);
    default:
      return run_of<uint64_t>(bytes, first, count);
  }
}

// In runs that are contiguous in the tensor.
DigestSum digest_part(const Shape& shape, const Box& box, int64_t first, std::span<const std::byte> data,
                      int element_bytes) {
  const int64_t count = static_cast<int64_t>(data.size()) / element_bytes,
                width = box.extent.empty() ? 1 : box.extent.back();
  DigestSum sum;
  for (int64_t i = 0; i < count;) {
    const int64_t row = (first + i) / width, column = (first + i) % width, run = std::min(width - column, count - i);
    const int64_t flat = shape.empty()       ? 0
                         : shape.size() == 1 ? box.offset[0] + column
                                             : (box.offset[0] + row) * shape[1] + box.offset[1] + column;
    sum.add(digest_run(data.data() + i * element_bytes, element_bytes, static_cast<uint64_t>(flat), run));
    i += run;
  }
  return sum;
}

Hash128 finish_digest(const DigestSum& sum, DType dtype, const Shape& shape) {
  const std::string text =
      fmt::format("{} [{}] {:016x}{:016x}", info(dtype).name, fmt::join(shape, ","), sum.hi, sum.lo);
  return hash128(std::as_bytes(std::span(text)));
}

}  // namespace llmops
