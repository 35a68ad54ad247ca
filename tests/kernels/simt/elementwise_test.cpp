// The cuda table on the SIMT shim: swiglu, gelu, add and cast against the ref table, and bit for bit against the cpu table.
// Bounds as in tests/kernels/elementwise_test.cpp; u = 2^-24.
#include "support/cuda_case.h"

namespace llmops::test {
namespace {

constexpr double kUnit = 0x1p-24;
// Less than a vector, a vector, with and without a rest, several blocks of 256 threads.
const std::vector<int64_t> kSizes = {0, 1, 3, 8, 15, 16, 17, 97, 2048, 4097};

Bound bound_of(DType t, double abs, double rel = 0) { return {abs, rel + (t == DType::bf16 ? 0x1p-7 : 0)}; }

// Calls check(dtype, size, offset): with offset 1 the tensors start one element past 16 bytes, so none is read whole.
template <class Check>
void for_sizes(Check check) {
  for (DType t : {DType::f32, DType::bf16})
    for (int64_t n : kSizes)
      for (int64_t offset : {0, 1}) {
        CAPTURE(info(t).name);
        CAPTURE(n);
        CAPTURE(offset);
        if (n >= offset) check(t, n, offset);
      }
}
TensorView from(const TensorView& t, int64_t offset) { return rows(t, offset, t.dim[0] - offset); }

TEST_CASE("cuda gelu and its gradient: both forms, every size") {
  for_sizes([](DType t, int64_t n, int64_t offset) {
    for (Activation act : {Activation::gelu_tanh, Activation::gelu_erf}) {
      GuardedTensor x = random_tensor(t, {n}, 1, {}, 6), dout = random_tensor(t, {n}, 2), out = random_tensor(t, {n}, 3);
      CHECK(cuda_against_others(gelu, {{&x}, {&out, bound_of(t, 6 * 8 * kUnit)}}, [&](auto& t) {
              return GeluArgs{from(t[0], offset), from(t[1], offset), act};
            }) == "");
      CHECK(cuda_against_others(gelu_backward, {{&x}, {&dout}, {&out, bound_of(t, 14 * 10 * kUnit)}}, [&](auto& t) {
              return GeluBackwardArgs{from(t[0], offset), from(t[1], offset), from(t[2], offset), act};
            }) == "");
    }
  });
}

TEST_CASE("cuda gelu: large, tiny and special values") {
  const double inf = std::numeric_limits<double>::infinity();
  GuardedTensor x = tensor_of<double>(DType::f32, {-1e30, -1e4, -40, -1e-30, 0, 1e-30, 40, 1e4, 1e30, -1e-45, inf});
  GuardedTensor out(DType::f32, {11}), dout(DType::f32, {11});
  dout.fill(1);
  for (Activation act : {Activation::gelu_tanh, Activation::gelu_erf}) {
    CHECK(cuda_against_others(gelu, {{&x}, {&out, Bound{1e-30 * kUnit, 4 * kUnit}}},
                              [&](auto& t) { return GeluArgs{t[0], t[1], act}; }) == "");
    CHECK(cuda_against_others(gelu_backward, {{&x}, {&dout}, {&out}},
                              [&](auto& t) { return GeluBackwardArgs{t[0], t[1], t[2], act}; }) == "");
  }
}

TEST_CASE("cuda add: exact, every size, over either operand") {
  for_sizes([](DType t, int64_t n, int64_t offset) {
    GuardedTensor a = random_tensor(t, {n}, 1), b = random_tensor(t, {n}, 2), out = random_tensor(t, {n}, 3);
    const std::vector<CaseTensor> tensors = {{&a, Bound{}}, {&b, Bound{}}, {&out, Bound{}}};
    for (size_t to : {0, 1, 2})
      CHECK(cuda_against_others(add, tensors, [&](auto& t) {
              return AddArgs{from(t[0], offset), from(t[1], offset), from(t[to], offset)};
            }) == "");
  });
}

TEST_CASE("cuda cast: exact, every size, both directions") {
  for_sizes([](DType t, int64_t n, int64_t offset) {
    const DType to = t == DType::f32 ? DType::bf16 : DType::f32;
    GuardedTensor x = random_tensor(t, {n}, 1, {}, 1e3), out = random_tensor(to, {n}, 2);
    CHECK(cuda_against_others(cast, {{&x}, {&out, Bound{}}},
                              [&](auto& t) { return CastArgs{from(t[0], offset), from(t[1], offset)}; }) == "");
  });
}

TEST_CASE("cuda cast: ties go to even, infinities, denormals and NaN survive") {
  const std::vector<uint32_t> bits = {0x3f808000, 0x3f818000, 0x3f808001, 0x3f807fff, 0x7f7fffff, 0xff7fffff, 0x7f800000,
                                      0x80000000, 0x00000001, 0x00018000, 0x7fc00000, 0x7f800001, 0xffff0000};
  GuardedTensor x(DType::f32, {int64_t(bits.size())}), out(DType::bf16, {int64_t(bits.size())});
  std::memcpy(x.view().data, bits.data(), bits.size() * sizeof(uint32_t));
  CHECK(cuda_against_others(cast, {{&x}, {&out}}, [](auto& t) { return CastArgs{t[0], t[1]}; }) == "");
}

// 1030 columns are more than a block's slice of 1024 (bf16, vectors); 65540 rows more than the grid has.
TEST_CASE("cuda swiglu and its gradient: every width; also over x") {
  struct Shape {
    int64_t n, f;
  };
  for (DType t : {DType::f32, DType::bf16}) {
    for (const Shape s : {Shape{0, 8}, {3, 0}, {1, 1}, {3, 4}, {3, 8}, {2, 15}, {5, 16}, {3, 17}, {2, 97}, {2, 1030}, {2, 1032}}) {
      CAPTURE(info(t).name);
      CAPTURE(s.n);
      CAPTURE(s.f);
      GuardedTensor x = random_tensor(t, {s.n, 2 * s.f}, 1, {}, 8), dout = random_tensor(t, {s.n, s.f}, 2);
      GuardedTensor out(t, {s.n, s.f}), dx(t, {s.n, 2 * s.f});
      CHECK(cuda_against_others(swiglu, {{&x}, {&out, bound_of(t, 0, 6 * kUnit)}},
                                [](auto& t) { return SwigluArgs{t[0], t[1]}; }) == "");
      const Bound bound = bound_of(t, 8 * 1.3 * 10 * kUnit);
      CHECK(cuda_against_others(swiglu_backward, {{&x}, {&dout}, {&dx, bound}},
                                [](auto& t) { return SwigluBackwardArgs{t[0], t[1], t[2]}; }) == "");
      CHECK(cuda_against_others(swiglu_backward, {{&x, bound}, {&dout}},
                                [](auto& t) { return SwigluBackwardArgs{t[0], t[1], t[0]}; }) == "");
    }
  }
}

TEST_CASE("cuda swiglu: more rows than a grid has, and gates at the ends of exp") {
  GuardedTensor many = random_tensor(DType::f32, {65540, 2}, 1), out(DType::f32, {65540, 1});
  CHECK(cuda_against_others(swiglu, {{&many}, {&out, Bound{0, 6 * kUnit}}},
                            [](auto& t) { return SwigluArgs{t[0], t[1]}; }, {schedules().front()}) == "");
  GuardedTensor x(DType::f32, {6, 2}), dout(DType::f32, {6, 1}), few(DType::f32, {6, 1}), dx(DType::f32, {6, 2});
  const std::vector<double> gates = {-1000, -100, -88, 88, 100, 1000};
  for (size_t i = 0; i < gates.size(); ++i) x.set(2 * int64_t(i), gates[i]), x.set(2 * int64_t(i) + 1, 1);
  dout.fill(1);
  CHECK(cuda_against_others(swiglu, {{&x}, {&few, Bound{1e-34, 6 * kUnit}}},
                            [](auto& t) { return SwigluArgs{t[0], t[1]}; }) == "");
  CHECK(cuda_against_others(swiglu_backward, {{&x}, {&dout}, {&dx, Bound{1e-34, 20 * kUnit}}},
                            [](auto& t) { return SwigluBackwardArgs{t[0], t[1], t[2]}; }) == "");
}

}  // namespace
}  // namespace llmops::test
