// The matmul in tiles, all but the arithmetic of one tile, which a Kind brings (matmul_f32.cu, matmul_bf16.cu).
//
// A block computes kTileM x kTileN elements of out. Tiles of a and b, kTileK steps of k each, pass through a ring of
// kStages in shared memory, in the orientation in which they are stored, copied while earlier ones are computed.
//
// The order of a sum is that of kernels/ops.h: a chain over each block of 512 k, chains added ascending. So the chains of
// an element may be computed at the same time: with kSlices > 1 the block has that many groups of threads, each with a
// ring of its own, for chains slice, slice + kSlices, ... of the same elements. That is for few rows, where there are not
// enough tiles to keep a GPU's memory busy. What an element's bits are depends on none of this.
#pragma once

#include "base/checked.h"
#include "kernels/cuda/copy.h"
#include "kernels/cuda/matmul_epilogue.h"

namespace llmops::cuda {

constexpr int kChain = 512;  // k of one chain

template <class T>
struct Operand {
  const T* data;   // [rows, k] or [k, rows]
  int64_t stride;
  bool aligned;    // every row starts on 16 bytes
};

template <class T>
struct TileArgs {
  Operand<T> a, b;
  int64_t k;
  Epilogue<T> epilogue;
};

template <class T>
TileArgs<T> tile_args(const MatmulArgs& a) {
  const auto operand = [](const ConstTensorView& view) {
    return Operand<T>{static_cast<const T*>(view.data), view.stride[0], starts_aligned(view)};
  };
  return {operand(a.a), operand(a.b.data), a.a.dim[a.a_trans ? 0 : 1], epilogue_of<T>(a)};
}

#if defined(__CUDACC__) || defined(LLMOPS_SIMT)

// kRows rows (of op(a), or columns of op(b)) and kK steps of k in shared memory, as they are stored: lines along k, or
// along the rows. 16 unused bytes a line set eight lines off in the banks: reading 16 bytes of each has no conflict.
template <class T, int kRows, int kK, bool kAlongK>
struct OperandTile {
  static constexpr int kVec = 16 / sizeof(T), kLines = kAlongK ? kRows : kK, kLength = kAlongK ? kK : kRows;
  T line[kLines][kLength + kVec];

  // Lines from first_line and elements from first on; zero from end_line and end on.
  template <int kThreads>
  __device__ __forceinline__ void fetch(const Operand<T>& from, int thread, int64_t first_line, int64_t end_line,
                                        int64_t first, int64_t end) {
    for (int i = thread; i < kLines * (kLength / kVec); i += kThreads) {
      const int l = i / (kLength / kVec), at = i % (kLength / kVec) * kVec;
      const int64_t left = first_line + l < end_line ? end - (first + at) : 0;
      const int count = left <= 0 ? 0 : left < kVec ? static_cast<int>(left) : kVec;
      const T* const source = count > 0 ? from.data + (first_line + l) * from.stride + first + at : from.data;
      if (from.aligned) {
        copy_async(&line[l][at], source, count * static_cast<int>(sizeof(T)));
      } else {
        for (int j = 0; j < kVec; ++j) line[l][at + j] = j < count ? source[j] : T{};
      }
    }
  }
  template <int kThreads>
  __device__ __forceinline__ void fetch_tile(const Operand<T>& from, int thread, int64_t row, int64_t rows, int64_t k,
                                             int64_t k_end) {
    if (kAlongK) fetch<kThreads>(from, thread, row, rows, k, k_end);
    else fetch<kThreads>(from, thread, k, k_end, row, rows);
  }
};

template <class Kind>
struct TileStage {
  typename Kind::TileA a;
  typename Kind::TileB b;
};
template <class Kind>
using TileRing = TileStage<Kind>[Kind::kSlices][Kind::kStages];
template <class Kind>
using TileSums = float[Kind::kTileM][Kind::kTileN + 4];

// A single slice keeps its sums in registers to the end, when the ring is free; several meet here after each chain.
template <class Kind>
union TileSharedOne {
  TileRing<Kind> ring;
  TileSums<Kind> sums;
};
template <class Kind>
struct TileSharedSlices {
  TileRing<Kind> ring;
  TileSums<Kind> chain[Kind::kSlices];
  TileSums<Kind> sums;
};
template <class Kind>
using TileShared = std::conditional_t<Kind::kSlices == 1, TileSharedOne<Kind>, TileSharedSlices<Kind>>;

// sums = the chains of this round, of which there are `live`, added to it ascending.
template <class Kind>
__device__ __forceinline__ void add_chains(TileSharedSlices<Kind>& shared, bool first_round, int live) {
  for (int i = static_cast<int>(threadIdx.x); i < Kind::kTileM * Kind::kTileN; i += Kind::kThreads) {
    const int row = i / Kind::kTileN, column = i % Kind::kTileN;
    float sum = shared.chain[0][row][column];
    if (!first_round) sum = shared.sums[row][column] + sum;
    for (int slice = 1; slice < live; ++slice) sum = sum + shared.chain[slice][row][column];
    shared.sums[row][column] = sum;
  }
}

template <class Kind, class T>
__device__ __forceinline__ void finish_tile(const TileSums<Kind>& sums, const Epilogue<T>& e, int64_t row0,
                                            int64_t column0) {
  constexpr int kVec = 16 / sizeof(T), kParts = Kind::kTileN / kVec;
  for (int i = static_cast<int>(threadIdx.x); i < Kind::kTileM * kParts; i += Kind::kThreads) {
    const int row = i / kParts, column = i % kParts * kVec;
    if (row0 + row >= e.m || column0 + column >= e.n) continue;
    if (e.aligned && column0 + column + kVec <= e.n) {
      finish<kVec>(e, row0 + row, column0 + column, load<kVec>(&sums[row][column]));
    } else {
      for (int j = 0; j < kVec && column0 + column + j < e.n; ++j)
        finish<1>(e, row0 + row, column0 + column + j, load<1>(&sums[row][column + j]));
    }
  }
}

template <class Kind>
__global__ void __launch_bounds__(Kind::kThreads) matmul_tiles(TileArgs<typename Kind::T> p) {
  constexpr int kSlices = Kind::kSlices, kStages = Kind::kStages, kTileK = Kind::kTileK;
  constexpr int kSliceThreads = Kind::kThreads / kSlices;
  TileShared<Kind>& shared = block_shared<TileShared<Kind>>();
  const int id = static_cast<int>(threadIdx.x), slice = id / kSliceThreads, thread = id % kSliceThreads;
  const int64_t row0 = int64_t{blockIdx.x} * Kind::kTileM, column0 = int64_t{blockIdx.y} * Kind::kTileN;
  const int chains = p.k > kChain ? static_cast<int>((p.k + kChain - 1) / kChain) : 1;
  const int rounds = (chains + kSlices - 1) / kSlices;
  const int64_t rest = p.k - int64_t{rounds - 1} * kSlices * kChain;  // of the last round, for all slices
  const int last_steps = (static_cast<int>(rest < kChain ? rest : kChain) + kTileK - 1) / kTileK;
  const int steps = (rounds - 1) * (kChain / kTileK) + last_steps;

  const auto k_of = [&](int step) {
    return int64_t{step / (kChain / kTileK) * kSlices + slice} * kChain + step % (kChain / kTileK) * kTileK;
  };
  const auto fetch = [&](int step) {
    if (step < steps && k_of(step) < p.k) {
      TileStage<Kind>& stage = shared.ring[slice][step % kStages];
      stage.a.template fetch_tile<kSliceThreads>(p.a, thread, row0, p.epilogue.m, k_of(step), p.k);
      stage.b.template fetch_tile<kSliceThreads>(p.b, thread, column0, p.epilogue.n, k_of(step), p.k);
    }
    copy_commit();  // one group a step, so that the wait below counts steps
  };

  typename Kind::Sums chain = {}, sums = {};
  for (int step = 0; step < kStages - 1; ++step) fetch(step);
  for (int step = 0, round = 0; round < rounds; ++round) {
    const int round_end = round + 1 < rounds ? step + kChain / kTileK : steps;
    for (; step < round_end; ++step) {
      copy_wait<kStages - 2>();
      __syncthreads();  // the step's tiles are there for all; nobody reads those of the last step any more
      fetch(step + kStages - 1);
      const int64_t left = p.k - k_of(step);
      const TileStage<Kind>& stage = shared.ring[slice][step % kStages];
      if (left >= kTileK) Kind::template add<true>(chain, stage, thread, kTileK);
      else if (left > 0) Kind::template add<false>(chain, stage, thread, static_cast<int>(left));
    }
    if constexpr (kSlices == 1) {
      Kind::each(thread, [&](int i, int, int) { sums.v[i] = round == 0 ? chain.v[i] : sums.v[i] + chain.v[i]; });
    } else {
      Kind::each(thread, [&](int i, int row, int column) { shared.chain[slice][row][column] = chain.v[i]; });
      __syncthreads();
      const int live = chains - round * kSlices;
      add_chains<Kind>(shared, round == 0, live < kSlices ? live : kSlices);
    }
    chain = {};
  }
  if constexpr (kSlices == 1) {
    copy_wait<0>();
    __syncthreads();  // nobody reads the ring any more
    Kind::each(thread, [&](int i, int row, int column) { shared.sums[row][column] = sums.v[i]; });
  }
  __syncthreads();
  finish_tile<Kind>(shared.sums, p.epilogue, row0, column0);
}

template <class Kind>
Status launch_tiles(Stream& stream, const MatmulArgs& a) {
  const dim3 grid(static_cast<unsigned>(ceil_div(a.out.dim[0], int64_t{Kind::kTileM})),
                  static_cast<unsigned>(ceil_div(a.out.dim[1], int64_t{Kind::kTileN})));
  return launch(stream.native(), grid, Kind::kThreads, sizeof(TileShared<Kind>), "matmul", matmul_tiles<Kind>,
                tile_args<typename Kind::T>(a));
}

// Up to this many rows a tile of many would be mostly empty, and the work too few blocks.
constexpr int64_t kFewRows = 64;

// Of a family of kinds, the one for this call: Family<a along k, b along k>::Few or ::Many.
template <template <bool, bool> class Family>
Status launch_matmul(Stream& stream, const MatmulArgs& a) {
  const auto run = [&]<bool kAlongA, bool kAlongB>() {
    using Kinds = Family<kAlongA, kAlongB>;
    return a.out.dim[0] <= kFewRows ? launch_tiles<typename Kinds::Few>(stream, a)
                                    : launch_tiles<typename Kinds::Many>(stream, a);
  };
  if (a.a_trans) return a.b_trans ? run.template operator()<false, true>() : run.template operator()<false, false>();
  return a.b_trans ? run.template operator()<true, true>() : run.template operator()<true, false>();
}

#endif

}  // namespace llmops::cuda
