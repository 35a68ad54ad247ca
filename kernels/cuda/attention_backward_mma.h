// Attention, backward, for bf16 on tensor cores. As attention_backward.cu defines it, but for the sums, which are taken
// as the hardware has them: s_ij and dp_ij by mma over 16 e at a time; dq_i by mma over 16 positions at a time, dk_j
// and dv_j over 16 queries of one head at a time, all queries of a head before the next head; with p_ij and ds_ij
// rounded to bf16 for these. The walks begin at a multiple of 32, of positions and of queries, and a pair that does not
// see each other adds zeros: so the bits of a gradient depend on its sequence only.
//
// A block owns 64 rows or keys, 16 for each of 4 warps, whose sums, p and ds stay in registers (FlashAttention-2, Dao
// 2023); with heads of 128 elements there are registers for 32 others at a time. The next 32 are copied meanwhile.
#pragma once

#include "kernels/cuda/attention_backward.h"
#include "kernels/cuda/attention_mma_tile.h"

namespace llmops::cuda {

constexpr int kMmaOwn = 64, kMmaOthers = 32;

#if defined(__CUDACC__) || defined(LLMOPS_SIMT)

template <int kWide>
struct alignas(16) MmaPairTiles {
  MmaRow<kWide> own[2][kMmaOwn];           // q and dout, or k and v; then the results
  MmaRow<kWide> others[2][2][kMmaOthers];  // k and v, or q and dout; of this pair and of the next
};

struct alignas(8) RowStats {
  float lse, d;
};
template <int kWide>
struct MmaKeyTiles {
  MmaPairTiles<kWide> tiles;
  RowStats rows[2][kMmaOthers];
  KeyBlock block;  // here, since sums leave it no registers
};

// Products and sums of a warp's 16 of the owned; of a thread's two, half 0 and 1.
using MmaPair = MmaC[kMmaOthers / 8];
template <int kWide>
using MmaSum = MmaC[kWide / 8];

// The first of the owned that the thread has.
__device__ __forceinline__ int mma_own() {
  return static_cast<int>(threadIdx.x) / kWarp * 16 + static_cast<int>(threadIdx.x) % kWarp / 4;
}
__device__ __forceinline__ int mma_column() { return static_cast<int>(threadIdx.x) % 4 * 2; }

template <int kWide>
__device__ __forceinline__ void clear_sum(MmaSum<kWide>& sum) {
#pragma unroll
  for (int i = 0; i < kWide / 8; ++i) sum[i] = {};
}

// The thread's part of a sum, rounded, to the block's tile.
template <int kWide>
__device__ __forceinline__ void put_sum(const MmaSum<kWide>& sum, MmaRow<kWide>* tile) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int i = 0; i < kWide / 8; ++i) {
      const MmaC& c = sum[i];
      store(&tile[mma_own() + 8 * half][8 * i + mma_column()],
            Vec<bf16, 2>{narrow<bf16>(c.r[2 * half]), narrow<bf16>(c.r[2 * half + 1])});
    }
}

// row_at(row)[x] = tile[row][x] for the first `rows` rows and x < e.
template <int kWide, class RowAt>
__device__ __forceinline__ void write_rows(const MmaRow<kWide>* tile, const Backward<bf16>& a, int rows, RowAt row_at) {
  constexpr int kVec = 8;
  const int parts = static_cast<int>(a.g.e) / kVec;
  for (int i = static_cast<int>(threadIdx.x); i < rows * parts; i += kTileThreads) {
    const int row = i / parts, x = i % parts * kVec;
    bf16* const to = row_at(row) + x;
    if (a.aligned) {
      store(to, load<kVec>(&tile[row][x]));
    } else {
      for (int j = 0; j < kVec; ++j) to[j] = tile[row][x + j];
    }
  }
}

// The thread's two rows; the keys that they see count from the sequence's first. Lengths are i32 (kv_len), and so fit.
struct OwnRows {
  float lse[2], d[2];
  int lo[2], hi[2];
};
__device__ __forceinline__ OwnRows own_rows(const Backward<bf16>& a, const Place& p) {
  OwnRows own = {};
  for (int half = 0; half < 2; ++half) {
    const int row = mma_own() + 8 * half;
    if (row >= p.rows()) continue;
    const int64_t at = (p.seq.q_begin + p.query_of(row)) * a.g.heads + p.head_of(row);
    own.lse[half] = a.lse[at];
    own.d[half] = a.d[at];
    const Span seen = visible(p.seq, p.seq.q_pos + p.query_of(row), a.window);
    own.lo[half] = static_cast<int>(seen.lo - p.seq.kv_pos);
    own.hi[half] = static_cast<int>(seen.hi - p.seq.kv_pos);
  }
  return own;
}

// ds of the keys from `begin` on, which counts as OwnRows does. In: p = q . k, ds = dout . v.
__device__ __forceinline__ void weigh_keys(const Backward<bf16>& a, const OwnRows& own, int begin, MmaPair& p,
                                           MmaPair& ds) {
#pragma unroll
  for (int i = 0; i < kMmaOthers / 8; ++i)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int key = begin + 8 * i + mma_column() + r % 2, half = r / 2;
      weigh_pair(a, own.lse[half], own.d[half], key >= own.lo[half] && key < own.hi[half], p[i].r[r], ds[i].r[r]);
    }
}

// The grid of the forward pass.
template <int kWide>
__global__ void __launch_bounds__(kTileThreads, kWide > 64 ? 3 : 4) backward_rows_mma(Backward<bf16> a) {
  Place place;
  if (!find_place(a.sequences, a.g, a.window, place)) return;
  MmaPairTiles<kWide>& s = block_shared<MmaPairTiles<kWide>>();
  const auto row_at = [&](const auto& x) {
    return [&](int i) { return x.at(place.seq.q_begin + place.query_of(i), place.head_of(i)); };
  };
  // Keys [lo, hi) of the sequence; the tile at `begin`, which may be before its first.
  const int lo = static_cast<int>(place.keys.lo - place.seq.kv_pos),
            hi = static_cast<int>(place.keys.hi - place.seq.kv_pos);
  const auto copy_keys = [&](int stage, int begin) {
    const auto key_at = [&](const auto& x) {
      return [&](int i) { return x.at(place.seq.kv_begin + begin + i, place.kv_head); };
    };
    copy_rows<kWide>(s.others[stage][0], kMmaOthers, a, lo - begin, hi - begin, key_at(a.k));
    copy_rows<kWide>(s.others[stage][1], kMmaOthers, a, lo - begin, hi - begin, key_at(a.v));
    copy_commit();
  };
  copy_rows<kWide>(s.own[0], kMmaOwn, a, 0, place.rows(), row_at(a.q));
  copy_rows<kWide>(s.own[1], kMmaOwn, a, 0, place.rows(), row_at(a.dout));
  copy_commit();

  const OwnRows own = own_rows(a, place);
  MmaSum<kWide> dq;
  clear_sum<kWide>(dq);
  int begin = lo < hi ? lo - static_cast<int>(place.keys.lo & (kMmaOthers - 1)) : hi;
  if (begin < hi) copy_keys(0, begin);
  for (int stage = 0; begin < hi; begin += kMmaOthers, stage ^= 1) {
    copy_wait<0>();
    __syncthreads();
    if (hi - begin > kMmaOthers) copy_keys(stage ^ 1, begin + kMmaOthers);
    MmaPair p, ds;
    mma_dots<kWide>(s.own[0], s.others[stage][0], p);
    mma_dots<kWide>(s.own[1], s.others[stage][1], ds);
    weigh_keys(a, own, begin, p, ds);
    mma_add<kWide>(ds, s.others[stage][0], dq);
  }
  copy_wait<0>();
  __syncthreads();
  put_sum<kWide>(dq, s.own[0]);
  __syncthreads();
  write_rows<kWide>(s.own[0], a, place.rows(), row_at(a.dq));
}

// Queries [first, first + 32) of one head, or fewer at the end of the sequence, as the others of a block of keys. They
// are taken in order, those of a head before the next head.
struct QueryTile {
  int64_t head;
  int first;
};

// Of the thread's query of the tile.
__device__ __forceinline__ RowStats row_stats(const Backward<bf16>& a, const Sequence& seq, const QueryTile& tile) {
  const int64_t query = int64_t{tile.first} + threadIdx.x;
  if (threadIdx.x >= kMmaOthers || query >= seq.q_count) return {};
  const int64_t at = (seq.q_begin + query) * a.g.heads + tile.head;
  return {a.lse[at], a.d[at]};
}

// Which keys of a block the queries of a tile see: query i of `rows` sees key j if ahead + i >= j > behind + i.
// Distances beyond the tiles are all the same.
struct Band {
  int rows, ahead, behind;
};
__device__ __forceinline__ Band band_of(const KeyBlock& block, const QueryTile& tile, int64_t window) {
  constexpr int64_t kFar = kMmaOwn + kMmaOthers;
  const int64_t left = block.seq.q_count - tile.first;
  const int64_t distance = block.seq.q_pos + tile.first - block.seq.kv_pos - block.first;
  const Span near = cut({distance, window > 0 ? distance - window : -kFar}, -kFar, kFar);
  return {static_cast<int>(left < kMmaOthers ? left : kMmaOthers), static_cast<int>(near.lo),
          static_cast<int>(near.hi)};
}

// p and ds of the thread's keys. In: p = q . k, ds = dout . v.
__device__ __forceinline__ void weigh_rows(const Backward<bf16>& a, const RowStats* rows, const Band& band, MmaPair& p,
                                           MmaPair& ds) {
#pragma unroll
  for (int i = 0; i < kMmaOthers / 8; ++i)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int row = 8 * i + mma_column() + r % 2, offset = row - mma_own() - r / 2 * 8;
      const bool seen = row < band.rows && offset + band.ahead >= 0 && offset + band.behind < 0;
      weigh_pair(a, rows[row].lse, rows[row].d, seen, p[i].r[r], ds[i].r[r]);
    }
}

// Grid: blocks of keys, kv_rows / 64 + sequences, by KV heads.
template <int kWide>
__global__ void __launch_bounds__(kTileThreads, kWide > 64 ? 2 : 3) backward_keys_mma(Backward<bf16> a) {
  KeyBlock found;
  if (!find_keys(a.sequences, kMmaOwn, found)) return;
  MmaKeyTiles<kWide>& shared = block_shared<MmaKeyTiles<kWide>>();
  MmaPairTiles<kWide>& s = shared.tiles;
  if (threadIdx.x == 0) shared.block = found;
  __syncthreads();
  const KeyBlock& block = shared.block;
  const int64_t kv_head = blockIdx.y;
  const auto key_at = [&](const auto& x) {
    return [&](int i) { return x.at(block.seq.kv_begin + block.first + i, kv_head); };
  };
  const auto copy_queries = [&](int stage, const QueryTile& tile) {
    const int64_t left = block.seq.q_count - tile.first;
    const int rows = static_cast<int>(left < kMmaOthers ? left : kMmaOthers);
    const auto row_at = [&](const auto& x) {
      return [&](int i) { return x.at(block.seq.q_begin + tile.first + i, tile.head); };
    };
    copy_rows<kWide>(s.others[stage][0], kMmaOthers, a, 0, rows, row_at(a.q));
    copy_rows<kWide>(s.others[stage][1], kMmaOthers, a, 0, rows, row_at(a.dout));
    copy_commit();
  };
  copy_rows<kWide>(s.own[0], kMmaOwn, a, 0, block.keys, key_at(a.k));
  copy_rows<kWide>(s.own[1], kMmaOwn, a, 0, block.keys, key_at(a.v));
  copy_commit();

  MmaSum<kWide> dk, dv;
  clear_sum<kWide>(dk);
  clear_sum<kWide>(dv);
  const Span queries = queries_of(block, a.window);
  const int first = static_cast<int>(queries.lo / kMmaOthers) * kMmaOthers, end = static_cast<int>(queries.hi);
  const int64_t head_end = (kv_head + 1) * a.g.group;
  QueryTile tile = {queries.lo < queries.hi ? kv_head * a.g.group : head_end, first};
  if (tile.head < head_end) {
    copy_queries(0, tile);
    if (threadIdx.x < kMmaOthers) shared.rows[0][threadIdx.x] = row_stats(a, block.seq, tile);
  }
  for (int stage = 0; tile.head < head_end; stage ^= 1) {
    copy_wait<0>();
    __syncthreads();
    const Band band = band_of(block, tile, a.window);
    tile =
        end - tile.first > kMmaOthers ? QueryTile{tile.head, tile.first + kMmaOthers} : QueryTile{tile.head + 1, first};
    RowStats next = {};  // stored after the products, so that nobody waits for it
    if (tile.head < head_end) {
      copy_queries(stage ^ 1, tile);
      next = row_stats(a, block.seq, tile);
    }
    MmaPair p, ds;
    mma_dots<kWide>(s.own[0], s.others[stage][0], p);
    mma_dots<kWide>(s.own[1], s.others[stage][1], ds);
    if (threadIdx.x < kMmaOthers) shared.rows[stage ^ 1][threadIdx.x] = next;
    weigh_rows(a, shared.rows[stage], band, p, ds);
    mma_add<kWide>(p, s.others[stage][1], dv);
    mma_add<kWide>(ds, s.others[stage][0], dk);
  }
  copy_wait<0>();
  __syncthreads();
  put_sum<kWide>(dk, s.own[0]);
  put_sum<kWide>(dv, s.own[1]);
  __syncthreads();
  write_rows<kWide>(s.own[0], a, block.keys, key_at(a.dk));
  write_rows<kWide>(s.own[1], a, block.keys, key_at(a.dv));
}

#endif

}  // namespace llmops::cuda
