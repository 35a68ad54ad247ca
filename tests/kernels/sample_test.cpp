// The sampler: cuts, ties, greedy, draws in proportion, and errors that name the row.
#include "support/kernel_case.h"

namespace llmops::test {
namespace {

const float kInf = std::numeric_limits<float>::infinity();

struct Rule {
  double temperature = 1, top_p = 1;
  int top_k = 0;
};

// n rows of the same logits and rule; key 7, positions 0, 1, 2 ...
struct Draws {
  Draws(const std::vector<float>& row, int64_t n, Rule rule, int64_t padding = 0)
      : logits(DType::f32, {n, int64_t(row.size()) + padding}),
        temperature(DType::f32, {n}),
        top_p(DType::f32, {n}),
        top_k(DType::i32, {n}),
        key(DType::i64, {n}),
        position(DType::i64, {n}),
        ids(DType::i32, {n}),
        vocab(int64_t(row.size())) {
    logits.fill(1e30);  // padding would win every draw
    for (int64_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < row.size(); ++j) logits.set(i * (vocab + padding) + int64_t(j), double(row[j]));
      temperature.set(i, rule.temperature);
      top_p.set(i, rule.top_p);
      top_k.set(i, rule.top_k);
      key.set(i, 7);
      position.set(i, double(i));
    }
  }
  SampleArgs args() const { return {logits, temperature, top_k, top_p, key, position, ids, vocab}; }

  GuardedTensor logits, temperature, top_p, top_k, key, position, ids;
  int64_t vocab;
};

std::vector<float> random_logits(int64_t count, uint64_t seed, double scale) {
  const GuardedTensor x = random_tensor(DType::f32, {count}, seed, {}, scale);
  std::vector<float> logits;
  for (int64_t i = 0; i < count; ++i) logits.push_back(float(x.at(i)));
  return logits;
}

// The ids that 2000 draws give, ascending.
std::vector<int> drawn(const std::vector<float>& row, Rule rule) {
  Draws draws(row, 2000, rule, 3);
  REQUIRE(run_on(*devices()[1].device, sample, draws.args()) == "");
  std::vector<int> ids;
  for (int64_t i = 0; i < 2000; ++i) ids.push_back(int(draws.ids.at(i)));
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

using Ids = std::vector<int>;

TEST_CASE("sample against the reference: every rule, ids equal") {
  // The reference draws with double weights, ours are f32 with an error below 1.1 ulp: a draw differs only when u falls
  // within about 1e-7 of a boundary, which these seeds do not.
  for (int64_t vocab : {1, 2, 15, 16, 17, 300, 5003})
    for (const Rule& rule : {Rule{}, Rule{0}, Rule{0.7}, Rule{1.5, 0.9}, Rule{1, 0.3}, Rule{1, 1, 1}, Rule{1, 1, 5},
                             Rule{2, 0.8, 40}, Rule{1, 0}, Rule{1, 0.999, 4000}}) {
      CAPTURE(vocab);
      Draws draws(random_logits(vocab, 5, 6), 20, rule, 2);
      CHECK(against_reference(sample, draws.args(), {{&draws.ids, {0, 0}}}) == "");
    }
}

TEST_CASE("sample: greedy takes the first of equal maxima") {
  for (int64_t first : {0, 3, 16, 40}) {
    std::vector<float> row(50, -2.0f);
    row[size_t(first)] = row[49] = 3;
    Draws draws(row, 1, {0});
    REQUIRE(run_on(*devices()[0].device, sample, draws.args()) == "");
    CHECK(draws.ids.at(0) == first);
  }
  Draws zeros({-0.0f, 0.0f}, 1, {0});
  REQUIRE(run_on(*devices()[0].device, sample, zeros.args()) == "");
  CHECK(zeros.ids.at(0) == 0);
}

TEST_CASE("sample: top-k keeps k, ties by id") {
  const std::vector<float> row = {1, 3, 2, 3, 2, -1, 2, 0};
  CHECK(drawn(row, {1, 1, 1}) == Ids{1});
  CHECK(drawn(row, {1, 1, 2}) == Ids{1, 3});
  CHECK(drawn(row, {1, 1, 3}) == Ids{1, 2, 3});
  CHECK(drawn(row, {1, 1, 4}) == Ids{1, 2, 3, 4});
  CHECK(drawn(row, {1, 1, 8}) == Ids{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(drawn(row, {1, 1, 9}) == drawn(row, {1, 1, 0}));
  CHECK(drawn({0.0f, -0.0f, -1}, {1, 1, 1}) == Ids{0});  // -0 equals 0
}

TEST_CASE("sample: top-p keeps the shortest prefix that reaches it, at least one, ties by id") {
  const auto log = [](double p) { return float(std::log(p)); };
  const std::vector<float> row = {log(0.1), log(0.4), log(0.2), log(0.2), log(0.1)};
  CHECK(drawn(row, {1, 0}) == Ids{1});
  CHECK(drawn(row, {1, 0.39}) == Ids{1});
  CHECK(drawn(row, {1, 0.41}) == Ids{1, 2});
  CHECK(drawn(row, {1, 0.61}) == Ids{1, 2, 3});
  CHECK(drawn(row, {1, 0.81}) == Ids{0, 1, 2, 3});
  CHECK(drawn(row, {1, 0.95}) == Ids{0, 1, 2, 3, 4});
  CHECK(drawn(row, {1, 0.7, 2}) == Ids{1, 2});  // after top-k 2 the first holds 2/3 of the weight, less than 0.7
  CHECK(drawn(row, {1, 0.6, 2}) == Ids{1});
  CHECK(drawn(std::vector<float>(40, 5.0f), {1, 0.24}) == Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
}

TEST_CASE("sample: a logit of -inf is never drawn") {
  CHECK(drawn({-kInf, 0, -kInf, 1}, {}) == Ids{1, 3});
  CHECK(drawn({-kInf, 0, -kInf, 1}, {1, 0.999999, 4}) == Ids{1, 3});
}

TEST_CASE("sample: frequencies follow softmax(logits / temperature)") {
  const std::vector<float> row = random_logits(24, 11, 1.5);
  constexpr int64_t kDraws = 40000;
  for (double temperature : {0.5, 1.0, 3.0}) {
    Draws draws(row, kDraws, {temperature});
    REQUIRE(run_on(*devices()[1].device, sample, draws.args()) == "");
    std::vector<double> count(row.size()), weight;
    for (int64_t i = 0; i < kDraws; ++i) ++count[size_t(draws.ids.at(i))];
    double sum = 0, chi_square = 0;
    for (float x : row) sum += weight.emplace_back(std::exp(double(x) / temperature));
    for (size_t i = 0; i < row.size(); ++i) {
      const double expected = kDraws * weight[i] / sum;
      chi_square += (count[i] - expected) * (count[i] - expected) / expected;
    }
    // 23 degrees of freedom: mean 23, 99.9 % of fair samplers are below 49.7; below 3 would be too even to be random.
    CHECK(chi_square < 49.7);
    CHECK(chi_square > 3);
  }
}

TEST_CASE("sample: errors name the first bad row") {
  const std::vector<float> row = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18};
  const auto error = [&](auto spoil) {
    Draws draws(row, 6, {1, 0.9, 3});
    spoil(draws);
    const auto device = open_device({.threads = 3});
    return run_on(*device, sample, draws.args());
  };
  const double nan = std::nan("");
  CHECK(error([](Draws&) {}) == "");
  for (int64_t column : {0, 15, 17})
    CHECK(error([&](Draws& d) {
            d.logits.set(2 * 18 + column, nan), d.logits.set(5 * 18, nan);
          }).find("row 2: a NaN logit") != std::string::npos);
  CHECK(error([&](Draws& d) { d.logits.set(3, nan), d.temperature.set(0, 0); }).find("row 0: a NaN") !=
        std::string::npos);
  CHECK(error([](Draws& d) { d.logits.set(20, double(kInf)); }).find("row 1: an infinite") != std::string::npos);
  CHECK(error([](Draws& d) {
          for (int i = 0; i < 18; ++i) d.logits.set(i, -double(kInf));
        }).find("row 0: an infinite") != std::string::npos);
  CHECK(error([&](Draws& d) { d.temperature.set(4, nan); }).find("row 4: temperature") != std::string::npos);
  CHECK(error([](Draws& d) { d.temperature.set(4, -1); }).find("row 4: temperature") != std::string::npos);
  CHECK(error([](Draws& d) { d.top_k.set(3, -2); }).find("row 3: top_k") != std::string::npos);
  CHECK(error([](Draws& d) { d.top_p.set(1, 1.5); }).find("row 1: top_p") != std::string::npos);
  CHECK(error([&](Draws& d) { d.top_p.set(1, nan); }).find("row 1: top_p") != std::string::npos);
}

}  // namespace
}  // namespace llmops::test
