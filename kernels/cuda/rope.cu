// Rotary position embedding, the store into a KV cache, and both in one pass. A block has a token and walks its heads:
// they share the angles.
// With the angle's (c, s), or (c, -s) for the inverse, a pair (x, y) becomes (fma(x, c, -(y * s)), fma(y, c, x * s)).
#include <algorithm>

#include "kernels/cuda/each.h"
#include "kernels/cuda/entries.h"
#include "kernels/cuda/faults.h"
#include "kernels/cuda/rows.h"

namespace llmops::cuda {
namespace {

constexpr int kThreadsMax = 256;

// The angles of the tokens' positions, and how pairs are turned by them.
struct Rotation {
  const int32_t* positions;
  const float* cos_sin;  // null: nothing is turned
  int64_t half, p;
  bool interleaved, inverse;
  FaultPlace bad_position;

  // Of token n; null, and reported, where the table has none.
  __device__ __forceinline__ const float* angles(int64_t n) const {
    const int position = positions[n];
    if (id_fits(position, p)) return cos_sin + position * half * 2;
    if (threadIdx.x == 0) report(bad_position, n, position);
    return nullptr;
  }
};
template <class Args>
Rotation rotation_of(Stream& stream, const char* op, const Args& a, bool inverse) {
  if (!a.cos_sin.present()) return {};
  return {static_cast<const int32_t*>(a.positions.data),
          static_cast<const float*>(a.cos_sin.data),
          a.cos_sin.dim[1],
          a.cos_sin.dim[0],
          a.interleaved,
          inverse,
          id_place(stream, op, "positions", a.cos_sin.dim[0])};
}

// kVec pairs as one access; a single pair by its elements, which may lie anywhere.
template <int kVec, class T>
__device__ __forceinline__ Vec<T, 2 * kVec> load_pairs(const T* p) {
  if constexpr (kVec > 1) return load<2 * kVec>(p);
  else return {{p[0], p[1]}};
}
template <int kVec, class T>
__device__ __forceinline__ void store_pairs(T* p, const Vec<T, 2 * kVec>& x) {
  if constexpr (kVec > 1) store(p, x);
  else p[0] = x.v[0], p[1] = x.v[1];
}

// x and y as halves of the head: 0 - y s, as the cpu table has it, so that zeros have its signs.
template <class T, int kVec>
__device__ __forceinline__ void rotate_halves(const Rotation& a, const T* x, T* out, const float* angles, int64_t i) {
  const Vec<T, kVec> first = load<kVec>(x + i), second = load<kVec>(x + a.half + i);
  const Vec<float, 2 * kVec> angle = load_pairs<kVec>(angles + 2 * i);
  Vec<T, kVec> to_first, to_second;
  for (int j = 0; j < kVec; ++j) {
    const float u = widen(first.v[j]), v = widen(second.v[j]), c = angle.v[2 * j];
    const float s = a.inverse ? -angle.v[2 * j + 1] : angle.v[2 * j + 1];
    to_first.v[j] = narrow<T>(fmaf(u, c, 0.0f - v * s));
    to_second.v[j] = narrow<T>(fmaf(v, c, u * s));
  }
  store(out + i, to_first);
  store(out + a.half + i, to_second);
}

// x and y as neighbours; kVec pairs are two vectors of kVec elements.
template <class T, int kVec>
__device__ __forceinline__ void rotate_neighbours(const Rotation& a, const T* x, T* out, const float* angles,
                                                  int64_t i) {
  Vec<T, 2 * kVec> pair = load_pairs<kVec>(x + 2 * i);
  const Vec<float, 2 * kVec> angle = load_pairs<kVec>(angles + 2 * i);
  for (int j = 0; j < 2 * kVec; j += 2) {
    const float u = widen(pair.v[j]), v = widen(pair.v[j + 1]), c = angle.v[j];
    const float s = a.inverse ? -angle.v[j + 1] : angle.v[j + 1];
    pair.v[j] = narrow<T>(fmaf(u, c, v * -s));
    pair.v[j + 1] = narrow<T>(fmaf(v, c, u * s));
  }
  store_pairs<kVec>(out + 2 * i, pair);
}

// `heads` heads of e elements, from row x0 of x to row out0 of out. What is behind the pairs is copied, but in place.
template <class T, int kVec, class From>
__device__ __forceinline__ void turn_heads(const Rotation& a, const float* angles, const Rows<From>& x, int64_t x0,
                                           const Rows<T>& out, int64_t out0, int64_t heads, int64_t e) {
  const int64_t parts = a.half / kVec;  // of a head
  for (int64_t k = threadIdx.x; k < heads * parts; k += blockDim.x) {
    const T* from = x.at(x0 + k / parts);
    T* to = out.at(out0 + k / parts);
    if (a.interleaved) rotate_neighbours<T, kVec>(a, from, to, angles, k % parts * kVec);
    else rotate_halves<T, kVec>(a, from, to, angles, k % parts * kVec);
  }
  const int64_t rest = out.data == x.data ? 0 : e - 2 * a.half;
  for (int64_t k = threadIdx.x; k < heads * rest; k += blockDim.x)
    out.at(out0 + k / rest)[2 * a.half + k % rest] = x.at(x0 + k / rest)[2 * a.half + k % rest];
}

template <class T, int kVec>
__device__ __forceinline__ void copy_heads(const Rows<const T>& x, int64_t x0, const Rows<T>& out, int64_t out0,
                                           int64_t heads, int64_t e) {
  const int64_t parts = e / kVec;
  for (int64_t k = threadIdx.x; k < heads * parts; k += blockDim.x)
    store(out.at(out0 + k / parts) + k % parts * kVec, load<kVec>(x.at(x0 + k / parts) + k % parts * kVec));
}

template <class T>
struct Rope {
  Rows<const T> x;
  Rows<T> out;
  int64_t heads, e;
  Rotation rotation;
};

template <class T, int kVec>
__global__ void __launch_bounds__(kThreadsMax) rotate(Rope<T> a) {
  const int64_t n = blockIdx.x;
  const float* const angles = a.rotation.angles(n);
  if (angles == nullptr) return;
  turn_heads<T, kVec>(a.rotation, angles, a.x, n * a.heads, a.out, n * a.heads, a.heads, a.e);
}

// As many threads as a token has work for, in whole warps.
unsigned threads_for(int64_t work) {
  return static_cast<unsigned>(std::clamp<int64_t>((work + kWarp - 1) / kWarp * kWarp, kWarp, kThreadsMax));
}

template <class T>
Status run_rope(Stream& stream, const RopeArgs& a) {
  const Rope<T> args = {rows_of<const T>(a.x), rows_of<T>(a.out), a.x.dim[1], a.x.dim[2],
                        rotation_of(stream, "rope", a, a.inverse)};
  const int64_t n = a.x.dim[0], half = args.rotation.half;
  if (n == 0) return {};
  constexpr int kVec = 16 / sizeof(T);
  const bool whole = rows_aligned(a.x) && rows_aligned(a.out) && half % kVec == 0 && aligned(args.rotation.cos_sin);
  const int64_t work = args.heads * half;
  return launch(stream.native(), static_cast<unsigned>(n), threads_for(work / (whole ? kVec : 1)), 0, "rope",
                whole ? rotate<T, kVec> : rotate<T, 1>, args);
}

// The parts of a token, in the grid's y: blocks of their own, so that their loads do not wait for each other.
enum : unsigned { kStoreV, kStoreK, kTurnQ, kParts };

template <class T>
struct Store {
  Rows<const T> k, v;
  Rows<T> k_cache, v_cache, q;
  const int32_t* rows;
  int64_t heads, q_heads, e, m;
  FaultPlace bad_row;
  Rotation rotation;
};

template <class T, int kVec>
__global__ void __launch_bounds__(kThreadsMax) store_token(Store<T> a) {
  const int64_t n = blockIdx.x, from = n * a.heads;
  const int row = a.rows[n];
  if (!id_fits(row, a.m)) {
    if (threadIdx.x == 0) report(a.bad_row, n, row);
    return;
  }
  const int64_t to = row * a.heads;
  if (blockIdx.y == kStoreV) return copy_heads<T, kVec>(a.v, from, a.v_cache, to, a.heads, a.e);
  if (a.rotation.cos_sin == nullptr) return copy_heads<T, kVec>(a.k, from, a.k_cache, to, a.heads, a.e);
  const float* const angles = a.rotation.angles(n);
  if (angles == nullptr) return;
  if (blockIdx.y == kStoreK) return turn_heads<T, kVec>(a.rotation, angles, a.k, from, a.k_cache, to, a.heads, a.e);
  turn_heads<T, kVec>(a.rotation, angles, a.q, n * a.q_heads, a.q, n * a.q_heads, a.q_heads, a.e);
}

template <class T>
Status run_store(Stream& stream, const KvStoreArgs& a) {
  const bool turns = a.cos_sin.present();
  const Store<T> args = {rows_of<const T>(a.k), rows_of<const T>(a.v), rows_of<T>(a.k_cache), rows_of<T>(a.v_cache),
                         rows_of<T>(a.q), static_cast<const int32_t*>(a.rows.data), a.k.dim[1], a.q.dim[1], a.k.dim[2],
                         a.k_cache.dim[0], id_place(stream, "kv_store", "rows", a.k_cache.dim[0]),
                         rotation_of(stream, "kv_store", a, false)};
  const int64_t n = a.k.dim[0], half = args.rotation.half;
  if (n == 0) return {};
  constexpr int kVec = 16 / sizeof(T);
  const bool whole = rows_aligned(a.k) && rows_aligned(a.v) && rows_aligned(a.k_cache) && rows_aligned(a.v_cache) &&
                     (!turns || (rows_aligned(a.q) && half % kVec == 0 && aligned(args.rotation.cos_sin)));
  const dim3 grid(static_cast<unsigned>(n), turns ? kParts : kTurnQ);
  const int64_t work = std::max(args.heads * args.e, args.q_heads * half);  // of the largest part
  return launch(stream.native(), grid, threads_for(work / (whole ? kVec : 1)), 0, "kv_store",
                whole ? store_token<T, kVec> : store_token<T, 1>, args);
}

}  // namespace

Status rope(Stream& stream, const RopeArgs& a) {
  return a.x.dtype == DType::f32 ? run_rope<float>(stream, a) : run_rope<bf16>(stream, a);
}

Status kv_store(Stream& stream, const KvStoreArgs& a) {
  return a.k.dtype == DType::f32 ? run_store<float>(stream, a) : run_store<bf16>(stream, a);
}

}  // namespace llmops::cuda
