// Walking a row in steps of 16 lanes, and sums over rows. Comes after vec.h.
#pragma once

// A lambda that is a loop body: inlined, and compiled for the instruction set that the target pragma does not give it.
#define LLMOPS_BODY __attribute__((always_inline)) LLMOPS_ATTR

namespace llmops::LLMOPS_ISA {

// body(i, n) for i = 0, 16, 32, ... < count; n = 16 but for the rest of the row, a constant of the loop once inlined.
template <class Body>
LLMOPS_INLINE void for_lanes(int64_t count, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(i, kLanes);
  if (i < count) body(i, static_cast<int>(count - i));
}

template <class T>
LLMOPS_INLINE F32x16 load_part(const T* p, int n) {
  return n == kLanes ? load(p) : load_n(p, n);
}
template <class T>
LLMOPS_INLINE void store_part(T* p, F32x16 x, int n) {
  if (n == kLanes) {
    store(p, x);
  } else {
    store_n(p, x, n);
  }
}
// The first n lanes of x, `fill` in the others.
LLMOPS_INLINE F32x16 keep_part(F32x16 x, int n, float fill) {
  if (n == kLanes) return x;
  float lane[kLanes];
  store(lane, x);
  for (int i = n; i < kLanes; ++i) lane[i] = fill;
  return load(lane);
}

LLMOPS_INLINE void add_lanes(float* to, const float* a, const float* b, int64_t count) {
  for_lanes(count, [&](int64_t i, int n) LLMOPS_BODY {
    store_part(to + i, load_part(a + i, n) + load_part(b + i, n), n);
  });
}

// Columns [begin, end) of tree_sum().
static inline void tree_sum_columns(float* partial, int64_t blocks, int64_t width, float* out, bool accumulate,
                                    int64_t begin, int64_t end) {
  float* first = partial + begin;
  const int64_t count = end - begin;
  for (int64_t step = 1; step < blocks; step *= 2) {
    for (int64_t k = 0; k + step < blocks; k += 2 * step)
      add_lanes(first + k * width, first + k * width, first + (k + step) * width, count);
  }
  if (accumulate) {
    add_lanes(out + begin, out + begin, first, count);
  } else {
    std::memcpy(out + begin, first, static_cast<size_t>(count) * sizeof(float));
  }
}

// out[width] (+)= sum over k of partial[k, width], as a balanced binary tree over `blocks` leaves: neighbours first,
// then pairs of them. partial is overwritten. A leaf is the sum of kRowBlock rows; no leaf is a sum of 0.
static inline void tree_sum(Stream& stream, float* partial, int64_t blocks, int64_t width, float* out,
                            bool accumulate) {
  constexpr int64_t kSlice = 512;
  if (blocks == 0) {
    if (!accumulate) std::memset(out, 0, static_cast<size_t>(width) * sizeof(float));
    return;
  }
  for_ranges(stream, width, kSlice, [=](int64_t begin, int64_t end) {
    tree_sum_columns(partial, blocks, width, out, accumulate, begin, end);
  });
}

}  // namespace llmops::LLMOPS_ISA
