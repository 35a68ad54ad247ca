// Attention, forward, for bf16 on tensor cores. As attention.cu defines it, but for the sums within a chunk of 256
// positions, which are taken as the hardware has them: s_j by mma over 16 e at a time; then tiles of 64 positions, each
// of which rescales m, l and a of the chunk so far, with p_j rounded to bf16 for a and not for l. A tile of which a row
// sees nothing changes no bits of it (weights 0, scale 1), and chunks merge as everywhere: so these bits, too, depend
// on the row's query and keys only.
//
// A block has 64 rows of one KV head, 16 for each of 4 warps, which keep a in registers (FlashAttention-2, Dao 2023).
// The next keys are copied while the values are multiplied, and the other way round.
#pragma once

#include "kernels/cuda/attention_forward.h"
#include "kernels/cuda/attention_mma_tile.h"

namespace llmops::cuda {

constexpr int kMmaRows = 64, kMmaKeys = 64;

#if defined(__CUDACC__) || defined(LLMOPS_SIMT)

template <int kWide>
struct alignas(16) MmaTiles {
  MmaRow<kWide> q[kMmaRows], k[kMmaKeys], v[kMmaKeys];
  float a[kMmaRows][kWide + 8];  // of the chunks so far; its rows, too, begin on different banks
  float l[kMmaRows];
};

// One warp's 16 rows of a chunk; of a thread's two rows, half 0 and 1.
template <int kWide>
struct MmaChunk {
  MmaC a[kWide / 8];
  float m[2], l[2];  // l: of the thread's own columns until the end of the chunk

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kWide / 8; ++i) a[i] = {};
    for (int half = 0; half < 2; ++half) m[half] = kNone, l[half] = 0;
  }
};

// Scores of the tile at `begin` to weights; m, l and a of the chunk follow the new maximum.
template <int kWide>
__device__ __forceinline__ void mma_weigh(const Forward<bf16>& a, int64_t begin, const Span (&seen)[2],
                                          MmaC (&score)[kMmaKeys / 8], MmaChunk<kWide>& chunk) {
  const int64_t first = begin + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = chunk.m[half];
#pragma unroll
    for (int i = 0; i < kMmaKeys / 8; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& x = score[i].r[2 * half + j];
        const int64_t key = first + 8 * i + j;
        x *= a.scale;
        if (a.softcap > 0) x = tanh(F32{x / a.softcap}).v * a.softcap;
        x = key >= seen[half].lo && key < seen[half].hi ? x : kNone;
        top = top > x ? top : x;
      }
    for (int step = 1; step < 4; step *= 2) {
      const float other = __shfl_xor_sync(kAllLanes, top, step);
      top = top > other ? top : other;
    }
    const float base = top == kNone ? 0 : top;
    const float keep = exp(F32{chunk.m[half] - base}).v;
    chunk.m[half] = top;
    chunk.l[half] *= keep;
#pragma unroll
    for (int i = 0; i < kWide / 8; ++i)
      for (int j = 0; j < 2; ++j) chunk.a[i].r[2 * half + j] *= keep;
#pragma unroll
    for (int i = 0; i < kMmaKeys / 8; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& x = score[i].r[2 * half + j];
        x = exp(F32{x - base}).v;
        chunk.l[half] += x;
      }
  }
}

// The end of a chunk: its partial is stored (kSpread), or merged into (m, l) and s.a.
template <int kWide, bool kSpread>
__device__ __forceinline__ void end_mma_chunk(const Forward<bf16>& a, const Place& p, int64_t number,
                                              MmaChunk<kWide>& chunk, float (&m)[2], float (&l)[2],
                                              MmaTiles<kWide>& s) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, column = lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = static_cast<int>(threadIdx.x) / kWarp * 16 + lane / 4 + 8 * half;
    float sum = chunk.l[half];
    for (int step = 1; step < 4; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if constexpr (kSpread) {
      if (row >= p.rows()) continue;
      const int64_t slot = partial_slot(a.partials, a.g, p, row, number);
      if (column == 0) store(a.partials.stats + 2 * slot, Vec<float, 2>{chunk.m[half], sum});
      float* const to = a.partials.sums + slot * a.g.e + column;
#pragma unroll
      for (int i = 0; i < kWide / 8; ++i)
        if (8 * i < a.g.e) store(to + 8 * i, Vec<float, 2>{chunk.a[i].r[2 * half], chunk.a[i].r[2 * half + 1]});
    } else {
      const Scale scale = merge_stats(m[half], l[half], chunk.m[half], sum);
      float* const to = s.a[row] + column;
#pragma unroll
      for (int i = 0; i < kWide / 8; ++i)
        for (int j = 0; j < 2; ++j)
          to[8 * i + j] = fmaf(chunk.a[i].r[2 * half + j], scale.take, to[8 * i + j] * scale.keep);
    }
  }
  chunk.clear();
}

template <int kWide>
__device__ __forceinline__ void write_mma(const Forward<bf16>& a, const Place& p, const float (&m)[2],
                                          const float (&l)[2], MmaTiles<kWide>& s) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = static_cast<int>(threadIdx.x) / kWarp * 16 + lane / 4 + 8 * half;
    if (lane % 4 != 0 || row >= p.rows()) continue;
    s.l[row] = l[half];
    a.lse[(p.seq.q_begin + p.query_of(row)) * a.g.heads + p.head_of(row)] = lse_of(m[half], l[half]);
  }
  __syncthreads();
  store_rows<bf16>(
      a.aligned, p.rows(), static_cast<int>(a.g.e),
      [&](int row) { return a.out.at(p.seq.q_begin + p.query_of(row), p.head_of(row)); },
      [&](int row, int x) { return s.l[row] == 0 ? 0.0f : s.a[row][x] / s.l[row]; });
}

// The grid of the kernel without tensor cores, with 64 rows a block. Of narrow heads shared memory holds 3 blocks; there
// are registers for as many, but for the addresses of partials.
template <int kWide, bool kSpread>
__global__ void __launch_bounds__(kTileThreads, kWide > 64 ? kTileBlocks : kSpread ? 2 : 3) forward_mma(Forward<bf16> a) {
  Place p;
  if (!find_place(a.sequences, a.g, a.window, p)) return;
  const Span chunks = chunks_of(p.keys, kSpread);
  const Span keys = cut(p.keys, chunks.lo * kChunk, chunks.hi * kChunk);
  if (kSpread && keys.lo >= keys.hi) return;
  MmaTiles<kWide>& s = block_shared<MmaTiles<kWide>>();
  Span seen[2];
  for (int half = 0; half < 2; ++half) {
    const int row = static_cast<int>(threadIdx.x) / kWarp * 16 + static_cast<int>(threadIdx.x) % kWarp / 4 + 8 * half;
    seen[half] = row < p.rows() ? visible(p.seq, p.seq.q_pos + p.query_of(row), a.window) : Span{0, 0};
  }
  for (int i = static_cast<int>(threadIdx.x); i < kMmaRows * kWide; i += kTileThreads) s.a[i / kWide][i % kWide] = 0;
  copy_rows<kWide>(s.q, kMmaRows, a, 0, p.rows(),
                   [&](int r) { return a.q.at(p.seq.q_begin + p.query_of(r), p.head_of(r)); });
  copy_commit();

  const auto load_keys = [&](MmaRow<kWide>* tile, const Heads<const bf16>& x, int64_t begin) {
    const Span live = cut(keys, begin, begin + kMmaKeys);
    copy_rows<kWide>(tile, kMmaKeys, a, static_cast<int>(live.lo - begin), static_cast<int>(live.hi - begin),
                     [&](int key) { return x.at(p.seq.kv_row(begin + key - p.seq.kv_pos), p.kv_head); });
    copy_commit();
  };
  MmaChunk<kWide> chunk;
  chunk.clear();
  float m[2] = {}, l[2] = {};
  int64_t begin = (keys.lo >> 6) * kMmaKeys;
  if (keys.lo < keys.hi) load_keys(s.k, a.k, begin);
  for (; begin < keys.hi; begin += kMmaKeys) {
    copy_wait<0>();
    __syncthreads();
    load_keys(s.v, a.v, begin);
    MmaC score[kMmaKeys / 8];
    mma_dots<kWide>(s.q, s.k, score);
    mma_weigh(a, begin, seen, score, chunk);
    copy_wait<0>();
    __syncthreads();
    const int64_t next = begin + kMmaKeys;
    if (next < keys.hi) load_keys(s.k, a.k, next);
    mma_add<kWide>(score, s.v, chunk.a);
    if (next >= keys.hi || next % kChunk == 0) end_mma_chunk<kWide, kSpread>(a, p, chunk_of(begin), chunk, m, l, s);
  }
  if (kSpread) return;
  copy_wait<0>();
  __syncthreads();
  write_mma(a, p, m, l, s);
}
static_assert(kMmaKeys == 1 << 6);

#endif

}  // namespace llmops::cuda
