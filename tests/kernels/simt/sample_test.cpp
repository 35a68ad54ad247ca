// The cuda table on the SIMT shim: sample, its ids equal to those of the ref and the cpu table. Their sums are f64 in an
// order of their own, so a draw could differ where u falls within 1e-13 of a boundary, which these seeds do not.
#include "support/cuda_case.h"

namespace llmops::test {
namespace {

struct Rule {
  double temperature, top_p;
  int top_k;
};

TEST_CASE("cuda sample: every rule, row by row its own, ids equal") {
  const std::vector<Rule> rules = {{1, 1, 0}, {0, 1, 0}, {0.7, 1, 0}, {1.5, 0.9, 0}, {1, 0.3, 0}, {1, 1, 1}, {1, 1, 5},
                                   {2, 0.8, 40}, {1, 0, 0}, {1, 0.999, 4000}, {3, 1, 7}, {0.1, 0.5, 3}};
  const int64_t n = int64_t(rules.size());
  for (int64_t vocab : {1, 2, 15, 16, 300, 2003}) {
    CAPTURE(vocab);
    GuardedTensor logits = random_tensor(DType::f32, {n, vocab + 2}, uint64_t(vocab), {}, 6), ids(DType::i32, {n});
    GuardedTensor temperature(DType::f32, {n}), top_p(DType::f32, {n}), top_k(DType::i32, {n}), position(DType::i64, {n});
    GuardedTensor key = random_ints(DType::i64, n, 0, 1000, 9);
    for (int64_t i = 0; i < n; ++i) {
      temperature.set(i, rules[size_t(i)].temperature);
      top_p.set(i, rules[size_t(i)].top_p);
      top_k.set(i, rules[size_t(i)].top_k);
      position.set(i, double(i) * 1e9);
      for (int64_t j = vocab; j < vocab + 2; ++j) logits.set(i * (vocab + 2) + j, 1e30);  // padding would win every draw
    }
    CHECK(cuda_against_others(sample, {{&logits}, {&temperature}, {&top_k}, {&top_p}, {&key}, {&position}, {&ids, Bound{}}},
                              [&](auto& t) { return SampleArgs{t[0], t[1], t[2], t[3], t[4], t[5], t[6], vocab}; }) == "");
  }
}

TEST_CASE("cuda sample: ties go to the lower id, -inf is never drawn") {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<std::vector<float>> logits = {{1, 3, 2, 3, 2, -1, 2, 0},          {0.0f, -0.0f, -1, -2, -3, -4, -5, -6},
                                                  {5, 5, 5, 5, 5, 5, 5, 5},           {-inf, 0, -inf, 1, -inf, 0, -inf, 0},
                                                  {-inf, -inf, -inf, 7, -inf, 7, 2, 1}};
  for (const auto& row : logits)
    for (const Rule rule : {Rule{0, 1, 0}, {1, 1, 2}, {1, 1, 4}, {1, 0.24, 0}, {1, 0.6, 2}, {1, 0.999999, 4}, {1, 1, 0}}) {
      CAPTURE(rule.top_k);
      CAPTURE(rule.top_p);
      const int64_t n = 8;
      GuardedTensor x(DType::f32, {n, 8}), ids(DType::i32, {n}), temperature(DType::f32, {n}), top_p(DType::f32, {n});
      GuardedTensor top_k(DType::i32, {n}), key(DType::i64, {n}), position(DType::i64, {n});
      temperature.fill(rule.temperature), top_p.fill(rule.top_p), top_k.fill(rule.top_k), key.fill(7);
      for (int64_t i = 0; i < 8 * n; ++i) x.set(i, double(row[size_t(i % 8)])), position.set(i / 8, double(i / 8));
      CHECK(cuda_against_others(sample, {{&x}, {&temperature}, {&top_k}, {&top_p}, {&key}, {&position}, {&ids, Bound{}}},
                                [](auto& t) { return SampleArgs{t[0], t[1], t[2], t[3], t[4], t[5], t[6], 8}; },
                                {schedules().back()}) == "");
    }
}

}  // namespace
}  // namespace llmops::test
