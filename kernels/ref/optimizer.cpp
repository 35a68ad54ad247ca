#include <algorithm>
#include <cmath>

#include "kernels/ref/ref.h"

namespace llmops::ref {

Status square_sums(Stream&, const SquareSumsArgs& a) {
  for (int64_t block = 0; block < a.sums.dim[0]; ++block) {
    double sum = 0;
    for (int64_t i = block * kSquareSumBlock; i < std::min(a.x.dim[0], (block + 1) * kSquareSumBlock); ++i)
      sum += get(a.x, i) * get(a.x, i);
    put(a.sums, sum, block);
  }
  return {};
}

Status clip_scale(Stream&, const ClipScaleArgs& a) {
  double sum = 0;
  int64_t bad = -1;
  for (int64_t i = 0; i < a.sums.dim[0]; ++i) {
    sum += get(a.sums, i);
    if (bad < 0 && !std::isfinite(get(a.sums, i))) bad = i;
  }
  const double norm = std::sqrt(sum), clip = a.clip;
  put(a.control, norm, 0);
  put(a.control, clip > 0 && norm > clip ? clip / norm : 1, 1);
  put(a.control, bad < 0 ? 1 : 0, 2);
  put(a.control, double(bad), 3);
  return {};
}

Status adamw(Stream&, const AdamwArgs& a) {
  if (get(a.control, 2) == 0) return {};
  const double b1 = a.beta1, b2 = a.beta2;
  const double correction1 = 1 - std::pow(b1, double(a.step)), correction2 = 1 - std::pow(b2, double(a.step));
  for (int64_t i = 0; i < a.param.dim[0]; ++i) {
    const double g = get(a.grad, i) * get(a.control, 1), p = get(a.param, i);
    const double m = b1 * get(a.m, i) + (1 - b1) * g, v = b2 * get(a.v, i) + (1 - b2) * g * g;
    const double update = (m / correction1) / (std::sqrt(v / correction2) + double(a.eps)) + double(a.weight_decay) * p;
    put(a.m, m, i);
    put(a.v, v, i);
    put(a.param, p - double(a.lr) * update, i);
    if (a.param_bf16.present()) put(a.param_bf16, get(a.param, i), i);  // rounded from the f32 master
  }
  return {};
}

}  // namespace llmops::ref
