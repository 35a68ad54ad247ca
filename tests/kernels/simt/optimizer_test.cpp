// The cuda table on the SIMT shim: square_sums, clip_scale, sum and adamw against the ref table, and bit for bit against the
// cpu table. Bounds as in tests/kernels/adamw_test.cpp; u = 2^-24.
#include "support/cuda_case.h"

namespace llmops::test {
namespace {

constexpr double kUnit = 0x1p-24;
const double kInf = std::numeric_limits<double>::infinity();
// Around a vector, a block of 256 threads by 8, a block of squares.
const std::vector<int64_t> kSizes = {0, 1, 7, 8, 15, 17, 97, 2051, 4095, 4096, 4097, 10007};

TensorView from(const TensorView& t, int64_t offset) { return rows(t, offset, t.dim[0] - offset); }

TEST_CASE("cuda square_sums: every size, aligned and not; a block is finite exactly when its elements are") {
  for (int64_t n : kSizes)
    for (int64_t offset : {0, 1}) {
      if (n < offset) continue;
      CAPTURE(n);
      CAPTURE(offset);
      GuardedTensor x = random_tensor(DType::f32, {n}, 1), sums(DType::f64, {(n - offset + kSquareSumBlock - 1) / kSquareSumBlock});
      for (int64_t i = 0; i < n; ++i) x.set(i, x.at(i) * std::pow(1.7, double(i % 23)));  // an order that is not ours shows
      CHECK(cuda_against_others(square_sums, {{&x}, {&sums, Bound{0, 4096 * 0x1p-53}}},
                                [&](auto& t) { return SquareSumsArgs{from(t[0], offset), t[1]}; }) == "");
    }
  GuardedTensor x(DType::f32, {3 * kSquareSumBlock}), sums(DType::f64, {3});
  x.fill(std::numeric_limits<float>::max()), x.set(kSquareSumBlock + 77, -kInf);
  CHECK(cuda_against_others(square_sums, {{&x}, {&sums, Bound{0, 4096 * 0x1p-53}}},
                            [](auto& t) { return SquareSumsArgs{t[0], t[1]}; }) == "");
}

TEST_CASE("cuda clip_scale: norm, scale, finite flag, first bad block") {
  struct Case {
    std::vector<double> sums;
    float clip;
  };
  const double nan = std::nan("");
  std::vector<double> many(1000, 0.25);
  many[903] = nan, many[967] = kInf;
  for (const Case& c : {Case{{9, 16}, 2.5f}, {{9, 16}, 5.0f}, {{9, 16}, 0.0f}, {{9, 16}, -1.0f}, {{}, 1.0f},
                        {{1, kInf, 1, kInf}, 1.0f}, {{1, 1, nan}, 1.0f}, {many, 1.0f}, {std::vector<double>(1003, 0.1), 1.0f}}) {
    CAPTURE(c.sums.size());
    CAPTURE(c.clip);
    GuardedTensor sums = tensor_of(DType::f64, c.sums), control(DType::f32, {4});
    CHECK(cuda_against_others(clip_scale, {{&sums}, {&control, Bound{0, kUnit}}},
                              [&](auto& t) { return ClipScaleArgs{t[0], t[1], c.clip}; }) == "");
  }
}

TEST_CASE("cuda sum: every size, overwriting and adding") {
  for (int64_t n : kSizes)
    for (bool accumulate : {false, true}) {
      CAPTURE(n);
      GuardedTensor x = random_tensor(DType::f32, {n}, 1), out = tensor_of<double>(DType::f64, {0.125});
      for (int64_t i = 0; i < n; ++i) x.set(i, x.at(i) * std::pow(3.1, double(i % 29)));
      double magnitude = 1;
      for (int64_t i = 0; i < n; ++i) magnitude += std::abs(x.at(i));
      CHECK(cuda_against_others(sum, {{&x}, {&out, Bound{magnitude * double(n + 1) * 0x1p-53, 0}}},
                                [&](auto& t) { return SumArgs{t[0], t[1], accumulate}; }) == "");
    }
}

struct AdamwCase {
  GuardedTensor param, m, v, grad, half, control;
  explicit AdamwCase(int64_t n)
      : param(random_tensor(DType::f32, {n}, 1)),
        m(random_tensor(DType::f32, {n}, 2)),
        v(random_tensor(DType::f32, {n}, 3, {}, 0.5, 1)),
        grad(random_tensor(DType::f32, {n}, 4)),
        half(random_tensor(DType::bf16, {n}, 5)),
        control(tensor_of<double>(DType::f32, {1, 0.5, 1, -1})) {}
  static constexpr Bound kM = {4 * kUnit, 0}, kV = {8 * kUnit, 0}, kParam = {0.01 * 70 * kUnit + 2 * kUnit, 0};
  std::vector<CaseTensor> tensors() {
    return {{&param, kParam}, {&m, kM}, {&v, kV}, {&grad}, {&half, Bound{kParam.abs, 0x1p-7}}, {&control}};
  }
};
AdamwArgs adamw_args(const std::vector<TensorView>& t, int64_t offset, int64_t step) {
  return {from(t[0], offset), from(t[1], offset), from(t[2], offset), from(t[3], offset), from(t[4], offset), t[5],
          1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, step};
}

TEST_CASE("cuda adamw: every size, aligned and not, with and without a bf16 copy, nearest and stochastic") {
  for (int64_t n : kSizes)
    for (int64_t offset : {0, 1}) {
      if (n < offset) continue;
      CAPTURE(n);
      CAPTURE(offset);
      AdamwCase c(n);
      CHECK(cuda_against_others(adamw, c.tensors(), [&](auto& t) { return adamw_args(t, offset, 3); }) == "");
      CHECK(cuda_against_others(adamw, c.tensors(), [&](auto& t) {
              AdamwArgs args = adamw_args(t, offset, 1000);
              args.stochastic = true, args.rounding_key = -77, args.first_element = 4096;
              return args;
            }) == "");
      CHECK(cuda_against_others(adamw, {{&c.param, c.kParam}, {&c.m, c.kM}, {&c.v, c.kV}, {&c.grad}, {&c.control}}, [](auto& t) {
              return AdamwArgs{t[0], t[1], t[2], t[3], {}, t[4], 1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 2};
            }) == "");
    }
}

TEST_CASE("cuda adamw: nothing changes when the gradient is not finite") {
  AdamwCase c(4097);
  c.control.set(2, 0), c.grad.set(5, kInf);
  CHECK(cuda_against_others(adamw, {{&c.param, Bound{}}, {&c.m, Bound{}}, {&c.v, Bound{}}, {&c.grad}, {&c.half, Bound{}}, {&c.control}},
                            [](auto& t) { return adamw_args(t, 0, 3); }) == "");
}

}  // namespace
}  // namespace llmops::test
