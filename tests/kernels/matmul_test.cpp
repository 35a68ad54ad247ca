// The matmul. Its definition (kernels/ops.h) is written out here with std::fma, and every device must give those bits
// for every form, size and thread count; epilogues are compared with the reference within bounds derived below.
#include "support/kernel_case.h"

namespace llmops::test {
namespace {

struct Shape {
  int64_t m, n, k;
};
// Around the register tile, the 16 lanes, the chain of 512 and none of them; one row takes four panels at a time; 700 x
// 70 makes several tasks in both directions.
constexpr Shape kShapes[] = {{0, 5, 3},    {5, 0, 3},     {3, 4, 0},     {1, 1, 1},    {1, 17, 5},   {1, 150, 700},
                             {2, 8, 7},    {6, 16, 64},   {12, 32, 16},  {7, 16, 511}, {6, 33, 512}, {13, 31, 513},
                             {13, 64, 40}, {5, 70, 1025}, {29, 97, 37},  {50, 3, 131}, {53, 65, 41}, {700, 70, 19},
                             {3, 800, 33}};

struct Form {
  DType dtype = DType::f32;
  bool a_trans = false, b_trans = true, accumulate = false;
  int64_t gap = 0;  // between rows
};

GuardedTensor matrix(DType dtype, int64_t rows, int64_t columns, bool transposed, uint64_t seed, int64_t gap) {
  const Dimensions dims = transposed ? Dimensions{columns, rows} : Dimensions{rows, columns};
  return random_tensor(dtype, dims, seed, padded_strides(dims, gap));
}

struct Case {
  Case(const Shape& s, const Form& f, DType out_dtype = DType::f32)
      : a(matrix(f.dtype, s.m, s.k, f.a_trans, 1, f.gap)),
        b(matrix(f.dtype, s.k, s.n, f.b_trans, 2, f.gap)),
        out(random_tensor(out_dtype, {s.m, s.n}, 3, padded_strides({s.m, s.n}, f.gap))) {
    args.a = a;
    args.b.data = b;
    args.out = out;
    args.a_trans = f.a_trans;
    args.b_trans = f.b_trans;
    args.accumulate = f.accumulate;
  }
  double left(int64_t m, int64_t k) const { return args.a_trans ? element(a, k, m) : element(a, m, k); }
  double right(int64_t k, int64_t n) const { return args.b_trans ? element(b, n, k) : element(b, k, n); }
  static double element(const GuardedTensor& x, int64_t i, int64_t j) { return x.at(i * x.view().dim[1] + j); }

  GuardedTensor a, b, out;
  MatmulArgs args = {};
};

// The definition: chains of 512 fma, their sums added in order, then the old value plus that.
void define(const Shape& s, Case& c) {
  for (int64_t m = 0; m < s.m; ++m)
    for (int64_t n = 0; n < s.n; ++n) {
      float sum = 0;
      for (int64_t k0 = 0; k0 < s.k; k0 += 512) {
        float chain = 0;
        for (int64_t k = k0; k < std::min(s.k, k0 + 512); ++k)
          chain = std::fma(static_cast<float>(c.left(m, k)), static_cast<float>(c.right(k, n)), chain);
        sum = k0 == 0 ? chain : sum + chain;
      }
      const int64_t i = m * s.n + n;
      c.out.set(i, c.args.accumulate ? static_cast<float>(c.out.at(i)) + sum : sum);
    }
}

// Rounding errors of k products and sums: at most k units of sum |a b|, for any order (Higham, Accuracy and Stability,
// 3.1); one more unit each for bias, residual and accumulate; two results that round apart to bf16 differ by 2^-7 of
// their size.
Bound bound_of(const Shape& s, const Case& c, DType out) {
  double most = 0;
  for (int64_t m = 0; m < s.m; ++m)
    for (int64_t n = 0; n < s.n; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < s.k; ++k) sum += std::abs(c.left(m, k) * c.right(k, n));
      most = std::max(most, sum);
    }
  // GELU and its slope pass an error on with a factor of at most 1.13 and add 1e-6 of their own.
  const double roundings = static_cast<double>(s.k + 3) * 0x1p-24;
  return {1.2 * roundings * (most + 3) + 1e-6 * (most + 1), out == DType::bf16 ? 0x1p-7 : 0};
}

// VDPBF16PS sums pairs: bf16 on such a CPU follows the definition only within the bound.
bool follows_definition(const Device& device, DType dtype) {
  return dtype == DType::f32 || device.isa() != Isa::avx512_bf16;
}

}  // namespace

TEST_CASE("matmul: every form is the defined chain, bit for bit, on every device") {
  for (const Shape& s : kShapes)
    for (int form = 0; form < 16; ++form) {
      const Form f{form / 8 ? DType::bf16 : DType::f32, form % 2 == 1, form / 2 % 2 == 1, form / 4 % 2 == 1, form % 3};
      CAPTURE(s.m);
      CAPTURE(s.n);
      CAPTURE(s.k);
      CAPTURE(form);
      Case c(s, f), want(s, f);
      define(s, want);
      const std::vector<uint8_t> start = c.out.contents();
      for (const TestDevice& d : devices()) {
        c.out.restore(start);
        REQUIRE(run_on(*d.device, matmul, c.args) == "");
        if (follows_definition(*d.device, f.dtype)) CHECK_MESSAGE(difference_bits(c.out, want.out) == "", d.name);
      }
    }
}

TEST_CASE("matmul: a packed weight gives the bits of the plain one") {
  for (const Shape& s : kShapes)
    for (int form = 0; form < 4; ++form) {
      const Form f{form / 2 ? DType::bf16 : DType::f32, false, form % 2 == 1};
      CAPTURE(s.n);
      CAPTURE(s.k);
      CAPTURE(form);
      Case c(s, f), packed(s, f);
      GuardedTensor panels(DType::u8, {matmul_pack_bytes(f.dtype, s.k, s.n)});
      packed.args.b = {panels.view(), Pack::panels};
      for (const TestDevice& d : devices()) {
        REQUIRE(run_on(*d.device, matmul, c.args) == "");
        REQUIRE(run_on(*d.device, matmul_pack, MatmulPackArgs{c.b, panels, f.b_trans}) == "");
        REQUIRE(run_on(*d.device, matmul, packed.args) == "");
        CHECK_MESSAGE(difference_bits(packed.out, c.out) == "", d.name);
      }
    }
}

TEST_CASE("matmul: a row has the same bits alone and in any batch") {
  const Shape s{31, 40, 600};
  for (DType dtype : {DType::f32, DType::bf16}) {
    Case all(s, {.dtype = dtype});
    Device& device = *devices()[1].device;
    REQUIRE(run_on(device, matmul, all.args) == "");
    for (int64_t count : {1, 2, 3, 4, 5, 7, 13})
      for (int64_t first = 0; first + count <= s.m; first += 6) {
        CAPTURE(count);
        CAPTURE(first);
        GuardedTensor part(DType::f32, {count, s.n});
        MatmulArgs args = all.args;
        args.a = rows<const void>(all.a, first, count);
        args.out = part;
        REQUIRE(run_on(device, matmul, args) == "");
        for (int64_t i = 0; i < part.elems(); ++i) REQUIRE(part.bits(i) == all.out.bits(first * s.n + i));
      }
  }
}

TEST_CASE("matmul: epilogues against the reference") {
  for (const Shape& s : {Shape{13, 37, 24}, Shape{6, 16, 520}, Shape{1, 50, 9}, Shape{300, 33, 5}, Shape{4, 5, 0}})
    for (DType dtype : {DType::f32, DType::bf16})
      for (DType out_dtype : {DType::f32, DType::bf16})
        for (int mode = 0; mode < 24; ++mode) {
          const bool with_bias = mode % 2 == 1, with_residual = mode / 2 % 2 == 1, with_aux = mode / 4 % 2 == 1;
          const auto act = static_cast<Activation>(mode / 8);
          if (with_aux && act == Activation::none) continue;
          CAPTURE(s.m);
          CAPTURE(mode);
          Case c(s, {.dtype = dtype, .b_trans = mode % 3 == 0, .gap = mode % 2}, out_dtype);
          const GuardedTensor bias = random_tensor(dtype, {s.n}, 4);
          const GuardedTensor residual = random_tensor(dtype, {s.m, s.n}, 5, padded_strides({s.m, s.n}, 3));
          GuardedTensor aux(dtype, {s.m, s.n}, padded_strides({s.m, s.n}, 1));
          c.args.act = act;
          if (with_bias) c.args.bias = bias;
          if (with_residual) c.args.residual = residual;
          if (with_aux) c.args.aux = aux;
          std::vector<Output> outputs{{&c.out, bound_of(s, c, out_dtype)}};
          if (with_aux) outputs.push_back({&aux, bound_of(s, c, dtype)});
          CHECK(against_reference(matmul, c.args, outputs, dtype == DType::f32) == "");
        }
}

TEST_CASE("matmul: the fused gradient of the activation, and accumulation, against the reference") {
  for (const Shape& s : {Shape{13, 37, 24}, Shape{60, 20, 515}})
    for (DType dtype : {DType::f32, DType::bf16})
      for (Activation act : {Activation::gelu_tanh, Activation::gelu_erf}) {
        Case c(s, {.dtype = dtype, .b_trans = false});
        const GuardedTensor before = random_tensor(dtype, {s.m, s.n}, 6, {}, 5);
        c.args.act = act;
        c.args.act_backward = before;
        CHECK(against_reference(matmul, c.args, {{&c.out, bound_of(s, c, DType::f32)}}, dtype == DType::f32) == "");
        for (DType out_dtype : {DType::f32, DType::bf16}) {
          Case sum(s, {.dtype = dtype, .a_trans = act == Activation::gelu_erf, .accumulate = true}, out_dtype);
          const GuardedTensor bias = random_tensor(dtype, {s.n}, 4);
          sum.args.bias = bias;
          const Bound bound = bound_of(s, sum, out_dtype);
          CHECK(against_reference(matmul, sum.args, {{&sum.out, bound}}, dtype == DType::f32) == "");
        }
      }
}

TEST_CASE("matmul: sums on the side, against the reference and with the bits of bias_backward") {
  for (const Shape& s : {Shape{13, 37, 24}, Shape{5, 7, 0}, Shape{300, 33, 515}})
    for (DType dtype : {DType::f32, DType::bf16})
      for (const bool of_a : {true, false})
        for (const bool accumulate : {false, true}) {
          CAPTURE(s.m);
          CAPTURE(of_a);
          CAPTURE(accumulate);
          Case c(s, {.dtype = dtype, .a_trans = of_a, .b_trans = false, .accumulate = accumulate});
          GuardedTensor sums = random_tensor(DType::f32, {of_a ? s.m : s.n}, 8), alone = sums;
          const std::vector<uint8_t> start = sums.contents();
          (of_a ? c.args.a_sums : c.args.b_sums) = sums;
          const GuardedTensor& summed = of_a ? c.a : c.b;
          Device& device = *devices()[0].device;
          REQUIRE(run_on(device, bias_backward, BiasBackwardArgs{summed, alone, accumulate}) == "");
          const Bound bound = bound_of(s, c, DType::f32);
          CHECK(against_reference(matmul, c.args, {{&c.out, bound}, {&sums, bound}}, dtype == DType::f32) == "");
          sums.restore(start);
          REQUIRE(run_on(device, matmul, c.args) == "");
          CHECK(difference_bits(sums, alone) == "");
        }
}

TEST_CASE("matmul: fused and separate activations have the same bits") {
  const Shape s{9, 45, 30};
  for (Activation act : {Activation::gelu_tanh, Activation::gelu_erf}) {
    Case fused(s, {}), plain(s, {});
    fused.args.act = act;
    GuardedTensor separate(DType::f32, {s.m, s.n});
    Device& device = *devices()[0].device;
    REQUIRE(run_on(device, matmul, fused.args) == "");
    REQUIRE(run_on(device, matmul, plain.args) == "");
    REQUIRE(run_on(device, gelu, GeluArgs{plain.out, separate, act}) == "");
    CHECK(difference_bits(fused.out, separate) == "");
  }
}

TEST_CASE("matmul: NaN and infinity reach exactly the elements that they are summed into") {
  const Shape s{8, 20, 10};
  Case c(s, {});
  c.a.set(3 * s.k + 9, std::numeric_limits<double>::quiet_NaN());
  c.b.set(18 * s.k + 2, std::numeric_limits<double>::infinity());
  for (const TestDevice& d : devices()) {
    REQUIRE(run_on(*d.device, matmul, c.args) == "");
    for (int64_t i = 0; i < c.out.elems(); ++i) {
      const bool nan = i / s.n == 3;
      CHECK(std::isnan(c.out.at(i)) == nan);
      CHECK(std::isinf(c.out.at(i)) == (i % s.n == 18 && !nan));
    }
  }
}

}  // namespace llmops::test
