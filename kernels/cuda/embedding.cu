// Embedding lookup and its gradient.
#include "kernels/cuda/each.h"
#include "kernels/cuda/entries.h"
#include "kernels/cuda/faults.h"
#include "kernels/cuda/rows.h"

namespace llmops::cuda {
namespace {

constexpr int kWarps = 8;  // of a block; each has a token

__device__ __forceinline__ int64_t token_of_warp() { return int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; }
__device__ __forceinline__ int lane_of_warp() { return static_cast<int>(threadIdx.x) % kWarp; }

unsigned token_blocks(int64_t n) { return static_cast<unsigned>((n + kWarps - 1) / kWarps); }

template <class T>
struct Lookup {
  const int32_t *ids, *positions;
  const T *table, *pos_table;  // the second may be null
  T* out;
  int64_t n, d, v, p;
  FaultPlace bad_id, bad_position;
};

template <class T, int kVec>
__global__ void __launch_bounds__(kWarps * kWarp) lookup(Lookup<T> a) {
  const int64_t r = token_of_warp();
  if (r >= a.n) return;
  const int lane = lane_of_warp();
  const int64_t id = a.ids[r], position = a.pos_table != nullptr ? a.positions[r] : 0;
  const bool good_id = id >= 0 && id < a.v, good_position = a.pos_table == nullptr || (position >= 0 && position < a.p);
  if (!good_id && lane == 0) report(a.bad_id, r, static_cast<int>(id));
  if (!good_position && lane == 0) report(a.bad_position, r, static_cast<int>(position));
  if (!good_id || !good_position) return;
  for (int64_t i = lane * kVec; i < a.d; i += kWarp * kVec) {
    Vec<T, kVec> x = load<kVec>(a.table + id * a.d + i);
    if (a.pos_table != nullptr) {
      const Vec<T, kVec> add = load<kVec>(a.pos_table + position * a.d + i);
      for (int j = 0; j < kVec; ++j) x.v[j] = narrow<T>(widen(x.v[j]) + widen(add.v[j]));
    }
    store(a.out + r * a.d + i, x);
  }
}

template <class T>
Status forward(Stream& stream, const EmbeddingArgs& a) {
  const Lookup<T> args = {static_cast<const int32_t*>(a.ids.data),
                          static_cast<const int32_t*>(a.positions.data),
                          static_cast<const T*>(a.table.data),
                          static_cast<const T*>(a.pos_table.data),
                          static_cast<T*>(a.out.data),
                          a.out.dim[0],
                          a.out.dim[1],
                          a.table.dim[0],
                          a.pos_table.dim[0],
                          id_place(stream, "embedding", "ids", a.table.dim[0]),
                          id_place(stream, "embedding", "positions", a.pos_table.dim[0])};
  if (args.n == 0) return {};
  constexpr int kVec = 16 / sizeof(T);
  const bool whole = args.d % kVec == 0 && aligned(args.table, args.pos_table, args.out);
  return launch(stream.native(), token_blocks(args.n), kWarps * kWarp, 0, "embedding", whole ? lookup<T, kVec> : lookup<T, 1>,
                args);
}

template <class T>
struct Scatter {
  const int32_t* ids;
  const T* dout;
  float* table;
  int64_t n, d, v;
  int32_t frozen;
  FaultPlace bad_id;
};

// Tokens of one row of the table that a warp has found and not yet added.
struct Found {
  int64_t token[kWarps][2 * kWarp];
};

// sum += dout[token[0..count)], in that order; the loads go ahead of the additions.
template <int kVec, class T>
__device__ __forceinline__ void add_tokens(const Scatter<T>& a, const int64_t* token, int count, int64_t column,
                                           Vec<float, kVec>& sum) {
  if (column >= a.d) return;
#pragma unroll 8
  for (int k = 0; k < count; ++k) {
    const Vec<T, kVec> x = load<kVec>(a.dout + token[k] * a.d + column);
    for (int j = 0; j < kVec; ++j) sum.v[j] += widen(x.v[j]);
  }
}

// A warp has a token and a slice of kWarp * kVec columns. If the token is the first with its id, the warp looks through all
// later ones and adds those with the same id to the id's row, ascending: no two warps touch one row, so there is nothing to
// sort and nothing atomic. That reads the ids once per distinct id: (distinct ids) * n comparisons, from L2; for 32k tokens of
// 5k ids less than a tenth of a millisecond.
template <class T, int kVec>
__global__ void __launch_bounds__(kWarps * kWarp) scatter(Scatter<T> a) {
  const int64_t r = token_of_warp();
  if (r >= a.n) return;
  const int lane = lane_of_warp();
  const int32_t id = a.ids[r];
  if (!id_fits(id, a.v)) {
    if (lane == 0 && blockIdx.y == 0) report(a.bad_id, r, id);
    return;
  }
  if (id == a.frozen) return;
  for (int64_t i = r - kWarp; i > -kWarp; i -= kWarp)
    if (__any_sync(kAllLanes, i + lane >= 0 && a.ids[i + lane] == id)) return;

  int64_t* token = block_shared<Found>().token[threadIdx.x / kWarp];
  const int64_t column = (int64_t{blockIdx.y} * kWarp + lane) * kVec;
  float* to = a.table + id * a.d + column;
  Vec<float, kVec> sum = {};
  if (column < a.d) sum = load<kVec>(to);
  int found = 0;
  for (int64_t i = r; i < a.n; i += kWarp) {
    const bool same = i + lane < a.n && a.ids[i + lane] == id;
    const unsigned lanes = __ballot_sync(kAllLanes, same);
    if (same) token[found + __popc(lanes & ((1u << lane) - 1))] = i + lane;
    found += __popc(lanes);
    __syncwarp();
    if (found < kWarp) continue;
    add_tokens<kVec>(a, token, kWarp, column, sum);
    found -= kWarp;
    const int64_t rest = lane < found ? token[kWarp + lane] : 0;
    __syncwarp();
    token[lane] = rest;
    __syncwarp();
  }
  add_tokens<kVec>(a, token, found, column, sum);
  if (column < a.d) store(to, sum);
}

struct Clear {
  float* data;
  template <int k>
  __device__ __forceinline__ void at(int64_t i) const {
    store(data + i, Vec<float, k>{});
  }
};

template <class T>
Status scatter_to(Stream& stream, const Scatter<T>& a, bool accumulate) {
  if (!accumulate)
    LLMOPS_TRY(run_each<4>(stream, "embedding_backward clear", aligned(a.table), a.v * a.d, Clear{a.table}));
  if (a.n == 0 || a.d == 0) return {};
  constexpr int kVec = 16 / sizeof(T);
  const bool whole = a.d % kVec == 0 && aligned(a.dout, a.table);
  const int64_t slice = kWarp * (whole ? kVec : 1);
  const dim3 grid(token_blocks(a.n), static_cast<unsigned>((a.d + slice - 1) / slice));
  return launch(stream.native(), grid, kWarps * kWarp, sizeof(Found), "embedding_backward",
                whole ? scatter<T, kVec> : scatter<T, 1>, a);
}

template <class T>
Status backward(Stream& stream, const EmbeddingBackwardArgs& a) {
  const int64_t n = a.dout.dim[0], d = a.dout.dim[1], v = a.dtable.dim[0], p = a.dpos_table.dim[0];
  const auto* dout = static_cast<const T*>(a.dout.data);
  const Scatter<T> tokens = {static_cast<const int32_t*>(a.ids.data), dout, static_cast<float*>(a.dtable.data), n, d, v,
                             a.frozen_id, id_place(stream, "embedding_backward", "ids", v)};
  LLMOPS_TRY(scatter_to(stream, tokens, a.accumulate));
  if (!a.dpos_table.present()) return {};
  const Scatter<T> positions = {static_cast<const int32_t*>(a.positions.data), dout, static_cast<float*>(a.dpos_table.data),
                                n, d, p, -1, id_place(stream, "embedding_backward", "positions", p)};
  return scatter_to(stream, positions, a.accumulate_pos);
}

}  // namespace

Status embedding(Stream& stream, const EmbeddingArgs& a) {
  return a.table.dtype == DType::f32 ? forward<float>(stream, a) : forward<bf16>(stream, a);
}

Status embedding_backward(Stream& stream, const EmbeddingBackwardArgs& a) {
  return a.dout.dtype == DType::f32 ? backward<float>(stream, a) : backward<bf16>(stream, a);
}

}  // namespace llmops::cuda
