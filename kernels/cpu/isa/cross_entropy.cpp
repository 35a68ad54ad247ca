// Softmax cross-entropy with its gradient. A row of logits is read from memory once: three passes run over it in the L2
// cache (maximum; exponentials and their sum; gradient), and an exponential is computed once.
#include "kernels/cpu/entries.h"
#include "kernels/cpu/tasks.h"
#include "kernels/cpu/vec.h"

#include "kernels/cpu/lanes.h"
#include "kernels/math.h"

namespace llmops::LLMOPS_ISA {
namespace {

template <class T>
float row_max(const T* x, int64_t count) {
  F32x16 top = set1(-__builtin_inff());
  for_lanes(count, [&](int64_t i, int n) LLMOPS_BODY {
    top = max(top, keep_part(load_part(x + i, n), n, -__builtin_inff()));
  });
  return fold_max(top);
}

// f(x) of one float, in lane 0 of the vector function.
float first_lane(F32x16 x) {
  float lane[kLanes];
  store(lane, x);
  return lane[0];
}

// ln(1 + x) for x >= 0 to a few ulp, also where 1 + x rounds (Kahan): the loss of a sure and right prediction is tiny.
float log_1p(float x) {
  const float u = 1.0f + x;
  if (u == 1.0f) return x;
  return u < __builtin_inff() ? first_lane(log(set1(u))) * (x / (u - 1.0f)) : u;
}

struct Exponentials {
  float target;  // e^(logit - top) of the target
  float others;  // the sum of the others'
};

// Keeps each e^(x - top) in e unless that is null. The target stays out of the sum, or it would drown the others where
// it is near 1. The sum is compensated (Kahan), in each lane: 50,000 plain additions could lose 3 digits.
template <class T>
Exponentials exponentials(const T* x, int64_t vocab, int64_t target, float top, float* e) {
  F32x16 sum = zero();
  F32x16 lost = zero();
  float target_e = 0.0f;
  for_lanes(vocab, [&](int64_t i, int n) LLMOPS_BODY {
    F32x16 v = keep_part(exp(load_part(x + i, n) - set1(top)), n, 0.0f);
    if (e != nullptr) store_part(e + i, v, n);
    if (target >= i && target < i + kLanes) [[unlikely]] {
      float lane[kLanes];
      store(lane, v);
      target_e = lane[target - i];
      lane[target - i] = 0.0f;
      v = load(lane);
    }
    const F32x16 term = v - lost;
    const F32x16 next = sum + term;
    lost = (next - sum) - term;
    sum = next;
  });
  return {target_e, fold_sum(sum)};
}

// d[0, vocab) = (softmax - onehot) * scale from the exponentials. The target's p - 1 is minus the others' share: no
// digits cancel.
template <class T>
void gradient_row(const float* e, Exponentials s, int64_t vocab, int64_t target, float scale, T* d) {
  const float factor = scale / (s.target + s.others);
  for_lanes(vocab, [&](int64_t i, int n) LLMOPS_BODY {
    store_part(d + i, load_part(e + i, n) * set1(factor), n);
  });
  const F32x16 at_target = set1(-(s.others * factor));
  store_n(d + target, at_target, 1);
}

template <class T>
void loss_row(const CrossEntropyArgs& a, int64_t r, float* scratch) {
  const T* x = row<T>(a.logits, r);
  const int64_t width = a.logits.dim[1];
  const int64_t target = static_cast<const int32_t*>(a.targets.data)[r];
  float* loss = static_cast<float*>(a.losses.data) + r;
  T* d = a.dlogits.present() ? row<T>(a.dlogits, r) : nullptr;
  if (target < 0) {
    *loss = 0.0f;
    if (d != nullptr) std::memset(static_cast<void*>(d), 0, static_cast<size_t>(width) * sizeof(T));
    return;
  }
  const float logit = to_f32(x[target]);
  const float top = row_max(x, a.vocab);
  const Exponentials s = exponentials(x, a.vocab, target, top, scratch);
  // Where the target is the largest its e is 1, and ln(1 + others) keeps the digits of a small loss. Else both terms
  // are >= 0 and no digits cancel.
  *loss = logit == top ? log_1p(s.others) : first_lane(log(set1(s.target + s.others))) + (top - logit);
  if (d == nullptr) return;
  gradient_row(scratch, s, a.vocab, target, a.scale, d);
  std::memset(static_cast<void*>(d + a.vocab), 0, static_cast<size_t>(width - a.vocab) * sizeof(T));
}

// bf16 rows keep their exponentials in f32 scratch, one row per worker; f32 rows keep them in dlogits itself, which is
// sound when that is logits: an element is read before its place is written.
template <class T>
Status run(Stream& stream, const CrossEntropyArgs& a) {
  LLMOPS_TRY(check_ids("cross_entropy", "targets", a.targets, a.vocab, true));
  const int64_t n = a.logits.dim[0];
  const bool own = std::is_same_v<T, bf16> && a.dlogits.present();
  const int64_t workers = own ? stream.device().pool().threads() : 0;
  LLMOPS_ASSIGN(void* scratch, stream.workspace(workers * a.vocab * static_cast<int64_t>(sizeof(float))));
  const int64_t grain = std::max<int64_t>(1, kTaskElems / std::max<int64_t>(1, a.logits.dim[1]));
  stream.device().pool().parallel_for(ceil_div(n, grain), [&](int64_t task, int worker) {
    for (int64_t r = task * grain; r < std::min(n, (task + 1) * grain); ++r) {
      float* e = nullptr;
      if (own) e = static_cast<float*>(scratch) + worker * a.vocab;
      if constexpr (std::is_same_v<T, float>) e = a.dlogits.present() ? row<float>(a.dlogits, r) : nullptr;
      loss_row<T>(a, r, e);
    }
  });
  return {};
}

}  // namespace

Status cross_entropy(Stream& stream, const CrossEntropyArgs& a) {
  return a.logits.dtype == DType::f32 ? run<float>(stream, a) : run<bf16>(stream, a);
}

}  // namespace llmops::LLMOPS_ISA

#include "kernels/cpu/vec_end.h"
