// swiglu, gelu, add and cast against the ref table. u = 2^-24; bf16 results may fall on neighbours: 2^-7 of the value.
#include "support/kernel_case.h"

namespace llmops::test {
namespace {

constexpr double kUnit = 0x1p-24;
const std::vector<int64_t> kSizes = {0, 1, 15, 16, 17, 97, 4097, 40009};  // the last is three tasks

Bound bound_of(DType dtype, double abs, double rel = 0) { return {abs, rel + (dtype == DType::bf16 ? 0x1p-7 : 0)}; }

TEST_CASE("swiglu: every width, in f32 and bf16") {
  for (DType t : {DType::f32, DType::bf16}) {
    for (int64_t f : kSizes) {
      CAPTURE(f);
      CAPTURE(info(t).name);
      GuardedTensor x = random_tensor(t, {3, 2 * f}, 1, {}, 8), out(t, {3, f});
      // exp 2.2u, then 1 +, a division, a product: 6u of the result.
      CHECK(against_reference(swiglu, SwigluArgs{x, out}, {{&out, bound_of(t, 0, 6 * kUnit)}}) == "");
    }
  }
}

TEST_CASE("swiglu_backward: every width; also over x") {
  for (DType t : {DType::f32, DType::bf16}) {
    for (int64_t f : kSizes) {
      CAPTURE(f);
      CAPTURE(info(t).name);
      GuardedTensor x = random_tensor(t, {3, 2 * f}, 1, {}, 8), dout = random_tensor(t, {3, f}, 2), dx(t, {3, 2 * f});
      // |dout * up| <= 8 times s + g s (1 - s), two terms of at most 1 and 0.3 with 10u each.
      const Bound bound = bound_of(t, 8 * 1.3 * 10 * kUnit);
      CHECK(against_reference(swiglu_backward, SwigluBackwardArgs{x, dout, dx}, {{&dx, bound}}) == "");
      CHECK(against_reference(swiglu_backward, SwigluBackwardArgs{x, dout, x}, {{&x, bound}}) == "");
    }
  }
}

TEST_CASE("swiglu: gates at the ends of exp") {
  GuardedTensor x(DType::f32, {6, 2}), dout(DType::f32, {6, 1}), out(DType::f32, {6, 1}), dx(DType::f32, {6, 2});
  const std::vector<double> gates = {-1000, -100, -88, 88, 100, 1000};
  for (size_t i = 0; i < gates.size(); ++i) x.set(2 * int64_t(i), gates[i]), x.set(2 * int64_t(i) + 1, 1);
  dout.fill(1);
  CHECK(against_reference(swiglu, SwigluArgs{x, out}, {{&out, {1e-34, 6 * kUnit}}}) == "");
  CHECK(against_reference(swiglu_backward, SwigluBackwardArgs{x, dout, dx}, {{&dx, {1e-34, 20 * kUnit}}}) == "");
}

TEST_CASE("gelu and its gradient: both forms, every size") {
  for (DType t : {DType::f32, DType::bf16}) {
    for (Activation act : {Activation::gelu_tanh, Activation::gelu_erf}) {
      for (int64_t n : kSizes) {
        CAPTURE(n);
        CAPTURE(info(t).name);
        CAPTURE(int(act));
        GuardedTensor x = random_tensor(t, {n}, 1, {}, 6), dout = random_tensor(t, {n}, 2), out(t, {n}), dx(t, {n});
        // tanh is off by 4u, erf by 2e-7 = 3.4u (kernels/math.h), their arguments by 3u: 0.5 |x| 8u and a rounding.
        CHECK(against_reference(gelu, GeluArgs{x, out, act}, {{&out, bound_of(t, 6 * 8 * kUnit)}}) == "");
        // tanh form: 0.5 |x| (1 - t^2) inner'(x), inner' <= 4.6: 14 times 1 - t^2, which is off by 8u. erf form: less.
        const Bound bound = bound_of(t, 14 * 10 * kUnit);
        CHECK(against_reference(gelu_backward, GeluBackwardArgs{x, dout, dx, act}, {{&dx, bound}}) == "");
      }
    }
  }
}

TEST_CASE("gelu: large and tiny values") {
  GuardedTensor x = tensor_of<double>(DType::f32, {-1e30, -1e4, -40, -1e-30, 0, 1e-30, 40, 1e4, 1e30});
  GuardedTensor out(DType::f32, {9}), dx(DType::f32, {9}), dout(DType::f32, {9});
  dout.fill(1);
  for (Activation act : {Activation::gelu_tanh, Activation::gelu_erf}) {
    CHECK(against_reference(gelu, GeluArgs{x, out, act}, {{&out, {1e-30 * kUnit, 4 * kUnit}}}) == "");
    CHECK(against_reference(gelu_backward, GeluBackwardArgs{x, dout, dx, act}, {{&dx, {4 * kUnit, 0}}}) == "");
  }
}

TEST_CASE("add: exact, every size, over either operand") {
  for (DType t : {DType::f32, DType::bf16}) {
    for (int64_t n : kSizes) {
      CAPTURE(n);
      CAPTURE(info(t).name);
      GuardedTensor a = random_tensor(t, {n}, 1), b = random_tensor(t, {n}, 2), out(t, {n});
      CHECK(against_reference(add, AddArgs{a, b, out}, {{&out, {0, 0}}}) == "");
      CHECK(against_reference(add, AddArgs{a, b, a}, {{&a, {0, 0}}}) == "");
      CHECK(against_reference(add, AddArgs{a, b, b}, {{&b, {0, 0}}}) == "");
    }
  }
}

TEST_CASE("cast: exact, every size, both directions") {
  for (int64_t n : kSizes) {
    CAPTURE(n);
    GuardedTensor wide = random_tensor(DType::f32, {n}, 1, {}, 1e3), half(DType::bf16, {n}), back(DType::f32, {n});
    CHECK(against_reference(cast, CastArgs{wide, half}, {{&half, {0, 0}}}) == "");
    CHECK(against_reference(cast, CastArgs{half, back}, {{&back, {0, 0}}}) == "");
  }
}

TEST_CASE("cast: ties go to even, the rest of the special values survive") {
  // f32 bits and the bf16 bits they become.
  const std::vector<std::pair<uint32_t, uint16_t>> cases = {
      {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82},  // halfway: to the even neighbour, down and up
      {0x3f808001, 0x3f81}, {0x3f807fff, 0x3f80},  // just past and just before
      {0x7f7fffff, 0x7f80}, {0xff7fffff, 0xff80},  // the largest floats round to infinity
      {0x7f800000, 0x7f80}, {0x80000000, 0x8000}, {0x00000001, 0x0000}, {0x00018000, 0x0002},
      {0x7fc00000, 0x7fc0}, {0x7f800001, 0x7fc0}, {0xffffffff, 0xffff},  // NaN stays NaN, also when its top bits are 0
  };
  const int64_t n = int64_t(cases.size());
  GuardedTensor wide(DType::f32, {n}), half(DType::bf16, {n});
  for (int64_t i = 0; i < n; ++i) static_cast<uint32_t*>(wide.view().data)[i] = cases[size_t(i)].first;
  for (const TestDevice& device : devices()) {
    REQUIRE(run_on(*device.device, cast, CastArgs{wide, half}) == "");
    for (int64_t i = 0; i < n; ++i) CHECK(half.bits(i) == cases[size_t(i)].second);
  }
}

}  // namespace
}  // namespace llmops::test
