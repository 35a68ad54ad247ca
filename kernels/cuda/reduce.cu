// Sums of losses and of squares, and the clip decision: f64 over 16 lanes ascending, folded.
#include "kernels/cuda/entries.h"
#include "kernels/cuda/row_lanes.h"

namespace llmops::cuda {
namespace {

// A block of kSquareSumBlock elements is a row of 16 threads. Squares of f32 are exact in f64.
template <int kVec>
__global__ void __launch_bounds__(kRowsPerBlock * kLanes) square_blocks(const float* x, int64_t n, double* sums) {
  const int64_t block = row_of_thread(), begin = block * kSquareSumBlock;
  const int64_t count = n - begin;
  double sum = 0;
  in_lane_order<kVec>(kSquareSumBlock, count > 0, [=](int64_t i, Vec<float, kVec>* term) {
    if (i + kVec <= count) *term = load<kVec>(x + begin + i);
    else for (int j = 0; j < kVec; ++j) term->v[j] = i + j < count ? x[begin + i + j] : 0.0f;
  }, [&](const float* v) { sum += static_cast<double>(*v) * static_cast<double>(*v); });
  sum = fold_lanes(sum);
  if (count > 0 && lane_of_thread() == 0) sums[block] = sum;
}

// The sum of x[0, n) in every lane, by one warp. Its upper half repeats what the lower does.
template <class T>
__device__ __forceinline__ double warp_sum(const T* x, int64_t n) {
  double sum = 0;
#pragma unroll 8
  for (int64_t i = lane_of_thread(); i < n; i += kLanes) sum += static_cast<double>(x[i]);
  return fold_lanes(sum);
}

__global__ void __launch_bounds__(kWarp) sum_all(const float* x, int64_t n, double* out, bool accumulate) {
  const double sum = warp_sum(x, n);
  if (threadIdx.x == 0) *out = accumulate ? *out + sum : sum;
}

__global__ void __launch_bounds__(kWarp) decide_clip(const double* sums, int64_t n, float clip, float* control) {
  const double norm = sqrt(warp_sum(sums, n));
  int64_t bad = n;  // the first block that is not finite
  for (int64_t i = lane_of_thread(); i < n && bad == n; i += kLanes)
    if (!(sums[i] - sums[i] == 0)) bad = i;
  for (int step = kLanes / 2; step > 0; step /= 2) {
    const int64_t other = __shfl_xor_sync(kAllLanes, bad, step);
    bad = other < bad ? other : bad;
  }
  if (threadIdx.x != 0) return;
  control[0] = static_cast<float>(norm);
  control[1] = clip > 0 && norm > static_cast<double>(clip) ? static_cast<float>(static_cast<double>(clip) / norm) : 1.0f;
  control[2] = bad == n ? 1.0f : 0.0f;
  control[3] = bad == n ? -1.0f : static_cast<float>(bad);
}

}  // namespace

Status square_sums(Stream& stream, const SquareSumsArgs& a) {
  const auto* x = static_cast<const float*>(a.x.data);
  const int64_t blocks = a.sums.dim[0];
  if (blocks == 0) return {};
  const bool aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0;
  return launch(stream.native(), row_blocks(blocks), kRowsPerBlock * kLanes, sizeof(Tiles<>), "square_sums",
                aligned ? square_blocks<4> : square_blocks<1>, x, a.x.dim[0], static_cast<double*>(a.sums.data));
}

Status sum(Stream& stream, const SumArgs& a) {
  return launch(stream.native(), 1, kWarp, 0, "sum", sum_all, static_cast<const float*>(a.x.data), a.x.dim[0],
                static_cast<double*>(a.out.data), a.accumulate);
}

Status clip_scale(Stream& stream, const ClipScaleArgs& a) {
  return launch(stream.native(), 1, kWarp, 0, "clip_scale", decide_clip, static_cast<const double*>(a.sums.data),
                a.sums.dim[0], a.clip, static_cast<float*>(a.control.data));
}

}  // namespace llmops::cuda
