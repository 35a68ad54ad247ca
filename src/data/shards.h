// Headers of token files: llm.c shards and Megatron's index. What they say is checked against the sizes of the files
// before anything is allocated or read.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace llmops {

enum class TokenType : uint8_t { u8, i8, i16, u16, i32, u32, i64 };
int token_type_bytes(TokenType type);
// count values of `type` as 64-bit integers.
void widen_tokens(TokenType type, std::span<const std::byte> raw, std::span<int64_t> out);

// A run of tokens that lie side by side in a file.
struct TokenRun {
  int64_t byte_offset = 0;
  int64_t count = 0;
};

constexpr int32_t kLlmcMagicU16 = 20240520;  // version 1, uint16 tokens
constexpr int32_t kLlmcMagicU32 = 20240801;  // version 7, uint32 tokens (Llama 3)
constexpr int64_t kLlmcHeaderBytes = 1024;   // 256 int32: magic, version, tokens, zeros

struct LlmcShard {
  TokenType type = TokenType::u16;
  TokenRun run;
};
// `header`: the first bytes of the file, kLlmcHeaderBytes of them if it has so many.
Result<LlmcShard> parse_llmc_header(std::span<const std::byte> header, int64_t file_bytes);

struct MegatronIndex {
  TokenType type = TokenType::u16;
  std::vector<TokenRun> runs;            // in sequence order; sequences that follow one another in the .bin are one run
  std::vector<int64_t> document_starts;  // in tokens
  int64_t tokens = 0;
};
// `idx`: the whole .idx file; bin_bytes: the size of the .bin beside it.
Result<MegatronIndex> parse_megatron_index(std::span<const std::byte> idx, int64_t bin_bytes);

}  // namespace llmops
