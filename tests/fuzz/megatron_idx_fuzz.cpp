// The input is a Megatron .idx file; its .bin has kBinBytes.
#include <cstddef>
#include <cstdint>

#include "data/shards.h"

constexpr int64_t kBinBytes = 64;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace llmops;
  const auto index = parse_megatron_index(std::as_bytes(std::span(data, size)), kBinBytes);
  if (!index.ok()) return 0;
  int64_t tokens = 0;
  for (const TokenRun& run : index->runs) {
    if (run.byte_offset < 0 || run.count <= 0) __builtin_trap();
    if (run.byte_offset > kBinBytes || run.count > kBinBytes / token_type_bytes(index->type)) __builtin_trap();
    if (run.byte_offset + run.count * token_type_bytes(index->type) > kBinBytes) __builtin_trap();
    tokens += run.count;
  }
  if (tokens != index->tokens) __builtin_trap();
  int64_t last = -1;
  for (const int64_t start : index->document_starts) {
    if (start <= last || start >= tokens) __builtin_trap();
    last = start;
  }
  return 0;
}
