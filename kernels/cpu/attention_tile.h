// What the forward and the backward pass of attention share: sequences, packing, and one small matrix product.
// Included after kernels/cpu/vec.h and kernels/math.h by sources of kernels/cpu/isa.
//
// Both passes walk pairs of (block of query rows, chunk of keys). A "row" is one (query, head of the group) pair,
// queries outermost, so all query heads of a KV head share the packed keys. Everything is packed to f32 first: keys
// transposed in blocks of 16 (a vector holds 16 keys at one e), rows padded to a multiple of 16 e. So the loops below
// know neither strides, nor bf16, nor tails, and a decode step streams each cache line once.
#pragma once

namespace llmops::LLMOPS_ISA {

constexpr int64_t kBlockRows = 64;  // (query, head) rows of a block, unless one query has more heads
constexpr int kTileRows = 6;        // 6 x 16 accumulators: 12 of the 16 AVX2 registers

LLMOPS_INLINE int64_t round_up_16(int64_t n) { return (n + 15) & ~int64_t{15}; }

// [lo, hi)
struct Range {
  int32_t lo, hi;
};

// Query heads per KV head, and the block of queries that is worked on at a time, with all of their heads.
struct Grouping {
  int64_t e, wide, heads, kv_heads, queries, rows;  // wide: e rounded up to 16; rows = queries * heads

  int64_t query_of(int64_t row) const { return static_cast<uint32_t>(row) / static_cast<uint32_t>(heads); }
  int64_t blocks(const Sequence& seq) const { return (seq.q_count + queries - 1) / queries; }
};

template <class Args>
Grouping grouping_of(const Args& args) {
  Grouping g;
  g.e = args.q.dim[2];
  g.wide = round_up_16(g.e);
  g.kv_heads = args.k.dim[1];
  g.heads = args.q.dim[1] / g.kv_heads;
  g.queries = g.heads < kBlockRows ? kBlockRows / g.heads : 1;
  g.rows = g.queries * g.heads;
  return g;
}

// The keys that the query at `position` sees, as absolute positions; empty ranges have lo == hi.
LLMOPS_INLINE void visible(const Sequence& seq, int64_t position, int64_t window, int64_t& lo, int64_t& hi) {
  const int64_t end = seq.kv_pos + seq.kv_count;
  lo = window > 0 && position - window + 1 > seq.kv_pos ? position - window + 1 : seq.kv_pos;
  hi = position + 1 < end ? position + 1 : end;
  if (lo > end) lo = end;  // the window begins behind the last key: no range may reach past it
  if (hi < lo) hi = lo;
}

// [lo, hi) cut to [begin, begin + size) and counted from begin.
LLMOPS_INLINE Range within(int64_t lo, int64_t hi, int64_t begin, int64_t size) {
  const auto cut = [begin, size](int64_t x) LLMOPS_ATTR {
    return static_cast<int32_t>(x < begin ? 0 : x > begin + size ? size : x - begin);
  };
  return {cut(lo), cut(hi)};
}

// Heads lie in rows that are far apart, so the hardware does not fetch them ahead.
constexpr int64_t kRowsAhead = 8;
template <class T>
LLMOPS_INLINE void fetch_row(const T* src, int64_t e) {
  for (int64_t x = 0; x < e; x += static_cast<int64_t>(64 / sizeof(T))) __builtin_prefetch(src + x);
}

// dst[rows, round_up_16(e)] f32 = src[rows, e], zero-padded.
template <class T>
void pack_rows(float* dst, int64_t dst_stride, const T* src, int64_t stride, int64_t rows, int64_t e) {
  for (int64_t r = 0; r < rows; ++r, src += stride, dst += dst_stride) {
    fetch_row(src + kRowsAhead * stride, e);
    int64_t x = 0;
    for (; x + 16 <= e; x += 16) store(dst + x, load(src + x));
    if (x < e) store(dst + x, load_n(src + x, static_cast<int>(e - x)));
  }
}

// dst[e] = src[round_up_16(e)] f32, rounded.
template <class T>
LLMOPS_INLINE void unpack_row(T* dst, const float* src, int64_t e) {
  int64_t x = 0;
  for (; x + 16 <= e; x += 16) store(dst + x, load(src + x));
  if (x < e) store_n(dst + x, load(src + x), static_cast<int>(e - x));
}

#if LLMOPS_ISA_LEVEL >= 2
LLMOPS_INLINE __m256 load_8(const float* p) { return _mm256_loadu_ps(p); }
LLMOPS_INLINE __m256 load_8(const bf16* p) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
// dst[x * 16 + j] = src[j * stride + x] for 8 x 8 elements.
template <class T>
LLMOPS_INLINE void transpose_8x8(float* dst, const T* src, int64_t stride) {
  __m256 a[8], b[8];
  for (int j = 0; j < 8; ++j) a[j] = load_8(src + j * stride);
  for (int j = 0; j < 8; j += 2) {
    b[j] = _mm256_unpacklo_ps(a[j], a[j + 1]);
    b[j + 1] = _mm256_unpackhi_ps(a[j], a[j + 1]);
  }
  for (int j = 0; j < 8; j += 4) {
    a[j] = _mm256_shuffle_ps(b[j], b[j + 2], 0x44);
    a[j + 1] = _mm256_shuffle_ps(b[j], b[j + 2], 0xee);
    a[j + 2] = _mm256_shuffle_ps(b[j + 1], b[j + 3], 0x44);
    a[j + 3] = _mm256_shuffle_ps(b[j + 1], b[j + 3], 0xee);
  }
  for (int x = 0; x < 4; ++x) {
    _mm256_storeu_ps(dst + x * 16, _mm256_permute2f128_ps(a[x], a[x + 4], 0x20));
    _mm256_storeu_ps(dst + (x + 4) * 16, _mm256_permute2f128_ps(a[x], a[x + 4], 0x31));
  }
}
#else
template <class T>
LLMOPS_INLINE void transpose_8x8(float* dst, const T* src, int64_t stride) {
  for (int x = 0; x < 8; ++x)
    for (int j = 0; j < 8; ++j) dst[x * 16 + j] = to_f32(src[j * stride + x]);
}
#endif

// dst[j / 16][e][16] f32 = the keys j in `keys`, transposed; src is key keys.lo. Lanes of a
// block that hold no key are never used.
template <class T>
void pack_transposed(float* dst, const T* src, int64_t stride, Range keys, int64_t e) {
  for (int32_t j = keys.lo & ~7; j < keys.hi; j += 8) {
    float* block = dst + (j & ~15) * e + (j & 15);
    const T* first = src + (j - keys.lo) * stride;
    int64_t x = 0;
    for (int32_t i = 0; i < 8; ++i) fetch_row(first + (kRowsAhead + i) * stride, e);
    if (j >= keys.lo && j + 8 <= keys.hi)
      for (; x + 8 <= e; x += 8) transpose_8x8(block + x * 16, first + x, stride);
    for (; x < e; ++x)
      for (int32_t i = 0; i < 8; ++i)
        block[x * 16 + i] = j + i >= keys.lo && j + i < keys.hi ? to_f32(first[i * stride + x]) : 0.0f;
  }
}

// c[r][n] (+)= the ascending fma chain over x in range[r] of a[r * a_row + x * a_x] * b[x * b_x + n], n = 16 v + lane
// with vector v of b at b + v * b_vec. The chain starts at 0; with `add` its end is added to c. A row's bits depend on
// nothing but its own range and data.
struct Product {
  const float* a;
  int64_t a_row, a_x;
  const float* b;
  int64_t b_x, b_vec;
  float* c;
  int64_t c_row;
  bool add;
};

template <int kRows, int kVecs>
LLMOPS_INLINE void tile_columns(const Product& p, const Range* range, Range shared, Range all, int64_t v) {
  F32x16 acc[kRows][kVecs];
LLMOPS_UNROLL(8)
  for (int r = 0; r < kRows; ++r)
LLMOPS_UNROLL(8)
    for (int i = 0; i < kVecs; ++i) acc[r][i] = zero();
  const float* b = p.b + v * p.b_vec;
  // Rows end (and with a window begin) at different x: only there each row's own range is looked at.
  const auto edge = [&](int32_t from, int32_t to) LLMOPS_ATTR {
    for (int32_t x = from; x < to; ++x)
LLMOPS_UNROLL(8)
      for (int r = 0; r < kRows; ++r) {
        if (x < range[r].lo || x >= range[r].hi) continue;
        const F32x16 a = set1(p.a[r * p.a_row + x * p.a_x]);
LLMOPS_UNROLL(8)
        for (int i = 0; i < kVecs; ++i) acc[r][i] = fma(a, load(b + x * p.b_x + i * p.b_vec), acc[r][i]);
      }
  };
  edge(all.lo, shared.lo);
  const float* a = p.a + shared.lo * p.a_x;
  const float* bx = b + shared.lo * p.b_x;
  for (int32_t x = shared.lo; x < shared.hi; ++x, a += p.a_x, bx += p.b_x) {
    F32x16 bv[kVecs];
LLMOPS_UNROLL(8)
    for (int i = 0; i < kVecs; ++i) bv[i] = load(bx + i * p.b_vec);
LLMOPS_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const F32x16 av = set1(a[r * p.a_row]);
LLMOPS_UNROLL(8)
      for (int i = 0; i < kVecs; ++i) acc[r][i] = fma(av, bv[i], acc[r][i]);
    }
  }
  edge(shared.hi, all.hi);
LLMOPS_UNROLL(8)
  for (int r = 0; r < kRows; ++r)
LLMOPS_UNROLL(8)
    for (int i = 0; i < kVecs; ++i) {
      float* c = p.c + r * p.c_row + (v + i) * 16;
      store(c, p.add ? load(c) + acc[r][i] : acc[r][i]);
    }
}

// Vectors per tile: enough independent chains to hide the latency of fma (8 vectors of 8 or 16 lanes in flight).
constexpr int tile_vectors(int rows) {
  if (LLMOPS_ISA_LEVEL == 3) return rows == 1 ? 8 : rows == 2 ? 4 : rows == 3 ? 3 : 2;
  return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
}

template <int kRows>
void tile(const Product& p, const Range* range, int64_t v, int64_t v_end) {
  Range all = range[0], shared = range[0];
  for (int r = 1; r < kRows; ++r) {
    all = {all.lo < range[r].lo ? all.lo : range[r].lo, all.hi > range[r].hi ? all.hi : range[r].hi};
    shared = {shared.lo > range[r].lo ? shared.lo : range[r].lo, shared.hi < range[r].hi ? shared.hi : range[r].hi};
  }
  if (shared.lo >= shared.hi) shared = {all.lo, all.lo};
  constexpr int kVecs = tile_vectors(kRows);
  for (; v + kVecs <= v_end; v += kVecs) tile_columns<kRows, kVecs>(p, range, shared, all, v);
  if constexpr (kVecs > 1)
    for (; v < v_end; ++v) tile_columns<kRows, 1>(p, range, shared, all, v);
}

// Up to kTileRows rows, vectors [v, v_end).
LLMOPS_INLINE void product_tile(const Product& p, int64_t rows, const Range* range, int64_t v, int64_t v_end) {
  switch (rows) {
    case 1: return tile<1>(p, range, v, v_end);
    case 2: return tile<2>(p, range, v, v_end);
    case 3: return tile<3>(p, range, v, v_end);
    case 4: return tile<4>(p, range, v, v_end);
    case 5: return tile<5>(p, range, v, v_end);
    default: return tile<6>(p, range, v, v_end);
  }
}

}  // namespace llmops::LLMOPS_ISA
