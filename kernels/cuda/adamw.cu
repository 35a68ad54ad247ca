// AdamW over one contiguous range: the parameters of a group lie side by side, so one launch takes all its tensors.
#include "kernels/adamw.h"
#include "kernels/cuda/each.h"
#include "kernels/cuda/entries.h"

namespace llmops::cuda {
namespace {

struct Update {
  float *param, *m, *v;
  const float *grad, *control;
  bf16* param_bf16;  // may be null
  float beta1, beta2, rest1, rest2, correction1, correction2, lr, eps, weight_decay;
  bool stochastic;
  uint64_t rounding_key, first_element, step;

  template <int k>
  __device__ __forceinline__ void at(int64_t i) const {
    if (control[2] == 0.0f) return;
    Vec<float, k> p = load<k>(param + i), first = load<k>(m + i), second = load<k>(v + i);
    const Vec<float, k> gradient = load<k>(grad + i);
    for (int j = 0; j < k; ++j) {
      const float g = gradient.v[j] * control[1];
      first.v[j] = beta1 * first.v[j] + rest1 * g;
      second.v[j] = beta2 * second.v[j] + rest2 * g * g;
      const float change = (first.v[j] / correction1) / (sqrtf(second.v[j] / correction2) + eps) + weight_decay * p.v[j];
      p.v[j] = p.v[j] - lr * change;
    }
    store(m + i, first);
    store(v + i, second);
    store(param + i, p);
    if (param_bf16 != nullptr) store(param_bf16 + i, rounded<k>(p, i));
  }

  // k is 8, from a multiple of 8 on, or 1: one draw serves them.
  template <int k>
  __device__ __forceinline__ Vec<bf16, k> rounded(const Vec<float, k>& p, int64_t i) const {
    Vec<bf16, k> y;
    if (!stochastic) {
      for (int j = 0; j < k; ++j) y.v[j] = narrow<bf16>(p.v[j]);
      return y;
    }
    const uint64_t e = first_element + static_cast<uint64_t>(i);
    const Philox draw = philox4x32(rounding_key, e / 8, step);
    for (int j = 0; j < k; ++j)
      y.v[j].bits = round_stochastic(__float_as_uint(p.v[j]), half_word(draw, static_cast<int>(e % 8) + j));
    return y;
  }
};

}  // namespace

Status adamw(Stream& stream, const AdamwArgs& a) {
  const Update update = {static_cast<float*>(a.param.data),
                         static_cast<float*>(a.m.data),
                         static_cast<float*>(a.v.data),
                         static_cast<const float*>(a.grad.data),
                         static_cast<const float*>(a.control.data),
                         static_cast<bf16*>(a.param_bf16.data),
                         a.beta1,
                         a.beta2,
                         1.0f - a.beta1,
                         1.0f - a.beta2,
                         bias_correction(a.beta1, a.step),
                         bias_correction(a.beta2, a.step),
                         a.lr,
                         a.eps,
                         a.weight_decay,
                         a.stochastic,
                         static_cast<uint64_t>(a.rounding_key),
                         static_cast<uint64_t>(a.first_element),
                         static_cast<uint64_t>(a.step)};
  const bool whole = aligned(update.param, update.m, update.v, update.grad, update.param_bf16);
  return run_each<8>(stream, "adamw", whole, a.param.dim[0], update);
}

}  // namespace llmops::cuda
