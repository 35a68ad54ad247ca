// Bringing the operands of a matmul into the order in which the register tile reads them. Comes after matmul_kernel.h.
//
// b: panels of 16 columns, panel[k][16], columns beyond n are zero. f32 panels are f32. bf16 panels (matmul_pack) keep pairs of
// k steps, panel[k / 2][16][2], the operand of VDPBF16PS; a last single step is paired with zero.
// a: rows where they lie, if they are f32; widened rows; or, where a is stored [k,m], tiles a[k][kTileRows].
#pragma once

namespace llmops::LLMOPS_ISA {

#if LLMOPS_ISA_LEVEL >= 2
LLMOPS_INLINE __m256 load8(const float* p) { return _mm256_loadu_ps(p); }
LLMOPS_INLINE __m256 load8(const bf16* p) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

// out[k][column] = rows[column][k] for 8 rows and 8 k; out has a stride of 16.
template <class T>
LLMOPS_INLINE void transpose8(const T* const* rows, int64_t k, float* out) {
  __m256 r[8], s[8];
  for (int i = 0; i < 8; ++i) r[i] = load8(rows[i] + k);
  for (int i = 0; i < 8; i += 2) {
    s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(s[i], s[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(out + i * kLanes, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * kLanes, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}
#endif

// panel[k][16] from the rows of b[n,k]. `columns` of them exist.
template <class T>
void pack_rows(const T* b, int64_t stride, int columns, int64_t k, float* panel) {
  static constexpr T kZeros[kChain] = {};  // k is at most one chain: see the callers
  const T* rows[kLanes];
  for (int i = 0; i < kLanes; ++i) rows[i] = i < columns ? b + i * stride : kZeros;
  int64_t done = 0;
#if LLMOPS_ISA_LEVEL >= 2
  for (; done + 8 <= k; done += 8) {
    transpose8(rows, done, panel + done * kLanes);
    transpose8(rows + 8, done, panel + done * kLanes + 8);
  }
#endif
  for (; done < k; ++done)
    for (int i = 0; i < kLanes; ++i) panel[done * kLanes + i] = to_f32(rows[i][done]);
}

// Panels, panel_elems apart, from the columns of b[k,n]: row by row, since its rows may lie pages apart.
template <class T>
void pack_columns(const T* b, int64_t stride, int64_t columns, int64_t k, int64_t panel_elems, float* panels) {
  for (; k > 0; --k, b += stride, panels += kLanes) {
    float* to = panels;
    for_lanes(columns, [&](int64_t j, int n) LLMOPS_BODY {
      store(to, load_part(b + j, n));
      to += panel_elems;
    });
  }
}

// Pairs of bf16 widened into panel[k][16].
LLMOPS_INLINE void widen_pairs(const bf16* pairs, int64_t k, float* panel) {
  const auto* p = reinterpret_cast<const float*>(pairs);  // 16 lanes of 32 bits: only moved and masked
  for (int64_t i = 0; i < k; i += 2, p += kLanes, panel += 2 * kLanes) {
    const I32x16 pair = bits_of(load(p));
    store(panel, from_bits(shift_left<16>(pair)));
    if (i + 1 < k) store(panel + kLanes, from_bits(pair & set1_int(static_cast<int32_t>(0xffff0000u))));
  }
}

LLMOPS_INLINE void copy_step(const float* from, float* to) { std::memcpy(to, from, kTileRows * sizeof(float)); }
LLMOPS_INLINE void copy_step(const bf16* from, float* to) {
  for (int r = 0; r < kTileRows; ++r) to[r] = to_f32(from[r]);
}

// Floats from one packed tile to the next. Not a multiple of 4 KiB: the writes of pack_tiles would all meet in one cache set.
constexpr int64_t tile_elems(int64_t k) { return k * kTileRows + kLanes; }

// tiles[m / kTileRows][k][kTileRows], tile_elems(k) apart, from a[k,m]; rows beyond `rows` are zero.
template <class T>
void pack_tiles(const T* a, int64_t stride, int64_t rows, int64_t k, float* tiles) {
  const int64_t whole = rows / kTileRows, rest = rows % kTileRows, stride_out = tile_elems(k);
  for (int64_t i = 0; i < k; ++i, a += stride, tiles += kTileRows) {
    const T* from = a;
    float* to = tiles;
    for (int64_t t = 0; t < whole; ++t, from += kTileRows, to += stride_out)
      copy_step(from, to);
    if (rest > 0)
      for (int r = 0; r < kTileRows; ++r) to[r] = r < rest ? to_f32(from[r]) : 0.0f;
  }
}

// rows[m][k], widened.
LLMOPS_INLINE void widen_rows(const bf16* a, int64_t stride, int64_t rows, int64_t k, float* out) {
  for (int64_t i = 0; i < rows; ++i, a += stride, out += k)
    for_lanes(k, [&](int64_t j, int n) LLMOPS_BODY { store_part(out + j, load_part(a + j, n), n); });
}

}  // namespace llmops::LLMOPS_ISA
