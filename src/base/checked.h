// Arithmetic on numbers that come from outside: every product and sum says when it would wrap.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace llmops {

template <class T>
constexpr std::optional<T> checked_add(T a, T b) {
  T r;
  if (__builtin_add_overflow(a, b, &r)) return std::nullopt;
  return r;
}

template <class T>
constexpr std::optional<T> checked_mul(T a, T b) {
  T r;
  if (__builtin_mul_overflow(a, b, &r)) return std::nullopt;
  return r;
}

// Product of dimensions; empty means 1 (a rank-0 tensor). nullopt on overflow or a negative dimension.
constexpr std::optional<int64_t> checked_product(std::span<const int64_t> dims) {
  int64_t product = 1;
  for (int64_t d : dims) {
    if (d < 0) return std::nullopt;
    auto next = checked_mul(product, d);
    if (!next) return std::nullopt;
    product = *next;
  }
  return product;
}

// x rounded up to a multiple of `to` (> 0). nullopt on overflow.
constexpr std::optional<uint64_t> checked_round_up(uint64_t x, uint64_t to) {
  const uint64_t rest = x % to;
  return rest == 0 ? std::optional<uint64_t>(x) : checked_add<uint64_t>(x, to - rest);
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

}  // namespace llmops
