// Bringing the operands of a matmul into the order in which the register tile reads them. Comes after matmul_kernel.h.
//
// b becomes panels of 16 columns, panel[step][16], zero beyond n; all panels of one chain, then those of the next. A
// step is one k in f32, or a pair of bf16 in the 32 bits of a float (even k low, a last odd k paired with zero): what
// the dot products read and what matmul_pack() writes for bf16. a is read row by row where it lies, if it is f32; else
// its rows are copied, or, stored [k,m], become tiles[step][kTileRows].
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

// panel[step][16] = rows[column][step]. 16 streams are more than the hardware prefetches: it is done here, kAhead steps
// ahead, and at the end of the rows for the next 16, which lie `next` elements on.
template <class T>
void transpose_rows(const T* const* rows, int64_t steps, [[maybe_unused]] int64_t next, float* panel) {
  int64_t done = 0;
#if LLMOPS_ISA_LEVEL >= 2
  constexpr int64_t kAhead = 64;
  for (; done + 8 <= steps; done += 8) {
    if (done % 16 == 0) {
      const int64_t ahead = done + kAhead < steps ? done + kAhead : done + kAhead - steps + next;
      for (int i = 0; i < kLanes; ++i) __builtin_prefetch(rows[i] + ahead);
    }
    transpose8(rows, done, panel + done * kLanes);
    transpose8(rows + 8, done, panel + done * kLanes + 8);
  }
#endif
  for (; done < steps; ++done)
    for (int i = 0; i < kLanes; ++i) {
      T x;  // a pair of bf16 is aligned as bf16 only
      std::memcpy(&x, reinterpret_cast<const char*>(rows[i]) + done * static_cast<int64_t>(sizeof(T)), sizeof(T));
      panel[done * kLanes + i] = to_f32(x);
    }
}

// Floats from one packed tile of a to the next. Not a multiple of 4 KiB, or the writes of a_tiles meet in one cache
// set.
constexpr int64_t tile_elems(int64_t steps) { return steps * kTileRows + kLanes; }

// The operands as f32, one k a step. Every function packs one chain: k <= kChain. Strides are in elements.
template <class T>
struct Single {
  using In = T;
  static constexpr int kPerStep = 1;

  // One panel from `columns` <= 16 rows of b[n,k].
  static void b_rows(const T* b, int64_t stride, int columns, int64_t k, float* panel) {
    static constexpr T kZeros[kChain] = {};
    const T* rows[kLanes];
    for (int i = 0; i < kLanes; ++i) rows[i] = i < columns ? b + i * stride : kZeros;
    transpose_rows(rows, k, kLanes * stride, panel);
  }
  // Panels, panel_elems apart, from the columns of b[k,n]: row by row, since its rows may lie pages apart.
  static void b_columns(const T* b, int64_t stride, int64_t columns, int64_t k, int64_t panel_elems, float* panels) {
    for (; k > 0; --k, b += stride, panels += kLanes) {
      float* to = panels;
      for_lanes(columns, [&](int64_t j, int n) LLMOPS_BODY {
        __builtin_prefetch(b + 8 * stride + j);
        store(to, load_part(b + j, n));
        to += panel_elems;
      });
    }
  }
  // tiles[m / kTileRows][k][kTileRows], tile_elems(k) apart, from a[k,m]; rows beyond `count` are zero.
  static void a_tiles(const T* a, int64_t stride, int64_t count, int64_t k, float* tiles) {
    const int64_t whole = count / kTileRows * kTileRows, apart = tile_elems(k);
    for (int64_t i = 0; i < k; ++i, a += stride, tiles += kTileRows) {
      float* to = tiles;
      for (int64_t m = 0; m < count; m += kLanes) __builtin_prefetch(a + 8 * stride + m);
      for (int64_t m = 0; m < whole; m += kTileRows, to += apart) copy_step(a + m, to);
      if (whole == count) continue;
      for (int r = 0; r < kTileRows; ++r) to[r] = whole + r < count ? to_f32(a[whole + r]) : 0.0f;
    }
  }

 private:
  static LLMOPS_BODY void copy_step(const float* from, float* to) { std::memcpy(to, from, kTileRows * sizeof(float)); }
  static LLMOPS_BODY void copy_step(const bf16* from, float* to) {
    for (int r = 0; r < kTileRows; ++r) to[r] = to_f32(from[r]);
  }
};

// The operands as pairs of bf16, two k a step.
struct Pairs {
  using In = bf16;
  static constexpr int kPerStep = 2;

  static float pair(bf16 even, bf16 odd) {
    return std::bit_cast<float>(uint32_t{even.bits} | uint32_t{odd.bits} << 16);
  }

  static void b_rows(const bf16* b, int64_t stride, int columns, int64_t k, float* panel) {
    static constexpr bf16 kZeros[kChain] = {};
    const float* rows[kLanes];
    for (int i = 0; i < kLanes; ++i) rows[i] = reinterpret_cast<const float*>(i < columns ? b + i * stride : kZeros);
    transpose_rows(rows, k / 2, kLanes * stride / 2, panel);
    if (k % 2 == 0) return;
    for (int i = 0; i < kLanes; ++i)
      panel[k / 2 * kLanes + i] = i < columns ? pair(b[i * stride + k - 1], bf16{0}) : 0.0f;
  }
  static void b_columns(const bf16* b, int64_t stride, int64_t columns, int64_t k, int64_t panel_elems, float* panels) {
    const I32x16 low = set1_int(0xffff);
    for (int64_t i = 0; i < k; i += 2, b += 2 * stride, panels += kLanes) {
      float* to = panels;
      for_lanes(columns, [&](int64_t j, int n) LLMOPS_BODY {
        const I32x16 even = shift_right<16>(bits_of(load_part(b + j, n))) & low;
        store(to, from_bits(i + 1 < k ? even | bits_of(load_part(b + stride + j, n)) : even));
        to += panel_elems;
      });
    }
  }
  static void a_tiles(const bf16* a, int64_t stride, int64_t count, int64_t k, float* tiles) {
    for (int64_t i = 0; i < k; i += 2, a += 2 * stride, tiles += kTileRows)
      for (int64_t m = 0; m < round_up(count, kTileRows); ++m)
        tiles[m / kTileRows * tile_elems(ceil_div(k, 2)) + m % kTileRows] =
            m < count ? pair(a[m], i + 1 < k ? a[stride + m] : bf16{0}) : 0.0f;
  }
  // rows[count][steps] from a[m,k]
  static void a_rows(const bf16* a, int64_t stride, int64_t count, int64_t k, float* rows) {
    for (int64_t i = 0; i < count; ++i, a += stride, rows += ceil_div(k, 2)) {
      std::memcpy(rows, a, static_cast<size_t>(k) * sizeof(bf16));
      if (k % 2 == 1) rows[k / 2] = pair(a[k - 1], bf16{0});
    }
  }
};

// What a kind of matmul does. F32 reads a and panels of b where they lie.
struct F32 : Single<float> {
  using Product = Fma;
  static constexpr bool kCopiesA = false, kReadsPanels = true;
};

// bf16 in, f32 arithmetic: everything is widened on its way.
struct Widened : Single<bf16> {
  using Product = Fma;
  static constexpr bool kCopiesA = true, kReadsPanels = false;

  static void a_rows(const bf16* a, int64_t stride, int64_t count, int64_t k, float* rows) {
    for (int64_t i = 0; i < count; ++i, a += stride, rows += k)
      for_lanes(k, [&](int64_t j, int n) LLMOPS_BODY { store_part(rows + j, load_part(a + j, n), n); });
  }
  // panel[k][16] from a panel of pairs.
  static void widen_panel(const float* pairs, int64_t k, float* panel) {
    for (int64_t i = 0; i < k; i += 2, pairs += kLanes, panel += 2 * kLanes) {
      const I32x16 pair = bits_of(load(pairs));
      store(panel, from_bits(shift_left<16>(pair)));
      if (i + 1 < k) store(panel + kLanes, from_bits(pair & set1_int(static_cast<int32_t>(0xffff0000u))));
    }
  }
};

// BF16 dot products: P::add is VDPBF16PS, or a model of it.
template <class P>
struct Dots : Pairs {
  using Product = P;
  static constexpr bool kCopiesA = true, kReadsPanels = true;
};

}  // namespace llmops::LLMOPS_ISA
