// The matmul of the cuda table on the SIMT shim. f32 has the bits of the cpu table. bf16 runs on tensor cores, whose
// rounding is their own; it is held to the reference within a bound, and its bits may not depend on the batch.
#include "support/cuda_case.h"

namespace llmops::test {
namespace {

struct Shape {
  int64_t m, n, k;
};
// Around the tiles of 16 x 32 (up to 64 rows) and 128 x 128, 16 bytes, the steps of 16, 32 and 64 k, the chain of 512, and
// more chains than are summed at a time (4).
const std::vector<Shape> kShapes = {{0, 5, 3},     {5, 0, 3},     {3, 4, 0},      {70, 9, 0},    {1, 1, 1},    {1, 33, 5},
                                    {3, 40, 512},  {17, 31, 63},  {16, 32, 64},   {2, 5, 1025},  {5, 8, 2600},
                                    {64, 16, 24},  {65, 3, 17},   {129, 130, 48}, {70, 16, 513}, {66, 24, 1100}};

struct Form {
  DType dtype = DType::f32;
  bool a_trans = false, b_trans = true, accumulate = false;
  int64_t gap = 0;  // between rows; 8 keeps them on 16 bytes
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
    args.a_trans = f.a_trans;
    args.b_trans = f.b_trans;
    args.accumulate = f.accumulate;
  }
  // The case on the cuda table, with the tensors of `more` set by set(args, views of more).
  template <class Set>
  std::string run(Bound bound, const std::vector<CaseTensor>& more, Set set) {
    std::vector<CaseTensor> tensors = {{&a}, {&b}, {&out, bound}};
    tensors.insert(tensors.end(), more.begin(), more.end());
    const auto make = [&](auto& views) {
      MatmulArgs with = args;
      with.a = views[0], with.b.data = views[1], with.out = views[2];
      set(with, std::vector<TensorView>(views.begin() + 3, views.end()));
      return with;
    };
    return cuda_against_others(matmul, tensors, make, schedules(), a.dtype() == DType::f32 ? Bits::of_cpu : Bits::own);
  }
  std::string run(Bound bound) {
    return run(bound, {}, [](MatmulArgs&, const std::vector<TensorView>&) {});
  }

  GuardedTensor a, b, out;
  MatmulArgs args = {};
};

// Inputs are at most 1 in size, so sum |a b| <= k. Each of k additions, and three of the epilogue, is off by at most 2^-23
// of that: tensor cores may cut bits off rather than round to nearest. GELU and its slope pass an error on with a factor
// of at most 1.13 and add 1e-6 of their own. Two results that round apart to bf16 differ by 2^-7 of their size.
Bound bound_of(const Shape& s, DType out) {
  const double k = static_cast<double>(s.k);
  return {1.2 * (k + 3) * 0x1p-23 * (k + 3) + 1e-6 * (k + 1), out == DType::bf16 ? 0x1p-7 : 0};
}

template <class Check>
void for_shapes(Check check) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Shape& s : kShapes) {
      CAPTURE(info(dtype).name);
      CAPTURE(s.m);
      CAPTURE(s.n);
      CAPTURE(s.k);
      check(dtype, s);
    }
}

TEST_CASE("matmul: every shape, orientation and alignment of rows, overwriting and adding") {
  for_shapes([](DType dtype, const Shape& s) {
    for (int form = 0; form < 8; ++form) {
      CAPTURE(form);
      const int64_t gap = form % 4 == 0 ? 0 : form % 3 == 0 ? 3 : 8;
      Case c(s, {dtype, form % 2 == 1, form / 2 % 2 == 1, form / 4 == 1, gap});
      CHECK(c.run(bound_of(s, DType::f32)) == "");
    }
  });
}

TEST_CASE("matmul: epilogues in all combinations, both dtypes of out") {
  for (const Shape& s : {Shape{13, 37, 24}, Shape{66, 16, 40}})
    for (DType dtype : {DType::f32, DType::bf16})
      for (DType out_dtype : {DType::f32, DType::bf16})
        for (int mode = 0; mode < 24; ++mode) {
          const bool with_bias = mode % 2 == 1, with_residual = mode / 2 % 2 == 1, with_aux = mode / 4 % 2 == 1;
          const auto act = static_cast<Activation>(mode / 8);
          if (with_aux && act == Activation::none) continue;
          CAPTURE(s.m);
          CAPTURE(mode);
          const int64_t gap = mode % 3 == 0 ? 1 : 8;  // rows off 16 bytes, and on them
          Case c(s, {.dtype = dtype, .gap = gap}, out_dtype);
          c.args.act = act;
          GuardedTensor bias = random_tensor(dtype, {s.n}, 4);
          GuardedTensor residual = random_tensor(dtype, {s.m, s.n}, 5, padded_strides({s.m, s.n}, gap));
          GuardedTensor aux(dtype, {s.m, s.n}, padded_strides({s.m, s.n}, gap));
          std::vector<CaseTensor> more = {{&bias}, {&residual}};
          if (with_aux) more.push_back({&aux, bound_of(s, dtype)});
          CHECK(c.run(bound_of(s, out_dtype), more, [&](MatmulArgs& args, const std::vector<TensorView>& views) {
                  if (with_bias) args.bias = views[0];
                  if (with_residual) args.residual = views[1];
                  if (with_aux) args.aux = views[2];
                }) == "");
        }
}

TEST_CASE("matmul: the fused gradient of the activation, and bias with accumulation") {
  for (const Shape& s : {Shape{13, 37, 24}, Shape{70, 24, 515}})
    for (DType dtype : {DType::f32, DType::bf16})
      for (DType out_dtype : {DType::f32, DType::bf16})
        for (Activation act : {Activation::gelu_tanh, Activation::gelu_erf}) {
          Case c(s, {.dtype = dtype, .b_trans = false}, out_dtype);
          c.args.act = act;
          GuardedTensor before = random_tensor(dtype, {s.m, s.n}, 6, {}, 5);
          CHECK(c.run(bound_of(s, out_dtype), {{&before}}, [](MatmulArgs& args, const std::vector<TensorView>& views) {
                  args.act_backward = views[0];
                }) == "");
          Case sum(s, {.dtype = dtype, .a_trans = true, .b_trans = false, .accumulate = true}, out_dtype);
          GuardedTensor bias = random_tensor(dtype, {s.n}, 4);
          CHECK(sum.run(bound_of(s, out_dtype), {{&bias}}, [](MatmulArgs& args, const std::vector<TensorView>& views) {
                  args.bias = views[0];
                }) == "");
        }
}

// A matmul on a device of the current schedule; the tensor `out` gets the result.
std::string run_cuda(GuardedTensor& out, const GuardedTensor& a, const GuardedTensor& b, int64_t first, int64_t count,
                     bool packed = false, bool b_trans = true) {
  auto device = open_cuda_device();
  const Mirror on_a(*device, a), on_b(*device, b);
  Mirror on_out(*device, out);
  MatmulArgs args = {.a = rows<const void>(on_a.view(), first, count), .b = {on_b.view()}, .out = on_out.view()};
  args.b_trans = b_trans;
  Buffer panels;
  if (packed) {
    const int64_t bytes = matmul_pack_bytes(b.dtype(), a.view().dim[1], out.view().dim[1]);
    panels = device->alloc(bytes, Category::weights).take();
    const TensorView view = panels.view(DType::u8, {bytes});
    const Status status = matmul_pack(device->compute(), {on_b.view(), view, b_trans});
    if (!status.ok()) return status.message();
    args.b = {view, Pack::panels};
  }
  const Status status = matmul(device->compute(), args);
  on_out.enqueue_download(*device);
  const Status done = device->compute().sync();
  out.restore(on_out.bytes());
  return !status.ok() ? status.message() : done.message();
}

TEST_CASE("matmul: a row has the same bits alone and in any batch, small or large") {
  simt::set_schedule({});
  for (DType dtype : {DType::f32, DType::bf16}) {
    CAPTURE(info(dtype).name);
    const Shape s{150, 40, 1300};
    const GuardedTensor a = matrix(dtype, s.m, s.k, false, 1, 4), b = matrix(dtype, s.k, s.n, true, 2, 0);
    GuardedTensor all(DType::f32, {s.m, s.n});
    REQUIRE(run_cuda(all, a, b, 0, s.m) == "");
    for (const auto& [first, count] : {std::pair{0, 1}, {149, 1}, {37, 1}, {3, 20}, {60, 64}, {17, 65}, {1, 129}}) {
      CAPTURE(first);
      CAPTURE(count);
      GuardedTensor part(DType::f32, {count, s.n});
      REQUIRE(run_cuda(part, a, b, first, count) == "");
      int64_t different = 0;
      for (int64_t i = 0; i < part.elems(); ++i) different += part.bits(i) != all.bits(first * s.n + i);
      CHECK(different == 0);
    }
  }
}

TEST_CASE("matmul: a packed weight gives the bits of the plain one") {
  for (const simt::Schedule schedule : schedules()) {
    simt::set_schedule(schedule);
    for (DType dtype : {DType::f32, DType::bf16})
      for (bool b_trans : {false, true})
        for (const Shape& s : {Shape{3, 37, 65}, Shape{2, 0, 4}, Shape{2, 4, 0}, Shape{66, 64, 32}}) {
          CAPTURE(info(dtype).name);
          CAPTURE(b_trans);
          CAPTURE(s.n);
          const GuardedTensor a = matrix(dtype, s.m, s.k, false, 1, 0), b = matrix(dtype, s.k, s.n, b_trans, 2, 3);
          GuardedTensor plain(DType::f32, {s.m, s.n}), packed(DType::f32, {s.m, s.n});
          REQUIRE(run_cuda(plain, a, b, 0, s.m, false, b_trans) == "");
          REQUIRE(run_cuda(packed, a, b, 0, s.m, true, b_trans) == "");
          CHECK(difference_bits(packed, plain) == "");
        }
  }
}

TEST_CASE("matmul: NaN and infinity reach exactly the elements that they are summed into") {
  simt::set_schedule({});
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Shape& s : {Shape{8, 20, 10}, Shape{80, 20, 10}}) {
      GuardedTensor a = matrix(dtype, s.m, s.k, false, 1, 0), b = matrix(dtype, s.k, s.n, true, 2, 0);
      a.set(3 * s.k + 9, std::numeric_limits<double>::quiet_NaN());
      b.set(18 * s.k + 2, std::numeric_limits<double>::infinity());
      GuardedTensor out(DType::f32, {s.m, s.n});
      REQUIRE(run_cuda(out, a, b, 0, s.m) == "");
      for (int64_t i = 0; i < out.elems(); ++i) {
        const bool nan = i / s.n == 3;
        CHECK(std::isnan(out.at(i)) == nan);
        CHECK(std::isinf(out.at(i)) == (i % s.n == 18 && !nan));
      }
    }
}

}  // namespace
}  // namespace llmops::test
