// What the two forward kernels of attention share: their arguments, and how the partials of chunks merge. attention.cu
// has the definition.
#pragma once

#include "kernels/cuda/attention_batch.h"
#include "kernels/cuda/lane.h"

namespace llmops::cuda {

constexpr int kChunk = 256;  // positions per partial: part of the definition
constexpr float kNone = -__builtin_inff();

// Of a chunk and a row: (m, l) at stats[row][chunk], a at sums[row][chunk][e]. Chunks count from the sequence's first.
struct Partials {
  float *stats, *sums;
  int64_t chunks;
};

template <class T>
struct Forward {
  Heads<const T> q, k, v;
  Heads<T> out;
  float* lse;
  Sequences sequences;
  Grouping g;
  Partials partials;  // of a spread walk
  int64_t window;
  float scale, softcap;
  bool aligned;
};

#if defined(__CUDACC__) || defined(LLMOPS_SIMT)

// Chunk of a position; positions of a ring may be anything, so the division rounds down.
__device__ __forceinline__ int64_t chunk_of(int64_t position) { return position >> 8; }
static_assert(kChunk == 1 << 8);

struct Scale {
  float keep, take;
};
// Adds a later partial to (m, l): a becomes a * keep + partial * take. l == 0 where nothing was seen, since the l of a
// chunk is at least 1.
__device__ __forceinline__ Scale merge_stats(float& m, float& l, float chunk_m, float chunk_l) {
  if (chunk_l == 0) return {1, 0};
  if (l == 0) return m = chunk_m, l = chunk_l, Scale{0, 1};
  const float top = m > chunk_m ? m : chunk_m;
  const Scale scale = {exp(F32{m - top}).v, exp(F32{chunk_m - top}).v};
  m = top;
  l = fmaf(chunk_l, scale.take, l * scale.keep);
  return scale;
}
__device__ __forceinline__ float lse_of(float m, float l) { return l == 0 ? kNone : log(F32{l}).v + m; }

// Where the partials of a row and chunk are stored.
__device__ __forceinline__ int64_t partial_slot(const Partials& partials, const Grouping& g, const Place& p, int row,
                                                int64_t chunk) {
  const int64_t n = p.seq.q_begin + p.query_of(row);
  return (n * g.heads + p.head_of(row)) * partials.chunks + chunk - chunk_of(p.seq.kv_pos);
}

// The chunks that a block walks: all that its queries see or, of a spread walk, its span of them.
__device__ __forceinline__ Span chunks_of(Span keys, bool spread) {
  if (keys.lo >= keys.hi) return {0, 0};
  const Span all = {chunk_of(keys.lo), chunk_of(keys.hi - 1) + 1};
  if (!spread) return all;
  const int64_t count = all.hi - all.lo, span = blockIdx.z, spans = gridDim.z;
  return {all.lo + count * span / spans, all.lo + count * (span + 1) / spans};
}

// Merges the partials of a spread walk; a warp per row.
constexpr int kMergeWarps = 4;
template <class T>
__global__ void __launch_bounds__(kMergeWarps* kWarp) merge(Forward<T> a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = int64_t{blockIdx.x} * kMergeWarps + threadIdx.x / kWarp;
  const int64_t n = row / a.g.heads, head = row % a.g.heads;
  if (n >= a.sequences.q_rows) return;
  int64_t low = 0, high = a.sequences.count;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (a.sequences.q_begin[middle] <= n)
      low = middle;
    else
      high = middle;
  }
  const Sequence seq = a.sequences.at(low);
  if (n < seq.q_begin || n >= seq.q_begin + seq.q_count) return;
  const Span keys = visible(seq, seq.q_pos + n - seq.q_begin, a.window);
  float m = 0, l = 0, sum[kHeadMax / kWarp] = {};
  for (int64_t position = keys.lo; position < keys.hi; position = (chunk_of(position) + 1) * kChunk) {
    const int64_t slot = row * a.partials.chunks + chunk_of(position) - chunk_of(seq.kv_pos);
    const Vec<float, 2> stats = load<2>(a.partials.stats + 2 * slot);
    const Scale scale = merge_stats(m, l, stats.v[0], stats.v[1]);
    const float* part = a.partials.sums + slot * a.g.e + lane;
    for (int i = 0; i < kHeadMax / kWarp; ++i)
      if (lane + i * kWarp < a.g.e) sum[i] = fmaf(part[i * kWarp], scale.take, sum[i] * scale.keep);
  }
  if (lane == 0) a.lse[row] = lse_of(m, l);
  T* const out = a.out.at(n, head) + lane;
  for (int i = 0; i < kHeadMax / kWarp; ++i)
    if (lane + i * kWarp < a.g.e) out[i * kWarp] = narrow<T>(l == 0 ? 0.0f : sum[i] / l);
}

#endif

}  // namespace llmops::cuda
