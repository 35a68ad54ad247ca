// layer_norm, rms_norm and bias_backward against the ref table.
//
// Bounds. u = 2^-24 is half an ulp of 1. A sum over d elements in 16 lanes is a chain of d/16 additions and 4 folds,
// and its use costs a few more roundings: steps(d) = d/16 + 16 of them, relative to the sum of magnitudes. bf16 results
// are rounded once more on both sides and may fall on neighbours: one ulp, 2^-7 of the value.
#include "support/kernel_case.h"

namespace llmops::test {
namespace {

constexpr double kUnit = 0x1p-24;
constexpr float kEps = 1e-3f;

double steps(int64_t d) { return double(d) / 16 + 16; }
Bound bound_of(DType dtype, double abs, double rel = 0) { return {abs, rel + (dtype == DType::bf16 ? 0x1p-7 : 0)}; }

// Largest 1/sqrt(var + eps) of a row of d elements uniform in [-1,1], or of a sum of two such. The deviation is 0.58 or
// more in the mean; a short row may have none.
double rstd_max(int64_t d) { return d < 15 ? 1 / std::sqrt(kEps) : 4; }

struct Shape {
  int64_t n, d;
};
const std::vector<Shape> kShapes = {{0, 16}, {1, 1},    {3, 2},   {2, 15},  {5, 16},
                                    {4, 17}, {130, 31}, {65, 97}, {3, 768}, {2, 4097}};

struct LayerNormCase {
  GuardedTensor x, delta, weight, bias, sum, out, mean, rstd;
  LayerNormCase(DType t, Shape s)
      : x(random_tensor(t, {s.n, s.d}, 1)),
        delta(random_tensor(t, {s.n, s.d}, 2)),
        weight(random_tensor(t, {s.d}, 3)),
        bias(random_tensor(t, {s.d}, 4)),
        sum(t, {s.n, s.d}),
        out(t, {s.n, s.d}),
        mean(DType::f32, {s.n}),
        rstd(DType::f32, {s.n}) {}
  LayerNormArgs plain() { return {x, {}, weight, bias, {}, out, mean, rstd, kEps}; }
  LayerNormArgs with_delta() { return {x, delta, weight, bias, sum, out, mean, rstd, kEps}; }
};

TEST_CASE("layer_norm: every shape, with and without a residual, a bias and statistics") {
  for (DType t : {DType::f32, DType::bf16}) {
    for (const Shape s : kShapes) {
      CAPTURE(s.n);
      CAPTURE(s.d);
      CAPTURE(info(t).name);
      // |x| <= 2. The mean is off by 2 steps u; that and the roundings of x - mean reach out times rstd; the variance's
      // relative error is twice that over the deviation, so rstd is off by (2 R + 1) steps u of itself, and |x - mean|
      // rstd <= 4 R.
      const double r = rstd_max(s.d), e = steps(s.d) * kUnit;
      const Bound mean = {2 * e, 0}, rstd = {0, (4 * r + 1) * e},
                  out = bound_of(t, 4 * r * e + 4 * r * (2 * r + 1) * e);
      LayerNormCase a(t, s), b(t, s);
      CHECK(against_reference(layer_norm, a.plain(), {{&a.out, out}, {&a.mean, mean}, {&a.rstd, rstd}}) == "");
      CHECK(against_reference(layer_norm, b.with_delta(),
                              {{&b.out, out}, {&b.sum, {0, 0}}, {&b.mean, mean}, {&b.rstd, rstd}}) == "");
      LayerNormArgs inference = a.plain();
      inference.bias = {}, inference.mean = {}, inference.rstd = {};
      CHECK(against_reference(layer_norm, inference, {{&a.out, out}}) == "");
    }
  }
}

TEST_CASE("layer_norm: a row far from 0 keeps its variance") {
  // The mean of numbers near 1000 is off by 1001 steps u; E[x^2] - E[x]^2 would be off by 10^6 u against a variance of
  // 1/3.
  const int64_t d = 768;
  LayerNormCase a(DType::f32, {3, d});
  GuardedTensor x = random_tensor(DType::f32, {3, d}, 5, {}, 1, 1000);
  LayerNormArgs args = a.plain();
  args.x = x;
  const double e = 1001 * steps(d) * kUnit;  // 0.004
  CHECK(against_reference(layer_norm, args, {{&a.out, {4 * e, 0}}, {&a.mean, {e, 0}}, {&a.rstd, {0, e}}}) == "");
}

TEST_CASE("layer_norm: a row has the same bits alone and among others") {
  for (DType t : {DType::f32, DType::bf16}) {
    const Shape s = {70, 97};
    LayerNormCase all(t, s), one(t, {1, s.d});
    for (const TestDevice& device : devices()) {
      REQUIRE(run_on(*device.device, layer_norm, all.with_delta()) == "");
      for (int64_t row : {0, 1, 63, 64, 69}) {
        LayerNormArgs args = one.with_delta();
        args.x = rows<const void>(all.x, row, 1), args.delta = rows<const void>(all.delta, row, 1);
        REQUIRE(run_on(*device.device, layer_norm, args) == "");
        for (int64_t i = 0; i < s.d; ++i) REQUIRE(one.out.bits(i) == all.out.bits(row * s.d + i));
        CHECK(one.rstd.bits(0) == all.rstd.bits(row));
      }
    }
  }
}

struct BackwardCase {
  GuardedTensor dout, x, weight, mean, rstd, dresidual, dx, dweight, dbias;
  BackwardCase(DType t, Shape s)
      : dout(random_tensor(t, {s.n, s.d}, 1)),
        x(random_tensor(t, {s.n, s.d}, 2)),
        weight(random_tensor(t, {s.d}, 3)),
        mean(random_tensor(DType::f32, {s.n}, 4, {}, 0.2)),
        rstd(random_tensor(DType::f32, {s.n}, 5, {}, 0.5, 1)),
        dresidual(random_tensor(t, {s.n, s.d}, 6)),
        dx(t, {s.n, s.d}),
        dweight(random_tensor(DType::f32, {s.d}, 7)),
        dbias(random_tensor(DType::f32, {s.d}, 8)) {}
  LayerNormBackwardArgs args(bool accumulate) {
    return {dout, x, weight, mean, rstd, dresidual, dx, dweight, dbias, accumulate};
  }
};

// mean and rstd are inputs: |xhat| <= 1.2 * 1.5 < 2. dx sums magnitudes 1 + 1 + 2 * 2 times rstd <= 1.5, and the
// residual: 10.
Bound dx_bound(DType t, int64_t d) { return bound_of(t, 10 * steps(d) * kUnit); }
// n terms of at most 2: chains of 64 and a tree of log2(n / 64).
Bound sum_bound(int64_t n) { return {(2.0 * double(n) + 1) * (double(std::min<int64_t>(n, 64)) + 10) * kUnit, 0}; }

TEST_CASE("layer_norm_backward: every shape; overwriting and adding; in place over dout and over dresidual") {
  for (DType t : {DType::f32, DType::bf16}) {
    for (const Shape s : kShapes) {
      CAPTURE(s.n);
      CAPTURE(s.d);
      CAPTURE(info(t).name);
      const Bound dx = dx_bound(t, s.d), sum = sum_bound(s.n);
      for (bool accumulate : {false, true}) {
        BackwardCase a(t, s);
        CHECK(against_reference(layer_norm_backward, a.args(accumulate),
                                {{&a.dx, dx}, {&a.dweight, sum}, {&a.dbias, sum}}) == "");
      }
      BackwardCase b(t, s);
      LayerNormBackwardArgs over_dout = b.args(false);
      over_dout.dx = b.dout, over_dout.dresidual = {}, over_dout.dbias = {};
      CHECK(against_reference(layer_norm_backward, over_dout, {{&b.dout, dx}, {&b.dweight, sum}}) == "");
      BackwardCase c(t, s);
      LayerNormBackwardArgs over_residual = c.args(false);
      over_residual.dx = c.dresidual;
      CHECK(against_reference(layer_norm_backward, over_residual, {{&c.dresidual, dx}, {&c.dweight, sum}}) == "");
    }
  }
}

struct RmsNormCase {
  GuardedTensor x, delta, weight, sum, out, rstd;
  // Rows and heads with gaps.
  RmsNormCase(DType t, const Dimensions& dims, const Dimensions& stat_dims, int64_t gap)
      : x(random_tensor(t, dims, 1, padded_strides(dims, gap))),
        delta(random_tensor(t, dims, 2, padded_strides(dims, gap + 1))),
        weight(random_tensor(t, {dims.back()}, 3)),
        sum(t, dims, padded_strides(dims, gap)),
        out(t, dims, padded_strides(dims, gap + 2)),
        rstd(DType::f32, stat_dims) {}
  RmsNormArgs plain() { return {x, {}, weight, {}, out, rstd, kEps}; }
  RmsNormArgs with_delta() { return {x, delta, weight, sum, out, rstd, kEps}; }
};

// Squares only add up: the mean square is off by steps u of itself, its root by half, and a few roundings follow.
Bound rms_bound(DType t, int64_t d) { return bound_of(t, 0, steps(d) * kUnit); }

TEST_CASE("rms_norm: every shape, strided rows, with and without a residual, in place") {
  for (DType t : {DType::f32, DType::bf16}) {
    for (const Shape s : kShapes) {
      for (int64_t gap : {0, 3}) {
        CAPTURE(s.n);
        CAPTURE(s.d);
        CAPTURE(info(t).name);
        CAPTURE(gap);
        const Bound out = rms_bound(t, s.d), rstd = rms_bound(DType::f32, s.d);
        RmsNormCase a(t, {s.n, s.d}, {s.n}, gap);
        CHECK(against_reference(rms_norm, a.plain(), {{&a.out, out}, {&a.rstd, rstd}}) == "");
        CHECK(against_reference(rms_norm, a.with_delta(), {{&a.out, out}, {&a.sum, {0, 0}}, {&a.rstd, rstd}}) == "");
        RmsNormArgs in_place = a.plain();
        in_place.out = a.x, in_place.rstd = {};
        CHECK(against_reference(rms_norm, in_place, {{&a.x, out}}) == "");
      }
    }
  }
}

TEST_CASE("rms_norm: a norm per head, as a head alone gives it") {
  const int64_t n = 5, h = 3, d = 33;
  for (DType t : {DType::f32, DType::bf16}) {
    RmsNormCase a(t, {n, h, d}, {n, h}, 4);
    const Bound out = rms_bound(t, d), rstd = rms_bound(DType::f32, d);
    CHECK(against_reference(rms_norm, a.plain(), {{&a.out, out}, {&a.rstd, rstd}}) == "");
    RmsNormCase one(t, {1, d}, {1}, 0);
    for (int64_t r = 0; r < n * h; ++r) {
      for (int64_t i = 0; i < d; ++i) one.x.set(i, a.x.at(r * d + i));
      REQUIRE(run_on(*devices().front().device, rms_norm, one.plain()) == "");
      for (int64_t i = 0; i < d; ++i) REQUIRE(one.out.bits(i) == a.out.bits(r * d + i));
    }
  }
}

TEST_CASE("rms_norm_backward: every shape, heads, strided rows, in place, overwriting and adding") {
  for (DType t : {DType::f32, DType::bf16}) {
    for (const Shape s : kShapes) {
      for (int64_t heads : {0, 2}) {
        CAPTURE(s.n);
        CAPTURE(s.d);
        CAPTURE(info(t).name);
        CAPTURE(heads);
        const Dimensions dims = heads ? Dimensions{s.n, heads, s.d} : Dimensions{s.n, s.d};
        const Dimensions stat_dims = heads ? Dimensions{s.n, heads} : Dimensions{s.n};
        GuardedTensor dout = random_tensor(t, dims, 1, padded_strides(dims, 3)), x = random_tensor(t, dims, 2);
        GuardedTensor weight = random_tensor(t, {s.d}, 3), rstd = random_tensor(DType::f32, stat_dims, 4, {}, 0.5, 1);
        GuardedTensor dresidual = random_tensor(t, dims, 5, padded_strides(dims, 1));
        GuardedTensor dx(t, dims, padded_strides(dims, 2)), dweight = random_tensor(DType::f32, {s.d}, 6);
        const Bound dx_ok = dx_bound(t, s.d), sum = sum_bound(s.n * std::max<int64_t>(heads, 1));
        for (bool accumulate : {false, true}) {
          const RmsNormBackwardArgs args = {dout, x, weight, rstd, dresidual, dx, dweight, accumulate};
          CHECK(against_reference(rms_norm_backward, args, {{&dx, dx_ok}, {&dweight, sum}}) == "");
        }
        const RmsNormBackwardArgs over_dout = {dout, x, weight, rstd, {}, dout, dweight, false};
        CHECK(against_reference(rms_norm_backward, over_dout, {{&dout, dx_ok}, {&dweight, sum}}) == "");
        const RmsNormBackwardArgs over_residual = {x, x, weight, rstd, dresidual, dresidual, dweight, false};
        CHECK(against_reference(rms_norm_backward, over_residual, {{&dresidual, dx_ok}, {&dweight, sum}}) == "");
      }
    }
  }
}

TEST_CASE("bias_backward: every shape, overwriting and adding") {
  for (DType t : {DType::f32, DType::bf16}) {
    for (const Shape s : {Shape{0, 5}, {1, 1}, {63, 15}, {64, 16}, {65, 17}, {129, 97}, {300, 1025}, {2, 4097}}) {
      for (bool accumulate : {false, true}) {
        CAPTURE(s.n);
        CAPTURE(s.d);
        CAPTURE(info(t).name);
        CAPTURE(accumulate);
        GuardedTensor dout = random_tensor(t, {s.n, s.d}, 1);
        GuardedTensor dbias = random_tensor(DType::f32, {s.d}, 2);
        const BiasBackwardArgs args = {dout, dbias, accumulate};
        CHECK(against_reference(bias_backward, args, {{&dbias, sum_bound(s.n)}}) == "");
      }
    }
  }
}

TEST_CASE("bias_backward: blocks of 64 rows, then a balanced tree") {
  // f32 sums in the contract's order, written out: 5 leaves are ((0+1)+(2+3))+4.
  const int64_t m = 4 * 64 + 10;
  GuardedTensor dout = random_tensor(DType::f32, {m, 1}, 1);
  float leaf[5] = {};
  for (int64_t r = 0; r < m; ++r) leaf[r / 64] += float(dout.at(r));
  const float want = ((leaf[0] + leaf[1]) + (leaf[2] + leaf[3])) + leaf[4];
  for (const TestDevice& device : devices()) {
    GuardedTensor dbias(DType::f32, {1});
    REQUIRE(run_on(*device.device, bias_backward, BiasBackwardArgs{dout, dbias, false}) == "");
    CHECK(float(dbias.at(0)) == want);
  }
}

}  // namespace
}  // namespace llmops::test
