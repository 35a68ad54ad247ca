// The cuda table on the SIMT shim: layer_norm, its gradient, and the gradient of a bias against the ref table, and bit for
// bit against the cpu table, whose order of sums they keep. Bounds as in tests/kernels/norm_test.cpp; u = 2^-24.
#include "support/cuda_case.h"

namespace llmops::test {
namespace {

constexpr double kUnit = 0x1p-24;
constexpr float kEps = 1e-3f;

// A sum over d elements in 16 lanes, and its uses: relative to the sum of magnitudes.
double steps(int64_t d) { return double(d) / 16 + 16; }
Bound bound_of(DType t, double abs, double rel = 0) { return {abs, rel + (t == DType::bf16 ? 0x1p-7 : 0)}; }

// x in [-2,2], eps = 1e-3: |x - mean| <= 4 and off by 2 steps u, rstd <= 32 and off by that in the cube for a row that
// varies little (d = 1 has variance 0 on both sides).
Bound forward_bound(DType t, int64_t d) { return bound_of(t, 200 * steps(d) * kUnit); }
Bound mean_bound(int64_t d) { return {2 * steps(d) * kUnit, 0}; }
Bound rstd_bound(int64_t d) { return {0, 20 * steps(d) * kUnit}; }
// |xhat| <= 1.2 * 1.5 < 2: dx sums magnitudes 1 + 1 + 2 * 2 times rstd <= 1.5, and the residual.
Bound dx_bound(DType t, int64_t d) { return bound_of(t, 10 * steps(d) * kUnit); }
// n terms of at most 2: chains of 64 and a tree.
Bound sum_bound(int64_t n) { return {(2.0 * double(n) + 1) * (double(std::min<int64_t>(n, 64)) + 16) * kUnit, 0}; }

struct Shape {
  int64_t n, d;
};
// A part of a vector, of a tile (512, and 256 where two sums share it), of a block of rows (16 and 64), of the columns of a
// block (128 threads); rows that are and are not whole vectors of 16 bytes.
const std::vector<Shape> kShapes = {{0, 16}, {1, 1},   {3, 2},   {2, 15},  {5, 16}, {17, 24}, {4, 17},
                                    {65, 97}, {130, 8}, {3, 512}, {2, 520}, {3, 776}, {2, 1025}, {2, 1032}};

template <class Check>
void for_shapes(Check check) {
  for (DType t : {DType::f32, DType::bf16})
    for (const Shape s : kShapes) {
      CAPTURE(info(t).name);
      CAPTURE(s.n);
      CAPTURE(s.d);
      check(t, s);
    }
}

TEST_CASE("cuda layer_norm: every shape, with and without a residual, bias and statistics") {
  for_shapes([](DType t, Shape s) {
    GuardedTensor x = random_tensor(t, {s.n, s.d}, 1), delta = random_tensor(t, {s.n, s.d}, 2);
    GuardedTensor weight = random_tensor(t, {s.d}, 3), bias = random_tensor(t, {s.d}, 4);
    GuardedTensor sum(t, {s.n, s.d}), out(t, {s.n, s.d}), mean(DType::f32, {s.n}), rstd(DType::f32, {s.n});
    const Bound out_ok = forward_bound(t, s.d);
    const CaseTensor mean_case = {&mean, mean_bound(s.d)}, rstd_case = {&rstd, rstd_bound(s.d)};
    CHECK(cuda_against_others(layer_norm, {{&x}, {&delta}, {&weight}, {&bias}, {&sum, Bound{}}, {&out, out_ok}, mean_case, rstd_case},
                              [](auto& t) { return LayerNormArgs{t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], kEps}; }) == "");
    CHECK(cuda_against_others(layer_norm, {{&x}, {&weight}, {&out, out_ok}}, [](auto& t) {
            return LayerNormArgs{t[0], {}, t[1], {}, {}, t[2], {}, {}, kEps};
          }) == "");
  });
}

TEST_CASE("cuda layer_norm: a row far from 0 keeps its variance") {
  const int64_t d = 768;
  GuardedTensor x = random_tensor(DType::f32, {3, d}, 1, {}, 1, 1000), weight = random_tensor(DType::f32, {d}, 2);
  GuardedTensor out(DType::f32, {3, d});
  // The mean of numbers near 1000 is off by 1001 steps u, against a variance of 1/3.
  CHECK(cuda_against_others(layer_norm, {{&x}, {&weight}, {&out, Bound{4 * 1001 * steps(d) * kUnit, 0}}}, [](auto& t) {
          return LayerNormArgs{t[0], {}, t[1], {}, {}, t[2], {}, {}, kEps};
        }) == "");
}

TEST_CASE("cuda layer_norm_backward: every shape; overwriting and adding; in place over dout and over dresidual") {
  for_shapes([](DType t, Shape s) {
    GuardedTensor dout = random_tensor(t, {s.n, s.d}, 1), x = random_tensor(t, {s.n, s.d}, 2);
    GuardedTensor weight = random_tensor(t, {s.d}, 3), mean = random_tensor(DType::f32, {s.n}, 4, {}, 0.2);
    GuardedTensor rstd = random_tensor(DType::f32, {s.n}, 5, {}, 0.5, 1), dresidual = random_tensor(t, {s.n, s.d}, 6);
    GuardedTensor dx(t, {s.n, s.d}), dweight = random_tensor(DType::f32, {s.d}, 7), dbias = random_tensor(DType::f32, {s.d}, 8);
    const Bound dx_ok = dx_bound(t, s.d), sum_ok = sum_bound(s.n);
    const CaseTensor dweight_case = {&dweight, sum_ok}, dbias_case = {&dbias, sum_ok};
    for (bool accumulate : {false, true})
      CHECK(cuda_against_others(
                layer_norm_backward,
                {{&dout}, {&x}, {&weight}, {&mean}, {&rstd}, {&dresidual}, {&dx, dx_ok}, dweight_case, dbias_case},
                [&](auto& t) {
                  return LayerNormBackwardArgs{t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], accumulate};
                }) == "");
    CHECK(cuda_against_others(layer_norm_backward, {{&dout, dx_ok}, {&x}, {&weight}, {&mean}, {&rstd}, dweight_case}, [](auto& t) {
            return LayerNormBackwardArgs{t[0], t[1], t[2], t[3], t[4], {}, t[0], t[5], {}, false};
          }) == "");
    CHECK(cuda_against_others(
              layer_norm_backward,
              {{&dout}, {&x}, {&weight}, {&mean}, {&rstd}, {&dresidual, dx_ok}, dweight_case, dbias_case}, [](auto& t) {
                return LayerNormBackwardArgs{t[0], t[1], t[2], t[3], t[4], t[5], t[5], t[6], t[7], false};
              }) == "");
  });
}

TEST_CASE("cuda bias_backward: every shape, and a tree over more blocks of rows than one thread folds") {
  std::vector<Shape> shapes = kShapes;
  shapes.push_back({3, 0});
  shapes.push_back({64 * 64 + 3, 2});
  for (DType t : {DType::f32, DType::bf16})
    for (const Shape s : shapes)
      for (bool accumulate : {false, true}) {
        CAPTURE(info(t).name);
        CAPTURE(s.n);
        CAPTURE(s.d);
        GuardedTensor dout = random_tensor(t, {s.n, s.d}, 1), dbias = random_tensor(DType::f32, {s.d}, 2);
        CHECK(cuda_against_others(bias_backward, {{&dout}, {&dbias, sum_bound(s.n)}},
                                  [&](auto& t) { return BiasBackwardArgs{t[0], t[1], accumulate}; }) == "");
      }
}

}  // namespace
}  // namespace llmops::test
