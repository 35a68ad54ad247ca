// Rotary position embedding, and the store into a KV cache. A block has a token and walks its heads: they share the angles.
// With the angle's (c, s), or (c, -s) for the inverse, a pair (x, y) becomes (fma(x, c, -(y * s)), fma(y, c, x * s)).
#include <algorithm>

#include "kernels/cuda/each.h"
#include "kernels/cuda/entries.h"
#include "kernels/cuda/faults.h"
#include "kernels/cuda/rows.h"

namespace llmops::cuda {
namespace {

constexpr int kThreadsMax = 256;

template <class T>
struct Rotation {
  Rows<const T> x;
  Rows<T> out;
  const int32_t* positions;
  const float* cos_sin;
  int64_t heads, e, half, p;
  bool interleaved, inverse, copy_rest;  // the rest of a head, past the pairs
  FaultPlace bad_position;
};

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
__device__ __forceinline__ void rotate_halves(const Rotation<T>& a, const T* x, T* out, const float* angles, int64_t i) {
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
__device__ __forceinline__ void rotate_neighbours(const Rotation<T>& a, const T* x, T* out, const float* angles, int64_t i) {
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

template <class T, int kVec>
__global__ void __launch_bounds__(kThreadsMax) rotate(Rotation<T> a) {
  const int64_t n = blockIdx.x;
  const int position = a.positions[n];
  if (!id_fits(position, a.p)) {
    if (threadIdx.x == 0) report(a.bad_position, n, position);
    return;
  }
  const float* angles = a.cos_sin + position * a.half * 2;
  const int64_t parts = a.half / kVec;  // of a head
  for (int64_t k = threadIdx.x; k < a.heads * parts; k += blockDim.x) {
    const T* x = a.x.at(n * a.heads + k / parts);
    T* out = a.out.at(n * a.heads + k / parts);
    if (a.interleaved) rotate_neighbours<T, kVec>(a, x, out, angles, k % parts * kVec);
    else rotate_halves<T, kVec>(a, x, out, angles, k % parts * kVec);
  }
  const int64_t rest = a.copy_rest ? a.e - 2 * a.half : 0;
  for (int64_t k = threadIdx.x; k < a.heads * rest; k += blockDim.x) {
    const int64_t head = n * a.heads + k / rest, i = 2 * a.half + k % rest;
    a.out.at(head)[i] = a.x.at(head)[i];
  }
}

// As many threads as a token has work for, in whole warps.
unsigned threads_for(int64_t work) {
  return static_cast<unsigned>(std::clamp<int64_t>((work + kWarp - 1) / kWarp * kWarp, kWarp, kThreadsMax));
}

template <class T>
Status run_rope(Stream& stream, const RopeArgs& a) {
  const Rotation<T> args = {rows_of<const T>(a.x),
                            rows_of<T>(a.out),
                            static_cast<const int32_t*>(a.positions.data),
                            static_cast<const float*>(a.cos_sin.data),
                            a.x.dim[1],
                            a.x.dim[2],
                            a.cos_sin.dim[1],
                            a.cos_sin.dim[0],
                            a.interleaved,
                            a.inverse,
                            a.out.data != a.x.data,
                            id_place(stream, "rope", "positions", a.cos_sin.dim[0])};
  const int64_t n = a.x.dim[0];
  if (n == 0) return {};
  constexpr int kVec = 16 / sizeof(T);
  const bool whole = rows_aligned(a.x) && rows_aligned(a.out) && args.half % kVec == 0 && aligned(args.cos_sin);
  const int64_t work = args.heads * (whole ? args.half / kVec : args.half);
  return launch(stream.native(), static_cast<unsigned>(n), threads_for(work), 0, "rope",
                whole ? rotate<T, kVec> : rotate<T, 1>, args);
}

template <class T>
struct Store {
  Rows<const T> k, v;
  Rows<T> k_cache, v_cache;
  const int32_t* rows;
  int64_t heads, e, m;
  FaultPlace bad_row;
};

template <class T, int kVec>
__global__ void __launch_bounds__(kThreadsMax) store_row(Store<T> a) {
  const int64_t n = blockIdx.x;
  const int row = a.rows[n];
  if (!id_fits(row, a.m)) {
    if (threadIdx.x == 0) report(a.bad_row, n, row);
    return;
  }
  const int64_t parts = a.e / kVec;
  for (int64_t k = threadIdx.x; k < a.heads * parts; k += blockDim.x) {
    const int64_t from = n * a.heads + k / parts, to = row * a.heads + k / parts, i = k % parts * kVec;
    store(a.k_cache.at(to) + i, load<kVec>(a.k.at(from) + i));
    store(a.v_cache.at(to) + i, load<kVec>(a.v.at(from) + i));
  }
}

template <class T>
Status run_store(Stream& stream, const KvStoreArgs& a) {
  const Store<T> args = {rows_of<const T>(a.k), rows_of<const T>(a.v), rows_of<T>(a.k_cache), rows_of<T>(a.v_cache),
                         static_cast<const int32_t*>(a.rows.data), a.k.dim[1], a.k.dim[2], a.k_cache.dim[0],
                         id_place(stream, "kv_store", "rows", a.k_cache.dim[0])};
  const int64_t n = a.k.dim[0];
  if (n == 0) return {};
  constexpr int kVec = 16 / sizeof(T);
  const bool whole = rows_aligned(a.k) && rows_aligned(a.v) && rows_aligned(a.k_cache) && rows_aligned(a.v_cache);
  const int64_t work = args.heads * (whole ? args.e / kVec : args.e);
  return launch(stream.native(), static_cast<unsigned>(n), threads_for(work), 0, "kv_store",
                whole ? store_row<T, kVec> : store_row<T, 1>, args);
}

}  // namespace

Status rope(Stream& stream, const RopeArgs& a) {
  return a.x.dtype == DType::f32 ? run_rope<float>(stream, a) : run_rope<bf16>(stream, a);
}

Status kv_store(Stream& stream, const KvStoreArgs& a) {
  return a.k.dtype == DType::f32 ? run_store<float>(stream, a) : run_store<bf16>(stream, a);
}

}  // namespace llmops::cuda
