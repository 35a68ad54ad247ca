// The cuda table on the SIMT shim: cross_entropy against the ref table, and bit for bit against the cpu table. Bounds as in
// tests/kernels/cross_entropy_test.cpp; u = 2^-24.
#include "support/cuda_case.h"

namespace llmops::test {
namespace {

constexpr double kUnit = 0x1p-24;
const double kInf = std::numeric_limits<double>::infinity();
Bound loss_bound() { return {25 * kUnit, 4 * kUnit}; }
Bound gradient_bound(DType t) { return {0x1p-149, 32 * kUnit + (t == DType::bf16 ? 0x1p-7 : 0)}; }

struct Shape {
  int64_t n, vocab, padding;
};

TEST_CASE("cuda cross_entropy: every width, padded and not, with and without a gradient, in place") {
  for (DType t : {DType::f32, DType::bf16})
    for (const Shape s : {Shape{0, 5, 0}, {3, 1, 0}, {4, 2, 1}, {3, 15, 0}, {3, 16, 0}, {5, 17, 15}, {9, 65, 0}, {7, 97, 31},
                          {6, 1021, 3}, {2, 4097, 7}}) {
      CAPTURE(info(t).name);
      CAPTURE(s.vocab);
      CAPTURE(s.padding);
      const int64_t width = s.vocab + s.padding;
      GuardedTensor logits = random_tensor(t, {s.n, width}, 1, {}, 10), targets = random_ints(DType::i32, s.n, 0, s.vocab, 2);
      GuardedTensor losses(DType::f32, {s.n}), dlogits(t, {s.n, width});
      for (int64_t r = 0; r < s.n; ++r)  // padding must not be read: a NaN there would reach every sum
        for (int64_t v = s.vocab; v < width; ++v) logits.set(r * width + v, std::nan(""));
      for (int64_t r = 2; r < s.n; r += 5) targets.set(r, r % 2 ? -1 : -100);
      CHECK(cuda_against_others(cross_entropy,
                                {{&logits}, {&targets}, {&losses, loss_bound()}, {&dlogits, gradient_bound(t)}}, [&](auto& t) {
                                  return CrossEntropyArgs{t[0], t[1], t[2], t[3], s.vocab, 0.25f};
                                }) == "");
      CHECK(cuda_against_others(cross_entropy, {{&logits}, {&targets}, {&losses, loss_bound()}}, [&](auto& t) {
              return CrossEntropyArgs{t[0], t[1], t[2], {}, s.vocab, 0.25f};
            }) == "");
      CHECK(cuda_against_others(cross_entropy, {{&logits, gradient_bound(t)}, {&targets}, {&losses, loss_bound()}}, [&](auto& t) {
              return CrossEntropyArgs{t[0], t[1], t[2], t[0], s.vocab, 0.25f};
            }) == "");
    }
}

TEST_CASE("cuda cross_entropy: a vocabulary of 50257; sure predictions; large, masked and equal logits") {
  GuardedTensor wide = random_tensor(DType::bf16, {1, 50264}, 1, {}, 10), one = tensor_of<int>(DType::i32, {50256});
  GuardedTensor wide_loss(DType::f32, {1}), dwide(DType::bf16, {1, 50264});
  CHECK(cuda_against_others(cross_entropy, {{&wide}, {&one}, {&wide_loss, loss_bound()}, {&dwide, gradient_bound(DType::bf16)}},
                            [](auto& t) { return CrossEntropyArgs{t[0], t[1], t[2], t[3], 50257, 1.0f}; }) == "");
  const int64_t v = 1000;
  GuardedTensor logits(DType::f32, {4, v}), targets = tensor_of<int>(DType::i32, {4, 17, 999, 3});
  GuardedTensor losses(DType::f32, {4}), dlogits(DType::f32, {4, v});
  for (int64_t i = 0; i < v; ++i) {
    logits.set(i, i == 4 ? 3e38 : -3e38);
    logits.set(v + i, i % 3 == 0 ? -kInf : double(i % 97));
    logits.set(2 * v + i, i == 999 ? 24 : 0);
    logits.set(3 * v + i, -0.3);
  }
  CHECK(cuda_against_others(cross_entropy,
                            {{&logits}, {&targets}, {&losses, loss_bound()}, {&dlogits, gradient_bound(DType::f32)}},
                            [](auto& t) { return CrossEntropyArgs{t[0], t[1], t[2], t[3], 1000, 1.0f}; }) == "");
}

}  // namespace
}  // namespace llmops::test
