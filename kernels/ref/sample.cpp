#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "kernels/ref/ref.h"

namespace llmops::ref {
namespace {

struct Rules {
  double temperature, top_p;
  int64_t top_k;
  uint64_t key, position;
};

// Ids in order of the draw's cuts: the largest logit first, the lower id first among equals.
std::vector<int64_t> ranked(const std::vector<double>& logits) {
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto larger = [&](int64_t a, int64_t b) { return logits[size_t(a)] > logits[size_t(b)]; };
  std::stable_sort(order.begin(), order.end(), larger);
  return order;
}

int64_t draw(const std::vector<double>& logits, const Rules& rules) {
  std::vector<int64_t> kept = ranked(logits);
  const double top = logits[size_t(kept.front())];
  if (rules.temperature == 0) return kept.front();
  const auto weight = [&](int64_t id) { return std::exp((logits[size_t(id)] - top) / rules.temperature); };
  const auto sum = [&] {
    double total = 0;
    for (int64_t id : kept) total += weight(id);
    return total;
  };
  if (rules.top_k > 0 && size_t(rules.top_k) < kept.size()) kept.resize(size_t(rules.top_k));
  if (rules.top_p < 1) {
    const double enough = rules.top_p * sum();
    double reached = 0;
    size_t count = 0;
    do reached += weight(kept[count++]);
    while (count < kept.size() && reached < enough);
    kept.resize(count);
  }
  std::sort(kept.begin(), kept.end());
  const Philox bits = philox4x32(rules.key, rules.position, 0);
  const double at = uniform_f64(bits.v[0], bits.v[1]) * sum();
  double reached = 0;
  for (int64_t id : kept)
    if ((reached += weight(id)) > at) return id;
  return kept.back();  // at rounded up to the sum itself
}

const char* fault_of(const std::vector<double>& logits, const Rules& rules) {
  for (double x : logits)
    if (std::isnan(x)) return "a logit is NaN; the model's output is not finite";
  if (!(rules.temperature >= 0)) return "temperature must be a number >= 0";
  if (rules.top_k < 0) return "top_k must be >= 0 (0: all)";
  if (!(rules.top_p >= 0 && rules.top_p <= 1)) return "top_p must be within [0, 1] (1: all)";
  if (rules.temperature > 0 && std::isinf(*std::max_element(logits.begin(), logits.end())))
    return "the largest logit is infinite; a draw needs it finite";
  return nullptr;
}

}  // namespace

Status sample(Stream&, const SampleArgs& a) {
  for (int64_t n = 0; n < a.logits.dim[0]; ++n) {
    std::vector<double> logits = get_row(a.logits, n);
    logits.resize(size_t(a.vocab));
    const Rules rules = {get(a.temperature, n), get(a.top_p, n), geti(a.top_k, n), uint64_t(geti(a.key, n)),
                         uint64_t(geti(a.position, n))};
    if (const char* fault = fault_of(logits, rules)) return invalid_error(fmt::format("row {}: {}", n, fault));
    static_cast<int32_t*>(a.ids.data)[n] = int32_t(draw(logits, rules));
  }
  return {};
}

}  // namespace llmops::ref
