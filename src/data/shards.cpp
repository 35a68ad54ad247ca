#include "data/shards.h"

#include <fmt/format.h>

#include <cstring>

#include "base/bytes.h"
#include "base/checked.h"

namespace llmops {
namespace {

template <class T>
void widen(std::span<const std::byte> raw, std::span<int64_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, raw.data() + i * sizeof(T), sizeof(T));
    out[i] = value;
  }
}

// Megatron's dtype codes (core/datasets/indexed_dataset.py).
Result<TokenType> megatron_type(uint8_t code) {
  switch (code) {
    case 1: return TokenType::u8;
    case 2: return TokenType::i8;
    case 3: return TokenType::i16;
    case 4: return TokenType::i32;
    case 5: return TokenType::i64;
    case 6: return invalid_error("index: dtype code 6 (float64), expected an integer type: these are no tokens");
    case 7: return invalid_error("index: dtype code 7 (float32), expected an integer type: these are no tokens");
    case 8: return TokenType::u16;
    default: return invalid_error(fmt::format("index: dtype code {}, expected 1..8", code));
  }
}

struct Sizes {
  TokenType type;
  uint64_t sequences, documents;
};

// 34 bytes: "MMIDIDX\0\0", u64 version, u8 dtype, u64 sequences, u64 document entries.
Result<Sizes> read_sizes(ByteReader& reader) {
  constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
  LLMOPS_ASSIGN(const auto magic, reader.take(kMagic.size()));
  if (std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0)
    return invalid_error("index: does not begin with MMIDIDX, so it is no Megatron index");
  LLMOPS_ASSIGN(const auto version, reader.read<uint64_t>());
  if (version != 1) return invalid_error(fmt::format("index: version {}, expected 1", version));
  LLMOPS_ASSIGN(const auto code, reader.read<uint8_t>());
  LLMOPS_ASSIGN(const TokenType type, megatron_type(code));
  LLMOPS_ASSIGN(const auto sequences, reader.read<uint64_t>());
  LLMOPS_ASSIGN(const auto documents, reader.read<uint64_t>());
  return Sizes{type, sequences, documents};
}

// The arrays fill the rest of the file: i32 length and i64 offset per sequence, i64 per document, maybe an i8 mode per
// sequence.
Status check_sizes(const Sizes& sizes, uint64_t remaining) {
  const auto arrays = checked_mul<uint64_t>(sizes.sequences, 12), documents = checked_mul<uint64_t>(sizes.documents, 8);
  const auto bytes = arrays && documents ? checked_add(*arrays, *documents) : std::nullopt;
  const auto with_modes = bytes ? checked_add(*bytes, sizes.sequences) : std::nullopt;
  if (!with_modes || (*bytes != remaining && *with_modes != remaining))
    return invalid_error(fmt::format("index: {} sequences and {} document entries do not fit the {} bytes behind the "
                                     "header", sizes.sequences, sizes.documents, remaining));
  return {};
}

template <class T>
T at(std::span<const std::byte> array, uint64_t i) {
  T value;
  std::memcpy(&value, array.data() + i * sizeof(T), sizeof(T));
  return value;
}

// Sequence i of `length` tokens at byte `offset` goes behind the others.
Status add_sequence(uint64_t i, int64_t offset, int64_t length, int64_t bin_bytes, MegatronIndex* index) {
  const int64_t width = token_type_bytes(index->type);
  if (length < 0 || offset < 0 || offset > bin_bytes || length > (bin_bytes - offset) / width)
    return invalid_error(fmt::format("index: sequence {} has {} tokens at byte {}, beyond the .bin of {} bytes", i,
                                     length, offset, bin_bytes));
  const auto tokens = checked_add(index->tokens, length);
  if (!tokens) return invalid_error("index: the number of tokens overflows");
  index->tokens = *tokens;
  if (length == 0) return {};
  if (!index->runs.empty()) {
    TokenRun& last = index->runs.back();
    if (last.byte_offset + last.count * width == offset) {
      last.count += length;
      return {};
    }
  }
  index->runs.push_back({offset, length});
  return {};
}

}  // namespace

int token_type_bytes(TokenType type) {
  constexpr int kBytes[] = {1, 1, 2, 2, 4, 4, 8};
  return kBytes[static_cast<int>(type)];
}

void widen_tokens(TokenType type, std::span<const std::byte> raw, std::span<int64_t> out) {
  switch (type) {
    case TokenType::u8: return widen<uint8_t>(raw, out);
    case TokenType::i8: return widen<int8_t>(raw, out);
    case TokenType::i16: return widen<int16_t>(raw, out);
    case TokenType::u16: return widen<uint16_t>(raw, out);
    case TokenType::i32: return widen<int32_t>(raw, out);
    case TokenType::u32: return widen<uint32_t>(raw, out);
    case TokenType::i64: return widen<int64_t>(raw, out);
  }
}

Result<LlmcShard> parse_llmc_header(std::span<const std::byte> header, int64_t file_bytes) {
  if (static_cast<int64_t>(header.size()) < kLlmcHeaderBytes)
    return invalid_error(fmt::format("llm.c shard: {} bytes, expected a header of {}", file_bytes, kLlmcHeaderBytes));
  const auto magic = at<int32_t>(header, 0), version = at<int32_t>(header, 1), count = at<int32_t>(header, 2);
  if (magic != kLlmcMagicU16 && magic != kLlmcMagicU32)
    return invalid_error(fmt::format("llm.c shard: magic {}, expected {} (uint16) or {} (uint32)", magic, kLlmcMagicU16,
                                     kLlmcMagicU32));
  const int32_t version_wanted = magic == kLlmcMagicU16 ? 1 : 7;
  if (version != version_wanted)
    return invalid_error(fmt::format("llm.c shard: version {}, expected {} for magic {}", version, version_wanted,
                                     magic));
  LlmcShard shard;
  shard.type = magic == kLlmcMagicU16 ? TokenType::u16 : TokenType::u32;
  const int64_t expected = kLlmcHeaderBytes + int64_t{count} * token_type_bytes(shard.type);
  if (count < 0 || expected != file_bytes)
    return invalid_error(fmt::format("llm.c shard: the header says {} tokens, a file of {} bytes; this one has {}",
                                     count, expected, file_bytes));
  shard.run = {kLlmcHeaderBytes, count};
  return shard;
}

Result<MegatronIndex> parse_megatron_index(std::span<const std::byte> idx, int64_t bin_bytes) {
  ByteReader reader(idx);
  LLMOPS_ASSIGN(const Sizes sizes, read_sizes(reader));
  LLMOPS_TRY(check_sizes(sizes, reader.remaining()));
  LLMOPS_ASSIGN(const auto lengths, reader.take(sizes.sequences * 4));
  LLMOPS_ASSIGN(const auto offsets, reader.take(sizes.sequences * 8));
  LLMOPS_ASSIGN(const auto documents, reader.take(sizes.documents * 8));

  MegatronIndex index;
  index.type = sizes.type;
  uint64_t document = 0;
  const auto document_at = [&](uint64_t i) { return at<int64_t>(documents, i); };
  if (sizes.documents == 0 || document_at(0) != 0)
    return invalid_error("index: the list of documents does not begin with 0");
  for (uint64_t i = 0; i < sizes.sequences; ++i) {
    for (; document < sizes.documents && document_at(document) == static_cast<int64_t>(i); ++document)
      if (index.document_starts.empty() || index.document_starts.back() < index.tokens)
        index.document_starts.push_back(index.tokens);
    LLMOPS_TRY(add_sequence(i, at<int64_t>(offsets, i), at<int32_t>(lengths, i), bin_bytes, &index));
  }
  while (document < sizes.documents && document_at(document) == static_cast<int64_t>(sizes.sequences)) ++document;
  if (document != sizes.documents || document_at(document - 1) != static_cast<int64_t>(sizes.sequences))
    return invalid_error(fmt::format("index: document entries do not ascend from 0 to the {} sequences (entry {})",
                                     sizes.sequences, document));
  if (!index.document_starts.empty() && index.document_starts.back() == index.tokens) index.document_starts.pop_back();
  return index;
}

}  // namespace llmops
