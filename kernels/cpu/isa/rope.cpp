// Rotary position embedding. With the angle's (c, s), or (c, -s) for the inverse, a pair (x, y) becomes
// (fma(x, c, -(y * s)), fma(y, c, x * s)), in both conventions.
#include "kernels/cpu/entries.h"
#include "kernels/cpu/tasks.h"

#include "kernels/cpu/vec.h"
#include "kernels/cpu/lanes.h"

namespace llmops::LLMOPS_ISA {
namespace {

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

void spread(const Angles& to, const float* cos_sin, int64_t half, bool interleaved, bool inverse) {
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
void rotate_halves(T* out, const T* x, const Angles& angles, int64_t half) {
  for_lanes(half, [&](int64_t i, int n) LLMOPS_BODY {
    const F32x16 c = load_part(angles.cos + i, n), s = load_part(angles.sin + i, n);
    const F32x16 a = load_part(x + i, n), b = load_part(x + half + i, n);
    store_part(out + i, fma(a, c, zero() - b * s), n);
    store_part(out + half + i, fma(b, c, a * s), n);
  });
}

template <class T>
void rotate_neighbours(T* out, const T* x, const Angles& angles, int64_t half) {
  for_lanes(2 * half, [&](int64_t i, int n) LLMOPS_BODY {
    const F32x16 a = load_part(x + i, n);
    store_part(out + i, fma(a, load_part(angles.cos + i, n), swap_pairs(a) * load_part(angles.sin + i, n)), n);
  });
}

template <class T>
void rotate_rows(const RopeArgs& args, int64_t begin, int64_t end, const Angles& angles) {
  const int64_t heads = args.x.dim[1], e = args.x.dim[2], half = args.cos_sin.dim[1];
  for (int64_t n = begin; n < end; ++n) {
    const int64_t position = static_cast<const int32_t*>(args.positions.data)[n];
    spread(angles, static_cast<const float*>(args.cos_sin.data) + position * args.cos_sin.stride[0], half,
           args.interleaved, args.inverse);
    for (int64_t h = 0; h < heads; ++h) {
      const T* x = row<T>(args.x, n * heads + h);
      T* out = row<T>(args.out, n * heads + h);
      if (args.interleaved) {
        rotate_neighbours(out, x, angles, half);
      } else {
        rotate_halves(out, x, angles, half);
      }
      if (out != x) std::memcpy(out + 2 * half, x + 2 * half, static_cast<size_t>(e - 2 * half) * sizeof(T));
    }
  }
}

template <class T>
Status run(Stream& stream, const RopeArgs& args) {
  LLMOPS_TRY(check_ids("rope", "positions", args.positions, args.cos_sin.dim[0], false));
  const int64_t rows = args.x.dim[0], width = args.x.dim[1] * args.x.dim[2], wide = 2 * args.cos_sin.dim[1];
  Pool& pool = stream.device().pool();
  LLMOPS_ASSIGN(void* workspace, stream.workspace(pool.threads() * 2 * wide * int64_t{sizeof(float)}));
  const int64_t grain = std::max<int64_t>(1, kTaskElems / std::max<int64_t>(1, width));
  pool.parallel_for(ceil_div(rows, grain), [&](int64_t task, int worker) {
    float* angles = static_cast<float*>(workspace) + worker * 2 * wide;
    rotate_rows<T>(args, task * grain, std::min(rows, (task + 1) * grain), {angles, angles + wide});
  });
  return {};
}

}  // namespace

Status rope(Stream& stream, const RopeArgs& args) {
  return args.x.dtype == DType::bf16 ? run<bf16>(stream, args) : run<float>(stream, args);
}

}  // namespace llmops::LLMOPS_ISA
#include "kernels/cpu/vec_end.h"
