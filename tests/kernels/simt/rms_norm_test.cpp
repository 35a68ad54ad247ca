// The cuda table on the SIMT shim: rms_norm forward and backward against the ref table, and bit for bit against the cpu
// table, whose order of sums it keeps. Four schedules of threads, blocks and streams.
//
// Bounds as in norm_test.cpp. u = 2^-24. A sum over d elements in 16 lanes is a chain of d/16 additions and 4 folds; its
// use costs a few more roundings: steps(d) = d/16 + 16, relative to the sum of magnitudes. bf16 results are rounded once
// more on both sides and may fall on neighbours: one ulp, 2^-7 of the value.
#include "support/cuda_case.h"

namespace llmops::test {
namespace {

constexpr float kEps = 1e-3f;

double steps_u(int64_t d) { return (double(d) / 16 + 16) * 0x1p-24; }
Bound bound_of(DType t, double abs, double rel) { return {abs, rel + (t == DType::bf16 ? 0x1p-7 : 0)}; }

// Squares only add up: the mean square is off by steps of itself, its root by half of that, and a few roundings follow.
Bound forward_bound(DType t, int64_t d) { return bound_of(t, 0, steps_u(d)); }
// rstd is an input of backward, at most 1.5, |x| <= 1, so |xhat| < 2: dx sums magnitudes 1 + 1 + 2 * 2, times rstd, and the
// residual: 10.
Bound dx_bound(DType t, int64_t d) { return bound_of(t, 10 * steps_u(d), 0); }
// n terms of at most 2: chains of 64 and a tree of log2(n / 64) levels.
Bound dweight_bound(int64_t n) {
  return {(2.0 * double(n) + 1) * (double(std::min<int64_t>(n, 64)) + 16) * 0x1p-24, 0};
}

struct Shape {
  int64_t n, h, d;  // h = 0: rows, not heads
};
// A part of a vector, of a tile (512), of a block of rows (16 and 64); rows that are and are not whole vectors of 16 bytes.
const std::vector<Shape> kShapes = {{0, 0, 16}, {1, 0, 1},   {3, 0, 2},   {2, 0, 15},  {5, 0, 16},  {17, 0, 24}, {4, 0, 17},
                                    {65, 0, 97}, {130, 0, 8}, {3, 0, 512}, {2, 0, 520}, {3, 0, 776}, {2, 0, 1025},
                                    {5, 3, 33}, {0, 2, 8},   {7, 4, 64},  {1, 2, 128}};

Dimensions dims_of(Shape s) { return s.h ? Dimensions{s.n, s.h, s.d} : Dimensions{s.n, s.d}; }
Dimensions row_dims_of(Shape s) { return s.h ? Dimensions{s.n, s.h} : Dimensions{s.n}; }

template <class Check>
void for_cases(const std::vector<Shape>& shapes, Check check) {
  for (DType t : {DType::f32, DType::bf16}) {
    for (const Shape s : shapes) {
      CAPTURE(info(t).name);
      CAPTURE(s.n);
      CAPTURE(s.h);
      CAPTURE(s.d);
      check(t, s);
    }
  }
}

TEST_CASE("rms_norm: every shape, dense and strided, with and without a residual, in place") {
  for_cases(kShapes, [](DType t, Shape s) {
    const Dimensions dims = dims_of(s);
    const Bound bound = forward_bound(t, s.d), rstd_bound = forward_bound(DType::f32, s.d);
    for (int64_t gap : {0, 3, 8}) {  // 8: rows that start on 16 bytes again
      CAPTURE(gap);
      GuardedTensor x = random_tensor(t, dims, 1, padded_strides(dims, gap));
      GuardedTensor delta = random_tensor(t, dims, 2, padded_strides(dims, gap));
      GuardedTensor weight = random_tensor(t, {s.d}, 3);
      GuardedTensor sum(t, dims, padded_strides(dims, gap)), out(t, dims, padded_strides(dims, 2 * gap));
      GuardedTensor rstd(DType::f32, row_dims_of(s));
      CHECK(cuda_against_others(rms_norm, {{&x}, {&weight}, {&out, bound}, {&rstd, rstd_bound}}, [](auto& t) {
              return RmsNormArgs{t[0], {}, t[1], {}, t[2], t[3], kEps};
            }) == "");
      CHECK(cuda_against_others(rms_norm, {{&x}, {&delta}, {&weight}, {&sum, Bound{0, 0}}, {&out, bound}, {&rstd, rstd_bound}},
                                [](auto& t) { return RmsNormArgs{t[0], t[1], t[2], t[3], t[4], t[5], kEps}; }) == "");
      CHECK(cuda_against_others(rms_norm, {{&x, bound}, {&weight}}, [](auto& t) {
              return RmsNormArgs{t[0], {}, t[1], {}, t[0], {}, kEps};
            }) == "");
    }
  });
}

TEST_CASE("rms_norm_backward: every shape, heads, strided rows, in place, overwriting and adding") {
  for_cases(kShapes, [](DType t, Shape s) {
    const Dimensions dims = dims_of(s);
    GuardedTensor dout = random_tensor(t, dims, 1, padded_strides(dims, 8)), x = random_tensor(t, dims, 2);
    GuardedTensor weight = random_tensor(t, {s.d}, 3), rstd = random_tensor(DType::f32, row_dims_of(s), 4, {}, 0.5, 1);
    GuardedTensor dresidual = random_tensor(t, dims, 5, padded_strides(dims, 16));
    GuardedTensor dx(t, dims, padded_strides(dims, 8)), dweight = random_tensor(DType::f32, {s.d}, 6);
    const Bound dx_ok = dx_bound(t, s.d), dweight_ok = dweight_bound(s.n * std::max<int64_t>(s.h, 1));
    for (bool accumulate : {false, true}) {
      CHECK(cuda_against_others(
                rms_norm_backward, {{&dout}, {&x}, {&weight}, {&rstd}, {&dresidual}, {&dx, dx_ok}, {&dweight, dweight_ok}},
                [&](auto& t) { return RmsNormBackwardArgs{t[0], t[1], t[2], t[3], t[4], t[5], t[6], accumulate}; }) == "");
    }
    CHECK(cuda_against_others(rms_norm_backward, {{&dout, dx_ok}, {&x}, {&weight}, {&rstd}, {&dweight, dweight_ok}},
                              [](auto& t) { return RmsNormBackwardArgs{t[0], t[1], t[2], t[3], {}, t[0], t[4], false}; }) == "");
    CHECK(cuda_against_others(
              rms_norm_backward, {{&dout}, {&x}, {&weight}, {&rstd}, {&dresidual, dx_ok}, {&dweight, dweight_ok}},
              [](auto& t) { return RmsNormBackwardArgs{t[0], t[1], t[2], t[3], t[4], t[4], t[5], false}; }) == "");
  });
}

TEST_CASE("rms_norm_backward: a tree over more blocks of rows than one thread folds") {
  // 64 * 64 rows are one fold; 3 rows more are a second level, whose last leaf is a short block.
  const int64_t n = 64 * 64 + 3, d = 2;
  GuardedTensor dout = random_tensor(DType::f32, {n, d}, 1), x = random_tensor(DType::f32, {n, d}, 2);
  GuardedTensor weight = random_tensor(DType::f32, {d}, 3), rstd = random_tensor(DType::f32, {n}, 4, {}, 0.5, 1);
  GuardedTensor dx(DType::f32, {n, d}), dweight(DType::f32, {d});
  CHECK(cuda_against_others(rms_norm_backward,
                            {{&dout}, {&x}, {&weight}, {&rstd}, {&dx, dx_bound(DType::f32, d)}, {&dweight, dweight_bound(n)}},
                            [](auto& t) { return RmsNormBackwardArgs{t[0], t[1], t[2], t[3], {}, t[4], t[5], false}; }) == "");
}

}  // namespace
}  // namespace llmops::test
