// Attention, forward. The definition, for a query row (one query, one head) and absolute key positions, with the bits
// of the cpu table:
//   s_j = (ascending fma chain over e of q[e] * k_j[e]) * scale, then softcap * tanh(s_j / softcap) if softcap > 0;
//   for each chunk of 256 positions with visible keys, ascending: m = max s_j, p_j = exp(s_j - m),
//     l = sum of p_j over 16 lanes (lane = position % 16, ascending), folded,
//     a[e] = ascending fma chain over j of p_j * v_j[e];
//   chunks merge ascending (merge_stats), out = a / l, lse = m + log(l).
// The chunk is the step of the online softmax (Milakov & Gimelshein 2018; tiled as in FlashAttention, Dao et al. 2022),
// so that a row's bits do not depend on its block, nor on how the sequence was cut.
//
// A block has 32 rows of one KV head and walks the chunks: scores of 256 keys in shared memory, k and v through one
// tile of 64 x 64. When the blocks are too few for a GPU (decode against a long cache), chunks are spread over blocks
// that store partials, and a second kernel merges them in the same order. A masked key weighs 0; one that is not finite
// reaches all rows of its block.
// bf16 heads of whole 16 bytes go to tensor cores (attention_mma.h), with the same chunks and merges.
#include "base/checked.h"
#include "kernels/cuda/attention_forward.h"
#include "kernels/cuda/attention_mma.h"
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/entries.h"
#include "kernels/cuda/lane.h"
#include "kernels/cuda/rows.h"

namespace llmops::cuda {
namespace {

constexpr int kLanes = 16;
constexpr int64_t kBlocksPlenty = 512;           // blocks that fill a GPU: about 4 for each multiprocessor
constexpr int64_t kPartialFloatsMax = 16 << 20;  // 64 MiB of stored partials; beyond it chunks are not spread

template <int kWide>
struct Tiles {
  float q[kWide * kRowPitch];        // [e][row]
  float a[kTileRows][kWide];         // of the chunks so far
  float scores[kChunk * kRowPitch];  // [key][row]
  float tile[kTileColumns * kColumnPitch];
  float lane[kLanes][kTileRows];
  float top[kTileThreads / kTileRows][kTileRows];
  float keep[kTileRows], take[kTileRows];
};

// scores[key][row] = q . k over the keys of a chunk, 64 at a time.
template <class T, int kWide>
__device__ __forceinline__ void score(const Forward<T>& a, const Place& p, int64_t begin, Span keys, Tiles<kWide>& s) {
  const int64_t first_row = begin - p.seq.kv_pos;  // of the sequence
  for (int first = static_cast<int>(keys.lo) / kTileColumns * kTileColumns; first < keys.hi; first += kTileColumns) {
    const Span span = cut(keys, first, first + kTileColumns);
    Product product;
    product.clear();
    for (int e = 0; e < a.g.e; e += kTileColumns) {
      const int width = static_cast<int>(a.g.e - e < kTileColumns ? a.g.e - e : kTileColumns);
      load_transposed<T>(s.tile, kColumnPitch, a.aligned, static_cast<int>(span.lo - first),
                         static_cast<int>(span.hi - first), width,
                         [&](int key) { return a.k.at(p.seq.kv_row(first_row + first + key), p.kv_head) + e; });
      __syncthreads();
      product.add(s.q + e * kRowPitch, s.tile, width);
      __syncthreads();
    }
    for (int j = 0; j < 4; ++j) {
      Vec<float, 4> rows;
      for (int i = 0; i < 4; ++i) rows.v[i] = product.at[i][j];
      store(s.scores + (first + tile_column() + j) * kRowPitch + tile_row(), rows);
    }
  }
  __syncthreads();
}

// Scores to weights exp(s - m), in place; m and l of the chunk for the thread's row. `seen` are the keys of the row,
// `keys` those of the block. A thread has 4 lanes of a row, so 4 threads in 4 warps share one.
template <class T, int kWide>
__device__ __forceinline__ Vec<float, 2> weigh(const Forward<T>& a, Span seen, Span keys, Tiles<kWide>& s) {
  constexpr int kParts = kTileThreads / kTileRows, kPartLanes = kLanes / kParts;
  const int row = static_cast<int>(threadIdx.x) % kTileRows, part = static_cast<int>(threadIdx.x) / kTileRows;
  const int first = static_cast<int>(keys.lo) / kLanes * kLanes + part * kPartLanes;
  float* const column = s.scores + row;
  float top = kNone;
  for (int j0 = first; j0 < keys.hi; j0 += kLanes)
    for (int j = j0; j < j0 + kPartLanes; ++j) {
      float x = column[j * kRowPitch] * a.scale;
      if (a.softcap > 0) x = tanh(F32{x / a.softcap}).v * a.softcap;
      x = j >= seen.lo && j < seen.hi ? x : kNone;
      top = top > x ? top : x;
      column[j * kRowPitch] = x;
    }
  s.top[part][row] = top;
  __syncthreads();
  for (int i = 0; i < kParts; ++i) top = top > s.top[i][row] ? top : s.top[i][row];
  if (seen.lo >= seen.hi) top = 0;  // all weights 0, not NaN
  float sum[kPartLanes] = {};
  for (int j0 = first; j0 < keys.hi; j0 += kLanes)
    for (int j = 0; j < kPartLanes; ++j) {
      const float weight = exp(F32{column[(j0 + j) * kRowPitch] - top}).v;
      column[(j0 + j) * kRowPitch] = weight;
      sum[j] += weight;
    }
  for (int j = 0; j < kPartLanes; ++j) s.lane[part * kPartLanes + j][row] = sum[j];
  __syncthreads();
  float fold[kLanes];
  for (int i = 0; i < kLanes; ++i) fold[i] = s.lane[i][row];
  for (int step = kLanes / 2; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) fold[i] += fold[i + step];
  return {top, fold[0]};
}

// take(column, product) for the weighted sums of v over a chunk, 64 columns at a time.
template <class T, int kWide, class Take>
__device__ __forceinline__ void weighted_values(const Forward<T>& a, const Place& p, int64_t begin, Span keys,
                                                Tiles<kWide>& s, Take take) {
  const int64_t first_row = begin - p.seq.kv_pos;  // of the sequence
  for (int e = 0; e < a.g.e; e += kTileColumns) {
    const int width = static_cast<int>(a.g.e - e < kTileColumns ? a.g.e - e : kTileColumns);
    Product product;
    product.clear();
    for (int first = static_cast<int>(keys.lo); first < keys.hi; first += kTileColumns) {
      const int count = static_cast<int>(keys.hi - first < kTileColumns ? keys.hi - first : kTileColumns);
      load_straight<T>(s.tile, kColumnPitch, a.aligned, 0, count, width,
                       [&](int key) { return a.v.at(p.seq.kv_row(first_row + first + key), p.kv_head) + e; });
      __syncthreads();
      product.add(s.scores + first * kRowPitch, s.tile, count);
      __syncthreads();
    }
    take(e, product);
  }
}

template <class T, int kWide>
__device__ __forceinline__ void merge_chunk(const Forward<T>& a, const Place& p, int64_t begin, Span keys, float& m,
                                            float& l, const Vec<float, 2>& chunk, Tiles<kWide>& s) {
  const Scale scale = merge_stats(m, l, chunk.v[0], chunk.v[1]);
  if (threadIdx.x < kTileRows) s.keep[threadIdx.x] = scale.keep, s.take[threadIdx.x] = scale.take;
  __syncthreads();
  weighted_values(a, p, begin, keys, s, [&](int e, const Product& product) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = tile_row() + i;
      float* const sum = s.a[row] + e + tile_column();
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[j] = fmaf(product.at[i][j], s.take[row], sum[j] * s.keep[row]);
    }
  });
}

template <class T, int kWide>
__device__ __forceinline__ void store_chunk(const Forward<T>& a, const Place& p, int64_t chunk, Span keys,
                                            const Vec<float, 2>& stats, Tiles<kWide>& s) {
  const auto slot = [&](int row) { return partial_slot(a.partials, a.g, p, row, chunk); };
  const int row = static_cast<int>(threadIdx.x);
  if (row < p.rows()) store(a.partials.stats + 2 * slot(row), stats);
  weighted_values(a, p, chunk * kChunk, keys, s, [&](int e, const Product& product) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (tile_row() + i >= p.rows()) continue;
      const int64_t left = a.g.e - e - tile_column();
      float* const sum = a.partials.sums + slot(tile_row() + i) * a.g.e + e + tile_column();
      if (a.aligned && left >= 4) {
        store(sum, Vec<float, 4>{product.at[i][0], product.at[i][1], product.at[i][2], product.at[i][3]});
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (j < left) sum[j] = product.at[i][j];
      }
    }
  });
}

template <class T, int kWide>
__device__ __forceinline__ void write(const Forward<T>& a, const Place& p, float m, float l, Tiles<kWide>& s) {
  const int thread = static_cast<int>(threadIdx.x), e = static_cast<int>(a.g.e);
  if (thread < p.rows()) {
    s.lane[0][thread] = l;
    a.lse[(p.seq.q_begin + p.query_of(thread)) * a.g.heads + p.head_of(thread)] = lse_of(m, l);
  }
  __syncthreads();
  store_rows<T>(
      a.aligned, p.rows(), e, [&](int row) { return a.out.at(p.seq.q_begin + p.query_of(row), p.head_of(row)); },
      [&](int row, int x) { return s.lane[0][row] == 0 ? 0.0f : s.a[row][x] / s.lane[0][row]; });
}

// Grid: blocks of queries, KV heads and parts of their groups, spans of chunks (when kSpread).
template <class T, int kWide, bool kSpread>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks) forward(Forward<T> a) {
  Place p;
  if (!find_place(a.sequences, a.g, a.window, p)) return;
  Tiles<kWide>& s = block_shared<Tiles<kWide>>();
  const int row = static_cast<int>(threadIdx.x) % kTileRows;
  load_transposed<T>(s.q, kRowPitch, a.aligned, 0, kTileRows, static_cast<int>(a.g.e), [&](int r) -> const T* {
    return r < p.rows() ? a.q.at(p.seq.q_begin + p.query_of(r), p.head_of(r)) : nullptr;
  });
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kWide; i += kTileThreads) s.a[i / kWide][i % kWide] = 0;
  __syncthreads();

  const Span chunks = chunks_of(p.keys, kSpread);
  float m = 0, l = 0;  // of the thread's row
  for (int64_t chunk = chunks.lo; chunk < chunks.hi; ++chunk) {
    const int64_t begin = chunk * kChunk;
    const auto local = [&](Span span) {
      span = cut(span, begin, begin + kChunk);
      return Span{span.lo - begin, span.hi - begin};
    };
    Span seen = {0, 0};
    if (row < p.rows()) seen = local(visible(p.seq, p.seq.q_pos + p.query_of(row), a.window));
    score(a, p, begin, local(p.keys), s);
    const Vec<float, 2> stats = weigh(a, seen, local(p.keys), s);
    if (kSpread)
      store_chunk(a, p, chunk, local(p.keys), stats, s);
    else
      merge_chunk(a, p, begin, local(p.keys), m, l, stats, s);
  }
  if (!kSpread) write(a, p, m, l, s);
}

// One head size of tiles; `spread` as in the kernels.
template <class T, int kWide>
Status launch_tiles(Stream& stream, const Forward<T>& args, dim3 grid, bool spread) {
  return launch(stream.native(), grid, kTileThreads, sizeof(Tiles<kWide>), "attention",
                spread ? forward<T, kWide, true> : forward<T, kWide, false>, args);
}
template <int kWide>
Status launch_mma(Stream& stream, const Forward<bf16>& args, dim3 grid, bool spread) {
  return launch(stream.native(), grid, kTileThreads, sizeof(MmaTiles<kWide>), "attention, tensor cores",
                spread ? forward_mma<kWide, true> : forward_mma<kWide, false>, args);
}
template <class T>
Status launch_forward(Stream& stream, const Forward<T>& args, dim3 grid, bool spread) {
  const int64_t e = args.g.e;
  if constexpr (std::is_same_v<T, bf16>)
    if (takes_mma(e))
      return e <= 64 ? launch_mma<64>(stream, args, grid, spread) : launch_mma<128>(stream, args, grid, spread);
  return e <= 64    ? launch_tiles<T, 64>(stream, args, grid, spread)
         : e <= 128 ? launch_tiles<T, 128>(stream, args, grid, spread)
                    : launch_tiles<T, 256>(stream, args, grid, spread);
}

template <class T>
Status run(Stream& stream, const AttentionArgs& a) {
  const int64_t n = a.q.dim[0];
  Forward<T> args = {heads_of<const T>(a.q),
                     heads_of<const T>(a.k),
                     heads_of<const T>(a.v),
                     heads_of<T>(a.out),
                     static_cast<float*>(a.lse.data),
                     sequences_of(stream, "attention", a),
                     grouping_of(a, std::is_same_v<T, bf16> && takes_mma(a.q.dim[2]) ? kMmaRows : kTileRows),
                     {},
                     a.window,
                     a.scale,
                     a.softcap,
                     rows_aligned(a.q) && rows_aligned(a.k) && rows_aligned(a.v) && rows_aligned(a.out)};
  const Grouping& g = args.g;
  LLMOPS_TRY(check_head(g.e));
  if (n == 0 || args.sequences.count == 0) return {};
  dim3 grid(static_cast<unsigned>(n / g.block_queries + args.sequences.count),
            static_cast<unsigned>(a.k.dim[1] * g.head_blocks));
  // A sequence may begin and end within a chunk.
  const int64_t chunks = args.sequences.kv_max / kChunk + 2, blocks = int64_t{grid.x} * grid.y, rows = n * g.heads;
  const bool spread = blocks < kBlocksPlenty && chunks > 3 && rows * chunks * (g.e + 2) <= kPartialFloatsMax;
  if (spread) {
    grid.z = static_cast<unsigned>(std::min(chunks, kBlocksPlenty / blocks));
    const int64_t stats = round_up(2 * rows * chunks, 4);  // the sums begin on 16 bytes
    LLMOPS_ASSIGN(void* const scratch, stream.workspace((stats + rows * chunks * g.e) * int64_t{sizeof(float)}));
    args.partials = {static_cast<float*>(scratch), static_cast<float*>(scratch) + stats, chunks};
  }
  LLMOPS_TRY(launch_forward(stream, args, grid, spread));
  if (!spread) return {};
  return launch(stream.native(), static_cast<unsigned>((rows + kMergeWarps - 1) / kMergeWarps), kMergeWarps * kWarp, 0,
                "attention, merge of chunks", merge<T>, args);
}

}  // namespace

Status attention(Stream& stream, const AttentionArgs& a) {
  return a.q.dtype == DType::f32 ? run<float>(stream, a) : run<bf16>(stream, a);
}

}  // namespace llmops::cuda
