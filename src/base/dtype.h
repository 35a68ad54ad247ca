// Element types of tensors. A type is a row of a table {name, block_elems, block_bytes}, so block-quantised types fit
// the same arithmetic as plain ones (Q8_0 is 32 elements in 34 bytes).
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace llmops {

enum class DType : uint8_t { f32, bf16, f16, f64, i64, i32, u16, u8, kCount };

struct DTypeInfo {
  std::string_view name;         // the spelling of safetensors headers
  std::string_view name_config;  // the spelling of HF config.json ("float32")
  int block_elems;
  int block_bytes;
};

inline constexpr DTypeInfo kDTypes[] = {
    {"F32", "float32", 1, 4}, {"BF16", "bfloat16", 1, 2}, {"F16", "float16", 1, 2}, {"F64", "float64", 1, 8},
    {"I64", "int64", 1, 8},   {"I32", "int32", 1, 4},     {"U16", "uint16", 1, 2},  {"U8", "uint8", 1, 1},
};
static_assert(sizeof(kDTypes) / sizeof(kDTypes[0]) == static_cast<size_t>(DType::kCount));

constexpr const DTypeInfo& info(DType dtype) { return kDTypes[static_cast<int>(dtype)]; }

// Bytes of `elems` elements; nullopt for a negative count, a partial block or an overflow.
constexpr std::optional<int64_t> bytes_of(DType dtype, int64_t elems) {
  const DTypeInfo& t = info(dtype);
  if (elems < 0 || elems % t.block_elems != 0) return std::nullopt;
  int64_t bytes = 0;
  if (__builtin_mul_overflow(elems / t.block_elems, int64_t{t.block_bytes}, &bytes)) return std::nullopt;
  return bytes;
}

constexpr std::optional<DType> dtype_from_name(std::string_view name) {
  for (int i = 0; i < static_cast<int>(DType::kCount); ++i)
    if (kDTypes[i].name == name || kDTypes[i].name_config == name) return static_cast<DType>(i);
  return std::nullopt;
}

// bfloat16: the upper half of a float. Conversion rounds to nearest even; NaN stays NaN.
struct bf16 {
  uint16_t bits;
};

inline float to_f32(bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
inline float to_f32(float x) { return x; }

inline bf16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>(u >> 16 | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1u)) >> 16)};
}

// IEEE binary16, used at rest only (files): values are widened or rounded (to nearest even) on load and store.
struct f16 {
  uint16_t bits;
};

float to_f32(f16 x);
f16 to_f16(float x);

}  // namespace llmops
