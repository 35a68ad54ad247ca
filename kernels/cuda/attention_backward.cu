// Attention, backward. The definition, with s and the rows (queries outermost) as in the forward pass, and the bits of
// the cpu table while a KV head has at most 64 query heads:
//   p_ij = exp(s_ij - lse_i), D_i = sum over e of dout_i * out_i, dp_ij = fma chain over e of dout_i * v_j,
//   ds_ij = p_ij * (dp_ij - D_i) * scale (* 1 - tanh^2 with a softcap);
//   dq_i = sum over chunks of 64 positions of the fma chain over the chunk's keys of ds_ij * k_j;
//   dk_j, dv_j = sum over blocks of 64 rows of the fma chain over the block's rows of ds_ij * q_i, p_ij * dout_i;
// all ascending. (FlashAttention-2, Dao 2023, algorithm 2, with its one loop as two passes: each result has one block
// that sums it, so there are no atomics and one order.)
//
// Both passes are the same walk. A block owns 32 rows (of q and dout) or 32 keys (of k and v), which stay in shared
// memory transposed, and meets the others 64 at a time: two products of 32 x 64 give p and ds, and one or two more add
// to its sums.
// bf16 heads of whole 16 bytes go to tensor cores (attention_backward_mma.h), in bits of their own.
#include "kernels/cuda/attention_backward.h"
#include "kernels/cuda/attention_backward_mma.h"
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/entries.h"
#include "kernels/cuda/lane.h"
#include "kernels/cuda/rows.h"

namespace llmops::cuda {
namespace {

constexpr int kOwn = kTileRows, kOthers = kTileColumns;
constexpr int kDqChunk = kOthers;  // positions per chunk of dq: part of the definition
constexpr int kLanes = 16;

template <int kWide, int kSums>
struct Tiles {
  float own[2][kWide * kRowPitch];  // [e][own]: q and dout, or k and v
  float sum[kSums][kOwn][kWide];
  float weights[kOthers * kRowPitch];  // [other][own]: p or ds
  float tile[kOthers * kColumnPitch];
  float lse[kOthers], d[kOthers];  // of the rows, which are the owned or the others
};

// Rows and keys of a pair of tiles.
struct Pair {
  Sequence seq;
  QueryBlock rows;
  int64_t kv_head, key_first;  // a KV row of the sequence
  int keys;
};

// D: half a warp per (row, head), one virtual lane a thread.
template <class T>
__global__ void __launch_bounds__(kTileThreads) row_dots(Backward<T> a) {
  const int64_t i = (int64_t{blockIdx.x} * kTileThreads + threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const bool live = i < a.sequences.q_rows * a.g.heads;
  float sum = 0;
  if (live) {
    const T *dout = a.dout.at(i / a.g.heads, i % a.g.heads), *out = a.out.at(i / a.g.heads, i % a.g.heads);
    for (int64_t x = lane; x < a.g.e; x += kLanes) sum = fmaf(widen(dout[x]), widen(out[x]), sum);
  }
  sum = fold_lanes(sum);
  if (live && lane == 0) a.d[i] = sum;
}

// own . others over e, for all pairs of the two tiles.
template <class T, class OtherAt>
__device__ __forceinline__ Product dots(const Backward<T>& a, const float* own, int others, float* tile,
                                        OtherAt other_at) {
  Product product;
  product.clear();
  for (int e = 0; e < a.g.e; e += kTileColumns) {
    const int width = static_cast<int>(a.g.e - e < kTileColumns ? a.g.e - e : kTileColumns);
    load_transposed<T>(tile, kColumnPitch, a.aligned, 0, others, width, [&](int i) { return other_at(i) + e; });
    __syncthreads();
    product.add(own + e * kRowPitch, tile, width);
    __syncthreads();
  }
  return product;
}

// sum[own][e] += the chain over the others of weight * other. `weight` is the thread's part, which goes to shared
// memory.
template <class T, int kWide, int kSums, class OtherAt>
__device__ __forceinline__ void add_weighted(const Backward<T>& a, const Product& weight, int others, int sum,
                                             OtherAt other_at, Tiles<kWide, kSums>& s) {
  for (int j = 0; j < 4; ++j) {
    Vec<float, 4> column;
    for (int i = 0; i < 4; ++i) column.v[i] = weight.at[i][j];
    store(s.weights + (tile_column() + j) * kRowPitch + tile_row(), column);
  }
  for (int e = 0; e < a.g.e; e += kTileColumns) {
    const int width = static_cast<int>(a.g.e - e < kTileColumns ? a.g.e - e : kTileColumns);
    load_straight<T>(s.tile, kColumnPitch, a.aligned, 0, others, width, [&](int i) { return other_at(i) + e; });
    __syncthreads();
    Product product;
    product.clear();
    product.add(s.weights, s.tile, others);
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j) s.sum[sum][tile_row() + i][e + tile_column() + j] += product.at[i][j];
    __syncthreads();
  }
}

// In: p = q . k and ds = dout . v. Out: p and ds as defined above, 0 for a pair that does not see each other.
template <bool kKeys, class T>
__device__ __forceinline__ void weigh(const Backward<T>& a, const Pair& pair, const float* lse, const float* d,
                                      Product& p, Product& ds) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int own = tile_row() + i, other = tile_column() + j;
      const int row = kKeys ? other : own, key = kKeys ? own : other;
      const int64_t q_pos = pair.seq.q_pos + pair.rows.query_of(row), k_pos = pair.seq.kv_pos + pair.key_first + key;
      const bool seen =
          row < pair.rows.rows() && key < pair.keys && k_pos <= q_pos && (a.window == 0 || k_pos > q_pos - a.window);
      weigh_pair(a, lse[row], d[row], seen, p.at[i][j], ds.at[i][j]);
    }
}

// Both products of a pair, and what they add to the sums of the owner.
template <bool kKeys, class T, int kWide, int kSums>
__device__ __forceinline__ void add_pair(const Backward<T>& a, const Pair& pair, Tiles<kWide, kSums>& s) {
  const auto row_at = [&](const Heads<const T>& x) {
    return [&pair, &x](int i) { return x.at(pair.seq.q_begin + pair.rows.query_of(i), pair.rows.head_of(i)); };
  };
  const auto key_at = [&](const Heads<const T>& x) {
    return [&pair, &x](int i) { return x.at(pair.seq.kv_begin + pair.key_first + i, pair.kv_head); };
  };
  if constexpr (kKeys) {
    const int rows = pair.rows.rows();
    Product p = dots(a, s.own[0], rows, s.tile, row_at(a.q)), ds = dots(a, s.own[1], rows, s.tile, row_at(a.dout));
    weigh<true>(a, pair, s.lse, s.d, p, ds);
    add_weighted(a, ds, rows, 0, row_at(a.q), s);
    add_weighted(a, p, rows, 1, row_at(a.dout), s);
  } else {
    Product p = dots(a, s.own[0], pair.keys, s.tile, key_at(a.k)),
            ds = dots(a, s.own[1], pair.keys, s.tile, key_at(a.v));
    weigh<false>(a, pair, s.lse, s.d, p, ds);
    add_weighted(a, ds, pair.keys, 0, key_at(a.k), s);
  }
}

template <class T, int kWide, int kSums>
__device__ __forceinline__ void load_row_stats(const Backward<T>& a, const Pair& pair, Tiles<kWide, kSums>& s) {
  const int row = static_cast<int>(threadIdx.x);
  if (row >= pair.rows.rows()) return;
  const int64_t at = (pair.seq.q_begin + pair.rows.query_of(row)) * a.g.heads + pair.rows.head_of(row);
  s.lse[row] = a.lse[at];
  s.d[row] = a.d[at];
}

template <int kWide, int kSums>
__device__ __forceinline__ void clear_sums(Tiles<kWide, kSums>& s) {
  float* const sums = &s.sum[0][0][0];
  for (int i = static_cast<int>(threadIdx.x); i < kSums * kOwn * kWide; i += kTileThreads) sums[i] = 0;
}

// The grid of the forward pass.
template <class T, int kWide>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks) backward_rows(Backward<T> a) {
  Place place;
  if (!find_place(a.sequences, a.g, a.window, place)) return;
  Tiles<kWide, 1>& s = block_shared<Tiles<kWide, 1>>();
  const int e = static_cast<int>(a.g.e);
  Pair pair = {place.seq, place, place.kv_head, 0, 0};
  const auto row_at = [&](auto x) {
    return [=](int i) {
      return i < place.rows() ? x.at(place.seq.q_begin + place.query_of(i), place.head_of(i)) : nullptr;
    };
  };
  load_transposed<T>(s.own[0], kRowPitch, a.aligned, 0, kOwn, e, row_at(a.q));
  load_transposed<T>(s.own[1], kRowPitch, a.aligned, 0, kOwn, e, row_at(a.dout));
  load_row_stats(a, pair, s);
  clear_sums(s);
  __syncthreads();
  for (int64_t position = place.keys.lo; position < place.keys.hi;) {
    const Span chunk = cut(place.keys, position, (position >> 6) * kDqChunk + kDqChunk);
    pair.key_first = chunk.lo - place.seq.kv_pos;
    pair.keys = static_cast<int>(chunk.hi - chunk.lo);
    add_pair<false>(a, pair, s);
    position = chunk.hi;
  }
  store_rows<T>(a.aligned, place.rows(), e, row_at(a.dq), [&](int row, int x) { return s.sum[0][row][x]; });
}
static_assert(kDqChunk == 1 << 6);

// Grid: blocks of keys, kv_rows / 32 + sequences, by KV heads.
template <class T, int kWide>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks) backward_keys(Backward<T> a) {
  KeyBlock block;
  if (!find_keys(a.sequences, kOwn, block)) return;
  const Sequence& seq = block.seq;
  const int64_t first = block.first, kv_head = blockIdx.y;
  Tiles<kWide, 2>& s = block_shared<Tiles<kWide, 2>>();
  const int e = static_cast<int>(a.g.e), keys = block.keys;
  const auto key_at = [&](auto x) {
    return [=](int i) { return i < keys ? x.at(seq.kv_begin + first + i, kv_head) : nullptr; };
  };
  load_transposed<T>(s.own[0], kRowPitch, a.aligned, 0, kOwn, e, key_at(a.k));
  load_transposed<T>(s.own[1], kRowPitch, a.aligned, 0, kOwn, e, key_at(a.v));
  clear_sums(s);

  const int64_t step = a.g.block_queries;
  const Span queries = queries_of(block, a.window);
  for (int64_t query = queries.lo / step * step; query < queries.hi; query += step)
    for (int64_t part = 0; part < a.g.head_blocks; ++part) {
      const Pair pair = {seq, query_block(a.g, seq.q_count, query, kv_head, part), kv_head, first, keys};
      load_row_stats(a, pair, s);
      add_pair<true>(a, pair, s);
    }
  __syncthreads();
  store_rows<T>(a.aligned, keys, e, key_at(a.dk), [&](int key, int x) { return s.sum[0][key][x]; });
  store_rows<T>(a.aligned, keys, e, key_at(a.dv), [&](int key, int x) { return s.sum[1][key][x]; });
}

// Rows of no sequence have a gradient of 0. A warp per row; begin and length of the sequences' rows, ascending.
constexpr int kClearWarps = kTileThreads / kWarp;
template <class T, class Range>
__device__ __forceinline__ void clear_unowned(int64_t rows, int64_t heads, int64_t e, Heads<T> x, int64_t count,
                                              Range range) {
  const int64_t row = int64_t{blockIdx.x} * kClearWarps + threadIdx.x / kWarp;
  if (row >= rows) return;
  int64_t low = 0, high = count;  // the last sequence that begins at or before the row
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (range(middle).lo <= row)
      low = middle;
    else
      high = middle;
  }
  if (count > 0 && range(low).lo <= row && row < range(low).hi) return;
  for (int64_t i = threadIdx.x % kWarp; i < heads * e; i += kWarp) x.at(row, i / e)[i % e] = narrow<T>(0.0f);
}
template <class T>
__global__ void __launch_bounds__(kTileThreads) clear_rows(Backward<T> a) {
  const Sequences& all = a.sequences;
  clear_unowned(all.q_rows, a.g.heads, a.g.e, a.dq, all.count, [&](int64_t s) {
    return Span{all.q_begin[s], all.q_begin[s + 1]};
  });
}
template <class T>
__global__ void __launch_bounds__(kTileThreads) clear_keys(Backward<T> a) {
  const Sequences& all = a.sequences;
  const auto range = [&](int64_t s) { return Span{all.kv_begin[s], int64_t{all.kv_begin[s]} + all.kv_len[s]}; };
  clear_unowned(all.kv_rows, a.kv_heads, a.g.e, blockIdx.y == 0 ? a.dk : a.dv, all.count, range);
}

unsigned blocks_of(int64_t count, int64_t size) { return static_cast<unsigned>((count + size - 1) / size); }

template <class T>
Status launch_rows(Stream& stream, const Backward<T>& a, void (*kernel)(Backward<T>), size_t shared_bytes) {
  const dim3 grid(static_cast<unsigned>(a.sequences.q_rows / a.g.block_queries + a.sequences.count),
                  static_cast<unsigned>(a.kv_heads * a.g.head_blocks));
  return launch(stream.native(), grid, kTileThreads, shared_bytes, "attention_backward dq", kernel, a);
}
// `size` keys a block.
template <class T>
Status launch_keys(Stream& stream, const Backward<T>& a, int size, void (*kernel)(Backward<T>), size_t shared_bytes) {
  const dim3 grid(static_cast<unsigned>(a.sequences.kv_rows / size + a.sequences.count),
                  static_cast<unsigned>(a.kv_heads));
  return launch(stream.native(), grid, kTileThreads, shared_bytes, "attention_backward dk, dv", kernel, a);
}
template <class T, int kWide>
Status launch_tiles(Stream& stream, const Backward<T>& by_rows, const Backward<T>& by_keys) {
  LLMOPS_TRY(launch_rows(stream, by_rows, backward_rows<T, kWide>, sizeof(Tiles<kWide, 1>)));
  return launch_keys(stream, by_keys, kOwn, backward_keys<T, kWide>, sizeof(Tiles<kWide, 2>));
}
template <int kWide>
Status launch_mma(Stream& stream, const Backward<bf16>& a) {
  LLMOPS_TRY(launch_rows(stream, a, backward_rows_mma<kWide>, sizeof(MmaPairTiles<kWide>)));
  return launch_keys(stream, a, kMmaOwn, backward_keys_mma<kWide>, sizeof(MmaKeyTiles<kWide>));
}
template <class T>
Status launch_backward(Stream& stream, const AttentionBackwardArgs& a, Backward<T> args) {
  const int64_t e = args.g.e;
  if constexpr (std::is_same_v<T, bf16>)
    if (takes_mma(e)) {
      args.g = grouping_of(a, kMmaOwn);
      return e <= 64 ? launch_mma<64>(stream, args) : launch_mma<128>(stream, args);
    }
  Backward<T> by_keys = args;
  by_keys.g = grouping_of(a, kOthers);
  return e <= 64    ? launch_tiles<T, 64>(stream, args, by_keys)
         : e <= 128 ? launch_tiles<T, 128>(stream, args, by_keys)
                    : launch_tiles<T, 256>(stream, args, by_keys);
}

template <class T>
Status run(Stream& stream, const AttentionBackwardArgs& a) {
  LLMOPS_TRY(check_head(a.q.dim[2]));
  const int64_t n = a.q.dim[0], m = a.k.dim[0], heads = a.q.dim[1];
  LLMOPS_ASSIGN(void* const scratch, stream.workspace(n * heads * int64_t{sizeof(float)}));
  bool aligned = rows_aligned(a.q) && rows_aligned(a.k) && rows_aligned(a.v) && rows_aligned(a.dout);
  aligned = aligned && rows_aligned(a.dq) && rows_aligned(a.dk) && rows_aligned(a.dv);
  const Backward<T> args = {heads_of<const T>(a.q),
                            heads_of<const T>(a.k),
                            heads_of<const T>(a.v),
                            heads_of<const T>(a.out),
                            heads_of<const T>(a.dout),
                            heads_of<T>(a.dq),
                            heads_of<T>(a.dk),
                            heads_of<T>(a.dv),
                            static_cast<const float*>(a.lse.data),
                            static_cast<float*>(scratch),
                            sequences_of(stream, "attention_backward", a),
                            grouping_of(a, kOwn),
                            a.k.dim[1],
                            a.window,
                            a.scale,
                            a.softcap,
                            aligned};
  if (n > 0) {
    LLMOPS_TRY(launch(stream.native(), blocks_of(n, kClearWarps), kTileThreads, 0, "attention_backward, clear dq",
                      clear_rows<T>, args));
    LLMOPS_TRY(launch(stream.native(), blocks_of(n * heads * kLanes, kTileThreads), kTileThreads, 0,
                      "attention_backward, dout . out", row_dots<T>, args));
  }
  if (m > 0)
    LLMOPS_TRY(launch(stream.native(), dim3(blocks_of(m, kClearWarps), 2), kTileThreads, 0,
                      "attention_backward, clear dk and dv", clear_keys<T>, args));
  if (args.sequences.count == 0) return {};
  return launch_backward(stream, a, args);
}

}  // namespace

Status attention_backward(Stream& stream, const AttentionBackwardArgs& a) {
  return a.q.dtype == DType::f32 ? run<float>(stream, a) : run<bf16>(stream, a);
}

}  // namespace llmops::cuda
