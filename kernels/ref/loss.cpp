#include <cmath>
#include <limits>

#include "kernels/cpu/tasks.h"
#include "kernels/ref/ref.h"

namespace llmops::ref {

Status cross_entropy(Stream&, const CrossEntropyArgs& a) {
  LLMOPS_TRY(check_ids("cross_entropy", "targets", a.targets, a.vocab, true));
  for (int64_t n = 0; n < a.logits.dim[0]; ++n) {
    const int64_t target = geti(a.targets, n);
    const std::vector<double> logits = get_row(a.logits, n);
    double top = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t v = 0; v < a.vocab; ++v) top = logits[size_t(v)] > top ? logits[size_t(v)] : top;
    for (int64_t v = 0; v < a.vocab; ++v) sum += std::exp(logits[size_t(v)] - top);
    put(a.losses, target < 0 ? 0 : std::log(sum) + top - logits[size_t(target)], n);
    if (!a.dlogits.present()) continue;
    std::vector<double> gradient(logits.size());
    for (int64_t v = 0; target >= 0 && v < a.vocab; ++v)
      gradient[size_t(v)] = (std::exp(logits[size_t(v)] - top) / sum - (v == target ? 1 : 0)) * double(a.scale);
    put_row(a.dlogits, n, gradient);
  }
  return {};
}

}  // namespace llmops::ref
