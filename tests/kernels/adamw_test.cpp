// square_sums, clip_scale and adamw against the ref table. u = 2^-24.
#include "support/kernel_case.h"

namespace llmops::test {
namespace {

constexpr double kUnit = 0x1p-24;
const double kInf = std::numeric_limits<double>::infinity();
const std::vector<int64_t> kSizes = {0, 1, 15, 16, 17, 97, 4095, 4096, 4097, 10007};

TEST_CASE("square_sums: every size; a chain of 256 f64 additions") {
  for (int64_t n : kSizes) {
    CAPTURE(n);
    GuardedTensor x = random_tensor(DType::f32, {n}, 1),
                  sums(DType::f64, {(n + kSquareSumBlock - 1) / kSquareSumBlock});
    CHECK(against_reference(square_sums, SquareSumsArgs{x, sums}, {{&sums, {0, 4096 * 0x1p-53}}}) == "");
  }
}

TEST_CASE("square_sums: 16 lanes ascending, folded 8, 4, 2, 1") {
  // Squares of one magnitude would add up in f64 with hardly a rounding, in any order; one sum may be equal by chance.
  const int64_t blocks = 16;
  GuardedTensor x = random_tensor(DType::f32, {blocks * kSquareSumBlock}, 1), sums(DType::f64, {blocks});
  for (int64_t i = 0; i < x.elems(); ++i) x.set(i, x.at(i) * std::pow(1.7, double(i % 23)));
  std::vector<double> want;
  for (int64_t block = 0; block < blocks; ++block) {
    double lane[16] = {};
    for (int64_t i = block * kSquareSumBlock; i < (block + 1) * kSquareSumBlock; ++i) lane[i % 16] += x.at(i) * x.at(i);
    for (int width = 8; width > 0; width /= 2)
      for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
    want.push_back(lane[0]);
  }
  for (const TestDevice& device : devices()) {
    REQUIRE(run_on(*device.device, square_sums, SquareSumsArgs{x, sums}) == "");
    for (int64_t block = 0; block < blocks; ++block) CHECK(sums.at(block) == want[size_t(block)]);
  }
}

TEST_CASE("square_sums: a block is finite exactly when its elements are") {
  GuardedTensor x(DType::f32, {3 * kSquareSumBlock}), sums(DType::f64, {3});
  x.fill(std::numeric_limits<float>::max());  // the largest squares there are: still finite in f64
  for (double bad : {kInf, -kInf, std::nan("")}) {
    x.set(kSquareSumBlock + 77, bad);
    REQUIRE(run_on(*devices().front().device, square_sums, SquareSumsArgs{x, sums}) == "");
    CHECK(std::isfinite(sums.at(0)));
    CHECK_FALSE(std::isfinite(sums.at(1)));
    CHECK(std::isfinite(sums.at(2)));
  }
}

std::vector<double> control_of(const std::vector<double>& sums, float clip) {
  GuardedTensor in = tensor_of(DType::f64, sums), control(DType::f32, {4});
  const std::string finding = against_reference(clip_scale, ClipScaleArgs{in, control, clip}, {{&control, {0, 0}}});
  CHECK(finding == "");
  return {control.at(0), control.at(1), control.at(2), control.at(3)};
}

TEST_CASE("clip_scale: norm, scale, finite flag, first bad block") {
  CHECK(control_of({9, 16}, 2.5f) == std::vector<double>{5, 0.5, 1, -1});
  CHECK(control_of({9, 16}, 5.0f) == std::vector<double>{5, 1, 1, -1});  // not above the limit
  CHECK(control_of({9, 16}, 0.0f) == std::vector<double>{5, 1, 1, -1});  // no clipping
  CHECK(control_of({9, 16}, -1.0f) == std::vector<double>{5, 1, 1, -1});
  CHECK(control_of({}, 1.0f) == std::vector<double>{0, 1, 1, -1});
  CHECK(control_of({1, kInf, 1, kInf}, 1.0f) == std::vector<double>{kInf, 0, 0, 1});
  const std::vector<double> nan = control_of({1, 1, std::nan("")}, 1.0f);
  CHECK(std::isnan(nan[0]));
  CHECK(nan[2] == 0);
  CHECK(nan[3] == 2);
}

struct AdamwCase {
  GuardedTensor param, m, v, grad, half, control;
  explicit AdamwCase(int64_t n)
      : param(random_tensor(DType::f32, {n}, 1)),
        m(random_tensor(DType::f32, {n}, 2)),
        v(random_tensor(DType::f32, {n}, 3, {}, 0.5, 1)),
        grad(random_tensor(DType::f32, {n}, 4)),
        half(DType::bf16, {n}),
        control(tensor_of<double>(DType::f32, {1, 0.5, 1, -1})) {}
  AdamwArgs args(int64_t step, bool with_half) {
    return {param, m,     v,    grad, with_half ? TensorView(half) : TensorView{}, control, 1e-2f, 0.9f,
            0.95f, 1e-8f, 0.1f, step};
  }
};

TEST_CASE("adamw: every size, early and late steps, with and without a bf16 copy") {
  // |m|, |g| <= 1, v in [0.5, 1.5]: m is off by 4u and v by 5u of 1.5. At step 1, m / 0.1 and sqrt(v / 0.05) >= 3.1: an
  // update is at most 3.3 and off by 20u of that; times lr = 0.01 it vanishes beside the last rounding of a parameter
  // of about 1.
  const Bound m = {4 * kUnit, 0}, v = {8 * kUnit, 0}, param = {0.01 * 70 * kUnit + 2 * kUnit, 0};
  for (int64_t n : kSizes) {
    for (int64_t step : {1, 2, 1000}) {
      CAPTURE(n);
      CAPTURE(step);
      AdamwCase a(n), b(n);
      CHECK(against_reference(adamw, a.args(step, false), {{&a.param, param}, {&a.m, m}, {&a.v, v}}) == "");
      const Bound half = {param.abs, 0x1p-7};
      CHECK(against_reference(adamw, b.args(step, true), {{&b.param, param}, {&b.m, m}, {&b.v, v}, {&b.half, half}}) ==
            "");
      for (int64_t i = 0; i < n; ++i) REQUIRE(b.half.bits(i) == to_bf16(float(b.param.at(i))).bits);
    }
  }
}

TEST_CASE("adamw: the first step by hand") {
  // m / (1 - b1) = g and v / (1 - b2) = g^2: the update is g / (|g| + eps) + wd * param, whatever the betas.
  GuardedTensor param = tensor_of<double>(DType::f32, {1, 2, -4}),
                grad = tensor_of<double>(DType::f32, {0.5, -8, 1e-3});
  GuardedTensor m(DType::f32, {3}), v(DType::f32, {3}), control = tensor_of<double>(DType::f32, {0, 1, 1, -1});
  const std::vector<double> want = {1 - 0.125 * (1 + 0.5 * 1), 2 - 0.125 * (-1 + 0.5 * 2), -4 - 0.125 * (1 + 0.5 * -4)};
  for (const TestDevice& device : devices()) {
    AdamwArgs args = {param, m, v, grad, {}, control, 0.125f, 0.9f, 0.999f, 1e-12f, 0.5f, 1};
    m.fill(0), v.fill(0);
    const std::vector<uint8_t> start = param.contents();
    REQUIRE(run_on(*device.device, adamw, args) == "");
    for (int64_t i = 0; i < 3; ++i) CHECK(param.at(i) == doctest::Approx(want[size_t(i)]).epsilon(1e-6));
    param.restore(start);
  }
}

TEST_CASE("adamw: nothing changes when the gradient is not finite") {
  AdamwCase a(4097);
  a.half.fill(0);
  a.control.set(2, 0);
  a.grad.set(5, kInf);
  const auto param = a.param.contents(), m = a.m.contents(), v = a.v.contents(), half = a.half.contents();
  for (const TestDevice& device : devices()) {
    REQUIRE(run_on(*device.device, adamw, a.args(3, true)) == "");
    CHECK(a.param.contents() == param);
    CHECK(a.m.contents() == m);
    CHECK(a.v.contents() == v);
    CHECK(a.half.contents() == half);
  }
}

TEST_CASE("adamw: a range has the same bits in pieces") {
  AdamwCase whole(10007), parts(10007);
  Device& device = *devices().front().device;
  REQUIRE(run_on(device, adamw, whole.args(7, false)) == "");
  for (int64_t begin = 0; begin < 10007; begin += 1009) {
    const int64_t count = std::min<int64_t>(1009, 10007 - begin);
    AdamwArgs args = parts.args(7, false);
    for (TensorView* t : {&args.param, &args.m, &args.v}) *t = rows(*t, begin, count);
    args.grad = rows(args.grad, begin, count);
    REQUIRE(run_on(device, adamw, args) == "");
  }
  CHECK(difference_bits(parts.param, whole.param) == "");
  CHECK(difference_bits(parts.v, whole.v) == "");
}

// Every element of a range of n is `x`, and stays: lr is 0.
struct Rounding {
  GuardedTensor param, m, v, grad, half, control;
  Rounding(int64_t n, float x)
      : param(DType::f32, {n}), m(DType::f32, {n}), v(DType::f32, {n}), grad(DType::f32, {n}), half(DType::bf16, {n}),
        control(tensor_of<double>(DType::f32, {1, 1, 1, -1})) {
    param.fill(double(x)), m.fill(0), v.fill(0), grad.fill(0);
  }
  AdamwArgs args(int64_t key, int64_t first) {
    return {param, m, v, grad, half, control, 0, 0.9f, 0.99f, 1e-8f, 0, 5, true, key, first};
  }
};

TEST_CASE("adamw: stochastic rounding goes up as often as the cut part says, and is exact where nothing is cut") {
  const int64_t n = 40'000;
  const float low = 1.0f, high = 1.0078125f;  // neighbours in bf16
  for (double part : {0.0, 0.1, 0.5, 0.97}) {
    CAPTURE(part);
    Rounding r(n, float(double(low) + part * double(high - low)));
    CHECK(against_reference(adamw, r.args(11, 0), {{&r.half, {0, 0}}}) == "");
    int64_t up = 0;
    for (int64_t i = 0; i < n; ++i) {
      REQUIRE((float(r.half.at(i)) == low || float(r.half.at(i)) == high));
      up += float(r.half.at(i)) == high;
    }
    CHECK(std::abs(double(up) - part * double(n)) <= 4 * std::sqrt(double(n) * part * (1 - part)));  // 4 sigma
  }
  for (float special : {0.0f, -0.0f, 3.3895314e38f}) {  // the last: bf16's largest
    Rounding r(64, special);
    CHECK(against_reference(adamw, r.args(11, 0), {{&r.half, {0, 0}}}) == "");
    for (int64_t i = 0; i < 64; ++i) REQUIRE(r.half.bits(i) == to_bf16(special).bits);
  }
}

TEST_CASE("adamw: an element is rounded the same in any range, and otherwise in another step or under another key") {
  Rounding whole(1000, 1.003f), part(1000 - 104, 1.003f), other(1000, 1.003f);
  Device& device = *devices().front().device;
  REQUIRE(run_on(device, adamw, whole.args(11, 64)) == "");
  REQUIRE(run_on(device, adamw, part.args(11, 64 + 104)) == "");
  for (int64_t i = 104; i < 1000; ++i) REQUIRE(part.half.bits(i - 104) == whole.half.bits(i));
  REQUIRE(run_on(device, adamw, other.args(12, 64)) == "");
  CHECK(difference_bits(other.half, whole.half) != "");
  AdamwArgs next = other.args(11, 64);
  ++next.step;
  REQUIRE(run_on(device, adamw, next) == "");
  CHECK(difference_bits(other.half, whole.half) != "");
}

}  // namespace
}  // namespace llmops::test
