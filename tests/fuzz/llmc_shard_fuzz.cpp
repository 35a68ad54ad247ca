// The input is an llm.c token shard.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "data/shards.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace llmops;
  const auto file = std::as_bytes(std::span(data, size));
  const auto header = file.first(std::min<size_t>(size, kLlmcHeaderBytes));
  const auto shard = parse_llmc_header(header, static_cast<int64_t>(size));
  if (!shard.ok()) return 0;
  const auto raw = file.subspan(static_cast<size_t>(shard->run.byte_offset));
  if (static_cast<int64_t>(raw.size()) != shard->run.count * token_type_bytes(shard->type)) __builtin_trap();
  std::vector<int64_t> tokens(static_cast<size_t>(shard->run.count));
  widen_tokens(shard->type, raw, tokens);
  return 0;
}
