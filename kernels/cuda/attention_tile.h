// Tiles of f32 in shared memory and the product of two of them: the attention kernels on plain FMA units. 128 threads,
// each with 4 x 4 of 32 x 64 results, every one an ascending chain of fma.
#pragma once

#include "kernels/cuda/device.h"

#if defined(__CUDACC__) || defined(LLMOPS_SIMT)

namespace llmops::cuda {

constexpr int kTileThreads = 128;
// For launch bounds. Shared memory lets at most 4 of these blocks onto a multiprocessor, so registers need not let on
// more. ptxas does not see how much of it a launch asks for, and without a number spills to make room for more blocks.
constexpr int kTileBlocks = 1;
constexpr int kTileRows = 32, kTileColumns = 64;
// Pitches: 16 bytes of alignment, and threads that store down a column reach different banks.
constexpr int kRowPitch = kTileRows + 4, kColumnPitch = kTileColumns + 4;

// The 4 rows and 4 columns of a thread begin here. 16 neighbours read the same rows, half a warp all columns.
__device__ __forceinline__ int tile_row() { return static_cast<int>(threadIdx.x) / 16 * 4; }
__device__ __forceinline__ int tile_column() { return static_cast<int>(threadIdx.x) % 16 * 4; }

struct Product {
  float at[4][4];

  __device__ __forceinline__ void clear() {
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j) at[i][j] = 0;
  }
  // Lengthens the chains by rows[x][.] * columns[x][.], x = 0 ... count - 1. Pitches kRowPitch and kColumnPitch.
  __device__ __forceinline__ void add(const float* rows, const float* columns, int count) {
    rows += tile_row();
    columns += tile_column();
    for (int x = 0; x < count; ++x, rows += kRowPitch, columns += kColumnPitch) {
      const Vec<float, 4> a = load<4>(rows), b = load<4>(columns);
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) at[i][j] = fmaf(a.v[i], b.v[j], at[i][j]);
    }
  }
};

// to(i, x, value) for all x < width of rows [begin, end): row_at(i) is where row i begins, or null for a row of zeros.
// kVec elements a load; neighbouring threads take neighbouring rows where the tile is transposed (their stores then
// fall on different banks), else neighbouring elements.
template <int kVec, bool kTransposed, class RowAt, class To>
__device__ __forceinline__ void load_rows_by(int begin, int end, int width, RowAt row_at, To to) {
  const int rows = end - begin, parts = width / kVec;
  for (int i = static_cast<int>(threadIdx.x); i < rows * parts; i += kTileThreads) {
    const int row = begin + (kTransposed ? i % rows : i / parts), x = (kTransposed ? i / rows : i % parts) * kVec;
    const auto* from = row_at(row);
    if (from == nullptr) {
      for (int j = 0; j < kVec; ++j) to(row, x + j, 0.0f);
    } else {
      const auto v = load<kVec>(from + x);
      for (int j = 0; j < kVec; ++j) to(row, x + j, widen(v.v[j]));
    }
  }
}
template <class T, bool kTransposed, class RowAt, class To>
__device__ __forceinline__ void load_rows(bool aligned, int begin, int end, int width, RowAt row_at, To to) {
  if (aligned)
    load_rows_by<16 / sizeof(T), kTransposed>(begin, end, width, row_at, to);
  else
    load_rows_by<1, kTransposed>(begin, end, width, row_at, to);
}

// tile[x][row] and tile[row][x].
template <class T, class RowAt>
__device__ __forceinline__ void load_transposed(float* tile, int pitch, bool aligned, int begin, int end, int width,
                                                RowAt row_at) {
  load_rows<T, true>(aligned, begin, end, width, row_at, [=](int row, int x, float v) { tile[x * pitch + row] = v; });
}
template <class T, class RowAt>
__device__ __forceinline__ void load_straight(float* tile, int pitch, bool aligned, int begin, int end, int width,
                                              RowAt row_at) {
  load_rows<T, false>(aligned, begin, end, width, row_at, [=](int row, int x, float v) { tile[row * pitch + x] = v; });
}

// row_at(i)[x] = value(i, x), rounded, for all x < width of the first `rows` rows; 16 bytes a store where rows are
// aligned.
template <class T, int kVec, class RowAt, class Value>
__device__ __forceinline__ void store_rows_by(int rows, int width, RowAt row_at, Value value) {
  const int parts = width / kVec;
  for (int i = static_cast<int>(threadIdx.x); i < rows * parts; i += kTileThreads) {
    const int row = i / parts, x = i % parts * kVec;
    Vec<T, kVec> v;
    for (int j = 0; j < kVec; ++j) v.v[j] = narrow<T>(value(row, x + j));
    store(row_at(row) + x, v);
  }
}
template <class T, class RowAt, class Value>
__device__ __forceinline__ void store_rows(bool aligned, int rows, int width, RowAt row_at, Value value) {
  if (aligned)
    store_rows_by<T, 16 / sizeof(T)>(rows, width, row_at, value);
  else
    store_rows_by<T, 1>(rows, width, row_at, value);
}

}  // namespace llmops::cuda

#endif
