// cross_entropy against the ref table. u = 2^-24.
#include "support/kernel_case.h"

namespace llmops::test {
namespace {

constexpr double kUnit = 0x1p-24;

// Logits in [-10,10]: x - max is off by 16u at most (half an ulp of 16..32), e^ of it by that and 2.2u, a compensated
// sum of them by 6u more. The loss is ln(sum) + (max - logit), each term off by a few u of itself besides.
Bound loss_bound() { return {25 * kUnit, 4 * kUnit}; }
// Relative alone, down to the smallest probabilities, and for the target's p - 1 too: no digits cancel. Below the
// normal range the spacing is 2^-149.
Bound gradient_bound(DType t) { return {0x1p-149, 32 * kUnit + (t == DType::bf16 ? 0x1p-7 : 0)}; }

struct LossCase {
  GuardedTensor logits, targets, losses, dlogits;
  int64_t vocab;
  LossCase(DType t, int64_t n, int64_t vocab, int64_t padding)
      : logits(random_tensor(t, {n, vocab + padding}, 1, {}, 10)),
        targets(random_ints(DType::i32, n, 0, vocab, 2)),
        losses(DType::f32, {n}),
        dlogits(t, {n, vocab + padding}),
        vocab(vocab) {
    for (int64_t r = 0; r < n; ++r)  // padding must not be read: a NaN there would reach every sum
      for (int64_t v = vocab; v < vocab + padding; ++v)
        logits.set(r * (vocab + padding) + v, std::numeric_limits<double>::quiet_NaN());
    for (int64_t r = 2; r < n; r += 5) targets.set(r, r % 2 ? -1 : -100);
  }
  CrossEntropyArgs args(float scale) { return {logits, targets, losses, dlogits, vocab, scale}; }
};

TEST_CASE("cross_entropy: every width, padded and not, with and without a gradient, in place") {
  struct Shape {
    int64_t n, vocab, padding;
  };
  for (DType t : {DType::f32, DType::bf16}) {
    for (const Shape s : {Shape{0, 5, 0},
                          {3, 1, 0},
                          {4, 2, 1},
                          {3, 15, 0},
                          {3, 16, 0},
                          {3, 17, 15},
                          {300, 65, 0},
                          {7, 97, 31},
                          {3, 4097, 0},
                          {2, 50257, 47}}) {
      CAPTURE(s.n);
      CAPTURE(s.vocab);
      CAPTURE(s.padding);
      CAPTURE(info(t).name);
      LossCase a(t, s.n, s.vocab, s.padding);
      const Bound loss = loss_bound(), gradient = gradient_bound(t);
      CHECK(against_reference(cross_entropy, a.args(0.25f), {{&a.losses, loss}, {&a.dlogits, gradient}}) == "");
      for (int64_t r = 0; r < s.n; ++r) {
        for (int64_t v = s.vocab; v < s.vocab + s.padding; ++v)
          REQUIRE(a.dlogits.bits(r * (s.vocab + s.padding) + v) == 0);
        if (a.targets.at(r) < 0) CHECK(a.losses.bits(r) == 0);
      }
      CrossEntropyArgs evaluation = a.args(0.25f);
      evaluation.dlogits = {};
      CHECK(against_reference(cross_entropy, evaluation, {{&a.losses, loss}}) == "");
      CrossEntropyArgs in_place = a.args(0.25f);
      in_place.dlogits = a.logits;
      CHECK(against_reference(cross_entropy, in_place, {{&a.losses, loss}, {&a.logits, gradient}}) == "");
    }
  }
}

TEST_CASE("cross_entropy: a sure and right prediction keeps its digits") {
  // One logit 8, 12, ... 24 above 999 equal ones: the loss falls to 4e-8, the gradient of the target likewise.
  const int64_t n = 5, v = 1000;
  GuardedTensor logits(DType::f32, {n, v}), targets = random_ints(DType::i32, n, 0, v, 1);
  GuardedTensor losses(DType::f32, {n}), dlogits(DType::f32, {n, v});
  for (int64_t r = 0; r < n; ++r)
    for (int64_t i = 0; i < v; ++i) logits.set(r * v + i, double(i) == targets.at(r) ? 8 + 4 * double(r) : 0);
  const Bound relative = {0, 32 * kUnit};
  CHECK(against_reference(cross_entropy, CrossEntropyArgs{logits, targets, losses, dlogits, v, 1.0f},
                          {{&losses, relative}, {&dlogits, relative}}) == "");
}

TEST_CASE("cross_entropy: 50,000 equal terms add up without drift") {
  // e^-0.3 has a full mantissa: plain f32 lanes of 3,142 additions would be off by 1e-5 of the sum.
  const int64_t v = 50257;
  GuardedTensor logits(DType::f32, {1, v}), targets(DType::i32, {1}), losses(DType::f32, {1});
  logits.fill(-0.3), logits.set(7, 0), targets.set(0, 7);
  CHECK(against_reference(cross_entropy, CrossEntropyArgs{logits, targets, losses, {}, v, 1.0f},
                          {{&losses, loss_bound()}}) == "");
}

TEST_CASE("cross_entropy: large logits, masked logits, and NaN") {
  const double inf = std::numeric_limits<double>::infinity();
  GuardedTensor logits(DType::f32, {3, 18}), targets(DType::i32, {3}), losses(DType::f32, {3}),
      dlogits(DType::f32, {3, 18});
  for (int64_t i = 0; i < 18; ++i) {
    logits.set(i, i == 4 ? 3e38 : -3e38);
    logits.set(18 + i, i % 3 == 0 ? -inf : double(i));
    logits.set(36 + i, i == 17 ? std::nan("") : 0);
  }
  targets.set(0, 4), targets.set(1, 17), targets.set(2, 0);
  CHECK(against_reference(cross_entropy, CrossEntropyArgs{logits, targets, losses, dlogits, 18, 1.0f},
                          {{&losses, loss_bound()}, {&dlogits, gradient_bound(DType::f32)}}) == "");
  CHECK(losses.at(0) == 0);
  CHECK(std::isnan(losses.at(2)));
}

TEST_CASE("cross_entropy: a row has the same bits alone and among others") {
  for (DType t : {DType::f32, DType::bf16}) {
    LossCase all(t, 301, 65, 7);
    for (const TestDevice& device : devices()) {
      REQUIRE(run_on(*device.device, cross_entropy, all.args(1)) == "");
      for (int64_t row : {0, 1, 2, 227, 228, 300}) {
        GuardedTensor losses(DType::f32, {1}), dlogits(t, {1, 72});
        const CrossEntropyArgs one = {
            rows<const void>(all.logits, row, 1), rows<const void>(all.targets, row, 1), losses, dlogits, 65, 1};
        REQUIRE(run_on(*device.device, cross_entropy, one) == "");
        CHECK(losses.bits(0) == all.losses.bits(row));
        for (int64_t i = 0; i < 72; ++i) REQUIRE(dlogits.bits(i) == all.dlogits.bits(row * 72 + i));
      }
    }
  }
}

TEST_CASE("cross_entropy: a target past the vocabulary is named, padding or not") {
  LossCase a(DType::f32, 9, 65, 7);
  a.targets.set(4, 65);
  CHECK(
      run_on(*open_device({.threads = 2}), cross_entropy, a.args(1)).find("targets[4] is 65, expected less than 65") !=
      std::string::npos);
}

}  // namespace
}  // namespace llmops::test
