// Softmax cross-entropy with its gradient. A row belongs to 16 threads, in three passes: maximum; sum of exponentials, in the
// cpu table's order; gradient, whose exponentials are computed again rather than kept, since memory is what takes time.
// A thread reads an element of the last pass before it writes its place, so dlogits may be logits.
// The maximum is not found online with the sum: that would rescale what is summed so far, and the terms of the contract's
// sum are e^(x - the row's maximum). Loss and gradient are one launch, and a row comes from L2 when it is read again, as
// long as the rows at work fit there.
#include "kernels/cuda/entries.h"
#include "kernels/cuda/faults.h"
#include "kernels/cuda/lane.h"
#include "kernels/cuda/row_lanes.h"
#include "kernels/cuda/rows.h"

namespace llmops::cuda {
namespace {

constexpr int kLossRows = 4;  // of a block: rows are long and few

template <class T>
struct Loss {
  const T* logits;  // [n, width]
  const int32_t* targets;
  float* losses;
  T* dlogits;  // may be null
  int64_t n, width, vocab;
  float scale;
  FaultPlace bad_target;
};

// ln(1 + x) for x >= 0 to a few ulp, also where 1 + x rounds (Kahan): the loss of a sure and right prediction is tiny.
__device__ __forceinline__ float log_1p(float x) {
  const float u = 1.0f + x;
  if (u == 1.0f) return x;
  return u < __int_as_float(0x7f800000) ? log(F32{u}).v * (x / (u - 1.0f)) : u;
}

template <class T, int kVec>
__device__ __forceinline__ float row_max(const T* x, int64_t vocab, bool live) {
  F32 top = {__int_as_float(0xff800000)};
  for (int64_t i = lane_of_thread() * kVec; live && i < vocab; i += kLanes * kVec) {
    const Vec<T, kVec> v = load<kVec>(x + i);
    for (int j = 0; j < kVec; ++j)
      if (i + j < vocab) top = max(top, F32{widen(v.v[j])});
  }
  for (int step = kLanes / 2; step > 0; step /= 2) top = max(top, F32{__shfl_xor_sync(kAllLanes, top.v, step)});
  return top.v;
}

// The sum of e^(x - top) but for the target's, or it would drown the others where it is near 1. Each lane is compensated
// (Kahan): 50,000 plain additions could lose 3 digits. A row ends on a whole step of 16 lanes, as on the cpu: the last step
// of a lane without an element adds 0 and what was lost before.
template <class T, int kVec>
__device__ __forceinline__ float sum_of_others(const T* x, int64_t vocab, int64_t target, float top, bool live) {
  float sum = 0, lost = 0;
  in_lane_order<kVec, 1, kLossRows>((vocab + kLanes - 1) / kLanes * kLanes, live, [=](int64_t i, Vec<float, kVec>* e) {
    Vec<T, kVec> v = {};
    if (i < vocab) v = load<kVec>(x + i);
    for (int j = 0; j < kVec; ++j)
      e->v[j] = i + j < vocab && i + j != target ? exp(F32{widen(v.v[j]) - top}).v : 0.0f;
  }, [&](const float* e) {
    const float term = *e - lost, next = sum + term;
    lost = (next - sum) - term;
    sum = next;
  });
  return fold_lanes(sum);
}

// d = (softmax - onehot) * scale. The target's p - 1 is minus the others' share: no digits cancel.
template <class T, int kVec>
__device__ __forceinline__ void gradient(const Loss<T>& a, const T* x, T* d, int64_t target, float top, float others,
                                         float factor) {
  for (int64_t i = lane_of_thread() * kVec; i < a.width; i += kLanes * kVec) {
    const Vec<T, kVec> v = load<kVec>(x + i);
    Vec<T, kVec> y;
    for (int j = 0; j < kVec; ++j) {
      const float p = i + j == target ? -(others * factor) : exp(F32{widen(v.v[j]) - top}).v * factor;
      y.v[j] = narrow<T>(i + j < a.vocab ? p : 0.0f);
    }
    store(d + i, y);
  }
}

template <class T, int kVec>
__global__ void __launch_bounds__(kLossRows * kLanes) loss(Loss<T> a) {
  const int64_t r = row_of_thread(kLossRows);
  const int lane = lane_of_thread();
  const int64_t target = r < a.n ? a.targets[r] : -1;
  if (target >= a.vocab && lane == 0) report(a.bad_target, r, static_cast<int>(target));
  const bool live = target >= 0 && target < a.vocab;
  const T* x = live ? a.logits + r * a.width : nullptr;
  T* d = r < a.n && a.dlogits != nullptr ? a.dlogits + r * a.width : nullptr;

  const float logit = live ? widen(x[target]) : 0;
  const float top = row_max<T, kVec>(x, a.vocab, live);
  const float others = sum_of_others<T, kVec>(x, a.vocab, target, top, live);
  if (!live) {  // ignored
    if (r < a.n && lane == 0) a.losses[r] = 0;
    for (int64_t i = lane * kVec; d != nullptr && i < a.width; i += kLanes * kVec) store(d + i, Vec<T, kVec>{});
    return;
  }
  // Where the target is the largest its e is 1, and ln(1 + others) keeps the digits of a small loss. Else both terms are
  // >= 0 and no digits cancel.
  const float own = exp(F32{logit - top}).v;
  if (lane == 0) a.losses[r] = logit == top ? log_1p(others) : log(F32{own + others}).v + (top - logit);
  if (d != nullptr) gradient<T, kVec>(a, x, d, target, top, others, a.scale / (own + others));
}

template <class T>
Status run(Stream& stream, const CrossEntropyArgs& a) {
  const Loss<T> args = {static_cast<const T*>(a.logits.data),
                        static_cast<const int32_t*>(a.targets.data),
                        static_cast<float*>(a.losses.data),
                        static_cast<T*>(a.dlogits.data),
                        a.logits.dim[0],
                        a.logits.dim[1],
                        a.vocab,
                        a.scale,
                        id_place(stream, "cross_entropy", "targets", a.vocab, true)};
  if (args.n == 0) return {};
  constexpr int kVec = 16 / sizeof(T);
  const bool aligned = rows_aligned(a.logits) && (!a.dlogits.present() || rows_aligned(a.dlogits));
  return launch(stream.native(), row_blocks(args.n, kLossRows), kLossRows * kLanes, sizeof(Tiles<kLossRows>), "cross_entropy",
                aligned ? loss<T, kVec> : loss<T, 1>, args);
}

}  // namespace

Status cross_entropy(Stream& stream, const CrossEntropyArgs& a) {
  return a.logits.dtype == DType::f32 ? run<float>(stream, a) : run<bf16>(stream, a);
}

}  // namespace llmops::cuda
