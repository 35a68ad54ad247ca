#include "base/bytes.h"

#include <fmt/format.h>

#include <algorithm>

namespace llmops {

Status ByteReader::truncated(uint64_t wanted) const {
  return invalid_error(fmt::format("truncated: {} bytes expected at offset {}, {} are left", wanted, position_, remaining()));
}

Result<uint64_t> ByteReader::bounded_count(uint64_t count, uint64_t entry_bytes_min) {
  const uint64_t count_max = remaining() / std::max<uint64_t>(entry_bytes_min, 1);
  if (count <= count_max) return count;
  return invalid_error(fmt::format("{} entries of at least {} bytes announced at offset {}, the {} bytes left hold at most {}",
                                   count, entry_bytes_min, position_, remaining(), count_max));
}

}  // namespace llmops
