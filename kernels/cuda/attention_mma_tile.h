// What the bf16 attention kernels on tensor cores share: tiles of rows in shared memory, the products of a warp's 16 rows
// of one tile with the rows of another, and the sums of those rows, weighted.
//
// A block has 4 warps, each with 16 rows of its own. Of a product a thread has rows g and g + 8, and columns 2t and 2t + 1
// of every 8 (g = lane / 4, t = lane % 4).
#pragma once

#include "kernels/cuda/attention_batch.h"
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/copy.h"
#include "kernels/cuda/mma.h"

namespace llmops::cuda {

constexpr int64_t kMmaHeadMax = 128;

// Heads of whole 16 bytes. It must not hang on strides, which a cache and a fused projection have different.
inline bool takes_mma(int64_t e) { return e % 8 == 0 && e <= kMmaHeadMax; }

#if defined(__CUDACC__) || defined(LLMOPS_SIMT)

template <int kWide>
using MmaRow = bf16[kWide + 8];  // rows of ldmatrix begin on different banks

// tile[row][x] = row_at(row)[x] for rows [begin, end) of `rows` and x < e; zero elsewhere. Of Args: q, g.e and aligned.
template <int kWide, class Args, class RowAt>
__device__ __forceinline__ void copy_rows(MmaRow<kWide>* tile, int rows, const Args& a, int begin, int end,
                                          RowAt row_at) {
  constexpr int kVec = 8, kParts = kWide / kVec;
  for (int i = static_cast<int>(threadIdx.x); i < rows * kParts; i += kTileThreads) {
    const int row = i / kParts, x = i % kParts * kVec;
    const bool live = row >= begin && row < end && x < a.g.e;
    const bf16* const from = live ? row_at(row) + x : a.q.data;
    if (a.aligned) {
      copy_async(&tile[row][x], from, live ? 16 : 0);
    } else {
      for (int j = 0; j < kVec; ++j) tile[row][x + j] = live ? from[j] : bf16{0};
    }
  }
}

// product[i] = own . others over e, for others 8 i ... 8 i + 7.
template <int kWide, int kParts>
__device__ __forceinline__ void mma_dots(const MmaRow<kWide>* own, const MmaRow<kWide>* others,
                                         MmaC (&product)[kParts]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, first = static_cast<int>(threadIdx.x) / kWarp * 16;
#pragma unroll
  for (int i = 0; i < kParts; ++i) product[i] = {};
#pragma unroll
  for (int e = 0; e < kWide; e += 16) {
    MmaA a;
    load_matrices<false>(a.r, &own[first + lane % 16][e + lane / 16 * 8]);
#pragma unroll
    for (int i = 0; i < kParts; i += 2) {
      unsigned b[4];
      load_matrices<false>(b, &others[8 * i + lane / 16 * 8 + lane % 8][e + lane / 8 % 2 * 8]);
      mma(product[i], a, {b[0], b[1]});
      mma(product[i + 1], a, {b[2], b[3]});
    }
  }
}

__device__ __forceinline__ unsigned pair_of(float low, float high) {
  return narrow<bf16>(low).bits | static_cast<unsigned>(narrow<bf16>(high).bits) << 16;
}

// sum += weight * others. The weights of 16 others, as mma left them, are an operand as it wants it.
template <int kWide, int kParts>
__device__ __forceinline__ void mma_add(const MmaC (&weight)[kParts], const MmaRow<kWide>* others,
                                        MmaC (&sum)[kWide / 8]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < kParts; i += 2) {
    const MmaC &low = weight[i], &high = weight[i + 1];
    const MmaA a = {{pair_of(low.r[0], low.r[1]), pair_of(low.r[2], low.r[3]), pair_of(high.r[0], high.r[1]),
                     pair_of(high.r[2], high.r[3])}};
#pragma unroll
    for (int e = 0; e < kWide; e += 16) {
      unsigned b[4];
      load_matrices<true>(b, &others[8 * i + lane % 16][e + lane / 16 * 8]);
      mma(sum[e / 8], a, {b[0], b[1]});
      mma(sum[e / 8 + 1], a, {b[2], b[3]});
    }
  }
}

#endif

}  // namespace llmops::cuda
