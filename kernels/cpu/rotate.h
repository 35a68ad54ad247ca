// What rope and kv_store share: the heads of a token, turned by the angle of its position. With the angle's (c, s), or
// (c, -s) for the inverse, a pair (x, y) becomes (fma(x, c, -(y * s)), fma(y, c, x * s)), in both conventions. Comes
// after vec.h and lanes.h.
#pragma once

namespace llmops::LLMOPS_ISA {

// Neighbouring lanes change places.
LLMOPS_INLINE F32x16 swap_pairs(F32x16 x) {
#if LLMOPS_ISA_LEVEL == 3
  return {_mm512_permute_ps(x.v, 0xb1)};
#elif LLMOPS_ISA_LEVEL == 2
  return {_mm256_permute_ps(x.lo, 0xb1), _mm256_permute_ps(x.hi, 0xb1)};
#else
  LLMOPS_LANES(F32x16, x.v[i ^ 1]);
#endif
}

// What one position needs, read once and used by all heads: [half] cos and sin, or, interleaved, [2 * half] with cos
// twice and sin as (-s, s).
struct Angles {
  float *cos, *sin;
};

inline void spread(const Angles& to, const float* cos_sin, int64_t half, bool interleaved, bool inverse) {
  for (int64_t i = 0; i < half; ++i) {
    const float c = cos_sin[2 * i], s = inverse ? -cos_sin[2 * i + 1] : cos_sin[2 * i + 1];
    if (interleaved) {
      to.cos[2 * i] = to.cos[2 * i + 1] = c;
      to.sin[2 * i] = -s;
      to.sin[2 * i + 1] = s;
    } else {
      to.cos[i] = c;
      to.sin[i] = s;
    }
  }
}

template <class T>
LLMOPS_INLINE void rotate_halves(T* out, const T* x, const Angles& angles, int64_t half) {
  for_lanes(half, [&](int64_t i, int n) LLMOPS_BODY {
    const F32x16 c = load_part(angles.cos + i, n), s = load_part(angles.sin + i, n);
    const F32x16 a = load_part(x + i, n), b = load_part(x + half + i, n);
    store_part(out + i, fma(a, c, zero() - b * s), n);
    store_part(out + half + i, fma(b, c, a * s), n);
  });
}

template <class T>
LLMOPS_INLINE void rotate_neighbours(T* out, const T* x, const Angles& angles, int64_t half) {
  for_lanes(2 * half, [&](int64_t i, int n) LLMOPS_BODY {
    const F32x16 a = load_part(x + i, n);
    store_part(out + i, fma(a, load_part(angles.cos + i, n), swap_pairs(a) * load_part(angles.sin + i, n)), n);
  });
}

// Row j of out = row i of x turned; what lies behind the pairs of a head is copied.
template <class T>
void turn_row(const ConstTensorView& x, int64_t i, const TensorView& out, int64_t j, const Angles& angles, int64_t half,
              bool interleaved) {
  const int64_t heads = x.dim[1], e = x.dim[2];
  for (int64_t h = 0; h < heads; ++h) {
    const T* from = row<T>(x, i * heads + h);
    T* to = row<T>(out, j * heads + h);
    if (interleaved) {
      rotate_neighbours(to, from, angles, half);
    } else {
      rotate_halves(to, from, angles, half);
    }
    if (to != from) std::memcpy(to + 2 * half, from + 2 * half, static_cast<size_t>(e - 2 * half) * sizeof(T));
  }
}

// f(row, angles of its position) for the rows of a [rows, width] op.
template <class F>
Status for_turned_rows(Stream& stream, int64_t rows, int64_t width, const ConstTensorView& positions,
                       const ConstTensorView& cos_sin, bool interleaved, bool inverse, F&& f) {
  const int64_t half = cos_sin.dim[1];
  Pool& pool = stream.device().pool();
  LLMOPS_ASSIGN(void* workspace, stream.workspace(pool.threads() * 4 * half * int64_t{sizeof(float)}));
  const int64_t grain = std::max<int64_t>(1, kTaskElems / std::max<int64_t>(1, width));
  pool.parallel_for(ceil_div(rows, grain), [&](int64_t task, int worker) {
    float* const scratch = static_cast<float*>(workspace) + worker * 4 * half;
    const Angles angles = {scratch, scratch + 2 * half};
    for (int64_t n = task * grain; n < std::min(rows, (task + 1) * grain); ++n) {
      const int64_t position = static_cast<const int32_t*>(positions.data)[n];
      const float* const pairs = static_cast<const float*>(cos_sin.data) + position * cos_sin.stride[0];
      spread(angles, pairs, half, interleaved, inverse);
      f(n, angles);
    }
  });
  return {};
}

}  // namespace llmops::LLMOPS_ISA
