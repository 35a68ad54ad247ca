// Sums along a row in the order of kernels/ops.h. A row belongs to 16 threads, one per virtual lane, so half a warp. They load
// 16 bytes each, side by side, and pass what they computed through shared memory to the lane that adds it: the sum has the
// bits that the cpu table gives, and memory is read in whole lines. A second pass over a row finds it in L2.
#pragma once

#include "kernels/cuda/device.h"

namespace llmops::cuda {

constexpr int kLanes = 16;
constexpr int kRowsPerBlock = 16;  // 256 threads
constexpr int kTile = 512;         // elements of a row in shared memory: 32 KiB for 16 rows, 6 such blocks to a multiprocessor

template <int kRows = kRowsPerBlock>
struct Tiles {
  float row[kRows][kTile];
};

inline unsigned row_blocks(int64_t n, int rows = kRowsPerBlock) { return static_cast<unsigned>((n + rows - 1) / rows); }

#if defined(__CUDACC__) || defined(LLMOPS_SIMT)

__device__ __forceinline__ int64_t row_of_thread(int rows = kRowsPerBlock) {
  return int64_t{blockIdx.x} * rows + threadIdx.x / kLanes;
}
__device__ __forceinline__ int lane_of_thread() { return static_cast<int>(threadIdx.x) % kLanes; }

// take(x) in every lane for its elements of a row, ascending, where x holds kSums numbers that term(i, terms) computed for
// element i in some other thread: kVec of them in each of terms[kSums]. The whole warp calls it with the same d; `live` is
// false where there is no row.
template <int kVec, int kSums = 1, int kRows = kRowsPerBlock, class Term, class Take>
__device__ __forceinline__ void in_lane_order(int64_t d, bool live, Term term, Take take) {
  constexpr int kPart = kTile / kSums;
  float* tile = block_shared<Tiles<kRows>>().row[threadIdx.x / kLanes];
  const int lane = lane_of_thread();
  for (int64_t first = 0; first < d; first += kPart) {
    const int count = static_cast<int>(d - first < kPart ? d - first : kPart);
    for (int i = lane * kVec; live && i < count; i += kLanes * kVec) {
      Vec<float, kVec> terms[kSums];
      term(first + i, terms);
      for (int s = 0; s < kSums; ++s) store(tile + s * kPart + i, terms[s]);
    }
    __syncwarp();
    for (int i = lane; live && i < count; i += kLanes) {
      float x[kSums];
      for (int s = 0; s < kSums; ++s) x[s] = tile[s * kPart + i];
      take(x);
    }
    __syncwarp();
  }
}

template <int kSums>
struct RowSums {
  float v[kSums];
};
template <int kVec, int kSums = 1, class Term>
__device__ __forceinline__ RowSums<kSums> row_sums(int64_t d, bool live, Term term) {
  RowSums<kSums> sums = {};
  in_lane_order<kVec, kSums>(d, live, term, [&](const float* x) {
    for (int s = 0; s < kSums; ++s) sums.v[s] += x[s];
  });
  for (int s = 0; s < kSums; ++s) sums.v[s] = fold_lanes(sums.v[s]);
  return sums;
}

// The elements of a row that is normed: x, or x + delta, which goes to `sum` and is taken as it is stored there, rounded
// to T, since backward will see that.
template <int kVec, class T>
__device__ __forceinline__ Vec<T, kVec> normed_input(const T* x, const T* delta, T* sum, int64_t i) {
  Vec<T, kVec> v = load<kVec>(x + i);
  if (delta == nullptr) return v;
  const Vec<T, kVec> add = load<kVec>(delta + i);
  for (int j = 0; j < kVec; ++j) v.v[j] = narrow<T>(widen(v.v[j]) + widen(add.v[j]));
  store(sum + i, v);
  return v;
}

#endif

}  // namespace llmops::cuda
