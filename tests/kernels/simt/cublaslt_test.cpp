// The matmul by cuBLASLt, against a model of the library that checks what it is given (support/simt_cublaslt.h): what
// fits its epilogues goes there, what does not goes to our own kernel, and both are held to the reference.
#include "kernels/cuda/cublaslt_api.h"
#include "support/cuda_case.h"
#include "support/simt_cublaslt.h"

namespace llmops::test {
namespace {

struct Shape {
  int64_t m, n, k;
};

// A matmul on the reference and on a cuda device with use_fast_matmul(); tensors are named by their place in `args`.
struct Case {
  Case(const Shape& s, DType in, DType out_type, bool a_trans, bool b_trans, int64_t gap = 0)
      : shape(s),
        a(matrix(in, a_trans ? Dimensions{s.k, s.m} : Dimensions{s.m, s.k}, 1, gap)),
        b(matrix(in, b_trans ? Dimensions{s.n, s.k} : Dimensions{s.k, s.n}, 2, gap)),
        out(matrix(out_type, {s.m, s.n}, 3, gap)),
        bias(random_tensor(in, {s.n}, 4)),
        residual(matrix(in, {s.m, s.n}, 5, gap)),
        aux(in, {s.m, s.n}, padded_strides({s.m, s.n}, gap)),
        before(matrix(in, {s.m, s.n}, 6, gap)),
        sums(random_tensor(DType::f32, {a_trans ? s.m : s.n}, 7)) {
    args = {.a = a, .b = {b.view()}, .out = out};
    args.a_trans = a_trans, args.b_trans = b_trans;
  }
  static GuardedTensor matrix(DType dtype, const Dimensions& dims, uint64_t seed, int64_t gap) {
    return random_tensor(dtype, dims, seed, padded_strides(dims, gap));
  }

  // "" when out, aux and sums are right; `library`: whether the library is to do it.
  std::string check(bool library) {
    const std::vector<uint8_t> start = out.contents(), start_sums = sums.contents();
    std::string error = run_on(reference_device(), matmul, args);
    const GuardedTensor want = out, want_aux = aux, want_sums = sums;
    out.restore(start);
    sums.restore(start_sums);
    auto device = open_cuda_device();
    const auto name = device->use_fast_matmul();
    if (!name.ok()) return name.status().message();
    for (const simt::Schedule schedule : schedules()) {
      simt::set_schedule(schedule);
      if (error.empty()) error = check_cuda(*device, want, want_aux, want_sums, library);
    }
    return error;
  }

  // Sums as in matmul_test.cpp.
  Bound bound(DType dtype) const {
    const double k = static_cast<double>(shape.k);
    return {1.2 * (k + 3) * 0x1p-23 * (k + 3) + 1e-6 * (k + 1), dtype == DType::bf16 ? 0x1p-7 : 0};
  }

  Shape shape;
  GuardedTensor a, b, out, bias, residual, aux, before, sums;
  MatmulArgs args;

 private:
  std::string check_cuda(Device& device, const GuardedTensor& want, const GuardedTensor& want_aux,
                         const GuardedTensor& want_sums, bool library) {
    std::vector<std::unique_ptr<Mirror>> mirrors;
    const auto mirrored = [&](const GuardedTensor& host, bool wanted) -> TensorView {
      mirrors.push_back(std::make_unique<Mirror>(device, host));
      return wanted ? mirrors.back()->view() : TensorView{};
    };
    MatmulArgs on_device = args;
    on_device.out = mirrored(out, true);
    on_device.aux = mirrored(aux, args.aux.present());
    const TensorView on_side = mirrored(sums, true);
    if (args.a_sums.present()) on_device.a_sums = on_side;
    if (args.b_sums.present()) on_device.b_sums = on_side;
    on_device.a = mirrored(a, true);
    on_device.b.data = mirrored(b, true);
    on_device.bias = mirrored(bias, args.bias.present());
    on_device.residual = mirrored(residual, args.residual.present());
    on_device.act_backward = mirrored(before, args.act_backward.present());
    const int64_t products = simt::cublaslt_calls().products;
    const Status called = matmul(device.compute(), on_device);
    for (auto& mirror : mirrors) mirror->enqueue_download(device);
    const Status done = device.compute().sync();
    if (!called.ok() || !done.ok()) return called.message() + done.message();
    if ((simt::cublaslt_calls().products > products) != library) return library ? "not the library" : "the library";
    GuardedTensor got = out, got_aux = aux, got_sums = sums;
    got.restore(mirrors[0]->bytes());
    got_aux.restore(mirrors[1]->bytes());
    got_sums.restore(mirrors[2]->bytes());
    std::string error = difference(got, want, bound(out.dtype()));
    if (error.empty() && args.aux.present()) error = difference(got_aux, want_aux, bound(aux.dtype()));
    return error.empty() ? difference(got_sums, want_sums, bound(DType::f32)) : error;
  }
};

template <class Check>
void for_types(Check check) {
  using Pair = std::pair<DType, DType>;
  for (const auto& [in, out] : {Pair{DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}}) {
    CAPTURE(info(in).name);
    CAPTURE(info(out).name);
    check(in, out);
  }
}

TEST_CASE("cublaslt: orientations, strides, accumulation") {
  for_types([](DType in, DType out) {
    for (const Shape& s : {Shape{1, 1, 1}, Shape{5, 7, 3}, Shape{16, 24, 40}, Shape{1, 64, 33}})
      for (int form = 0; form < 8; ++form) {
        CAPTURE(s.n);
        CAPTURE(form);
        Case c(s, in, out, form % 2 == 1, form / 2 % 2 == 1, form % 3);
        c.args.accumulate = form / 4 == 1;
        CHECK(c.check(true) == "");
      }
  });
}

TEST_CASE("cublaslt: bias, residual, GELU with what backward needs, and its gradient") {
  const Shape s{6, 24, 10};
  for_types([&](DType in, DType out) {
    const bool same = in == out;  // with another dtype of out, the library's bias and aux would have it too
    for (int mode = 0; mode < 8; ++mode) {
      CAPTURE(mode);
      Case c(s, in, out, false, true, 8);
      if (mode % 2 == 1) c.args.bias = c.bias;
      if (mode == 2 || mode == 3) c.args.residual = c.residual;
      if (mode >= 4) c.args.act = Activation::gelu_tanh;
      if (mode >= 6) c.args.aux = c.aux;
      CHECK(c.check(same || mode == 0) == "");
    }
    Case c(s, in, out, false, false, 8);
    c.args.act = Activation::gelu_tanh;
    c.args.act_backward = c.before;
    CHECK(c.check(same) == "");
    Case sum(s, in, out, true, false);
    sum.args.accumulate = true;
    sum.args.bias = sum.bias;
    CHECK(sum.check(same) == "");
  });
}

TEST_CASE("cublaslt: what its epilogues do not do runs on our own kernel") {
  const Shape s{6, 24, 10};
  Case erf(s, DType::f32, DType::f32, false, true), both(s, DType::f32, DType::f32, false, true);
  Case odd(s, DType::f32, DType::f32, false, true, 3), empty({4, 5, 0}, DType::f32, DType::f32, false, true);
  Case narrow(s, DType::f32, DType::bf16, false, true);
  erf.args.act = Activation::gelu_erf;
  both.args.act = odd.args.act = Activation::gelu_tanh;
  both.args.residual = both.residual;
  odd.args.aux = odd.aux;  // its rows are 27 elements apart, no multiple of 8
  CHECK(erf.check(false) == "");
  CHECK(both.check(false) == "");
  CHECK(odd.check(false) == "");
  CHECK(empty.check(false) == "");
  CHECK(narrow.check(false) == "");  // the library has no f32 to bf16: it says so itself
}

TEST_CASE("cublaslt: bias gradients by its epilogue, by our own op when they are added or it has none") {
  for_types([](DType in, DType out) {
    for (const bool of_a : {true, false})
      for (const bool accumulate : {false, true})
        for (const bool has_epilogue : {true, false}) {
          CAPTURE(of_a);
          CAPTURE(accumulate);
          CAPTURE(has_epilogue);
          simt::set_cublaslt({.bias_gradients = has_epilogue});
          Case c({17, has_epilogue ? 24 : 32, 37}, in, out, of_a, false);  // what was found for a shape is kept
          (of_a ? c.args.a_sums : c.args.b_sums) = c.sums;
          c.args.accumulate = accumulate;
          // Its sums have the type of out: beside a bf16 out they are ours.
          const int64_t sums = simt::cublaslt_calls().bias_gradients;
          CHECK(c.check(true) == "");
          const bool by_library = has_epilogue && !accumulate && out == DType::f32;
          CHECK((simt::cublaslt_calls().bias_gradients > sums) == by_library);
        }
  });
  simt::set_cublaslt({});
}

TEST_CASE("cublaslt: an algorithm is searched once for a shape") {
  const int64_t before = simt::cublaslt_calls().searches;
  for (int i = 0; i < 3; ++i) {
    Case c({9, 10, 11}, DType::bf16, DType::f32, false, true);
    CHECK(c.check(true) == "");
  }
  CHECK(simt::cublaslt_calls().searches == before + 1);
}

TEST_CASE("cublaslt: what is promised of the residual's and of out's alignment is kept by each call") {
  auto device = open_cuda_device();
  REQUIRE(device->use_fast_matmul().ok());
  const Buffer memory = device->alloc(1 << 16, Category::transient).take();
  const auto matrix = [&](int64_t byte) { return memory.view(DType::f32, {8, 16}, byte); };
  MatmulArgs args = {.a = memory.view(DType::f32, {8, 8}), .b = {matrix(4096)}};
  // On 256 and 16 bytes, then the other way round: one plan for both would break its promise for one of them.
  for (const auto& [residual, out] : {std::pair{8192, 16384 + 16}, {8192 + 16, 16384}}) {
    args.residual = matrix(residual);
    args.out = matrix(out);
    CHECK(matmul(device->compute(), args).ok());
    CHECK(device->compute().sync().message() == "");
  }
}

TEST_CASE("cublaslt: an aux off 16 bytes is for our own kernel") {
  auto device = open_cuda_device();
  REQUIRE(device->use_fast_matmul().ok());
  const Buffer memory = device->alloc(1 << 16, Category::transient).take();
  for (const int64_t off : {0, 4}) {
    const int64_t before = simt::cublaslt_calls().products;
    MatmulArgs args = {.a = memory.view(DType::f32, {8, 8}),
                       .b = {memory.view(DType::f32, {8, 16}, 4096)},
                       .out = memory.view(DType::f32, {8, 16}, 8192)};
    args.act = Activation::gelu_tanh;
    args.aux = memory.view(DType::f32, {8, 16}, 16384 + off);
    CHECK(matmul(device->compute(), args).ok());
    CHECK(device->compute().sync().message() == "");
    CHECK((simt::cublaslt_calls().products > before) == (off == 0));
  }
}

TEST_CASE("cublaslt: a device takes our own kernel until it is asked not to") {
  auto device = open_cuda_device();
  CHECK_FALSE(device->fast_matmul());
  const auto name = device->use_fast_matmul();
  REQUIRE(name.ok());
  CHECK(*name == "cuBLASLt 13.1.0");
  CHECK(device->fast_matmul());
  CHECK(devices().front().device->use_fast_matmul().status().code() == Code::io);
}

TEST_CASE("cublaslt: a library that is missing, too old, or lacks a function is named") {
  const auto message = [](simt::CublasLt library) {
    simt::set_cublaslt(library);
    const auto api = cuda::lt::load();
    simt::set_cublaslt({});
    CHECK(api.status().code() == Code::io);
    return api.status().message();
  };
  CHECK(message({.present = false}) == "cuBLASLt: neither libcublasLt.so.13 nor libcublasLt.so.12 can be opened; install "
                                       "cuBLAS, or set LD_LIBRARY_PATH to its folder");
  CHECK(message({.version = 110300}) == "cuBLASLt: the library is version 11.3.0, expected cuBLAS 12 or 13");
  CHECK(message({.missing = "cublasLtMatmul"}) ==
        "cuBLASLt: the library has no cublasLtMatmul: expected cuBLAS 12 or 13");
}

TEST_CASE("cublaslt: the model refuses what the library would") {
  namespace lt = cuda::lt;
  const lt::Api& api = **lt::api();
  lt::Layout layout = nullptr;
  CHECK(api.MatrixLayoutCreate(&layout, lt::Type::f32, 8, 4, 7) == lt::Code::invalid_value);  // rows do not fit into ld
  lt::Desc desc = nullptr;
  REQUIRE(api.MatmulDescCreate(&desc, lt::Compute::f32, lt::Type::f32) == lt::Code::success);
  const int64_t wide = 1;
  CHECK(api.MatmulDescSetAttribute(desc, lt::DescField::trans_a, &wide, sizeof wide) == lt::Code::invalid_value);

  lt::Layout a = nullptr, d = nullptr;
  lt::Handle handle = nullptr;
  lt::Preference preference = nullptr;
  REQUIRE(api.Create(&handle) == lt::Code::success);
  REQUIRE(api.MatrixLayoutCreate(&a, lt::Type::f32, 8, 8, 8) == lt::Code::success);
  REQUIRE(api.MatrixLayoutCreate(&d, lt::Type::f32, 8, 4, 8) == lt::Code::success);
  REQUIRE(api.MatmulPreferenceCreate(&preference) == lt::Code::success);
  lt::Choice choice = {};
  int found = 0;
  const auto search = [&](lt::Layout b) {
    return api.MatmulAlgoGetHeuristic(handle, desc, a, b, d, d, preference, 1, &choice, &found);
  };
  CHECK(search(a) == lt::Code::invalid_value);  // D is too narrow
  CHECK(search(d) == lt::Code::not_supported);  // no workspace
  const uint64_t bytes = 1 << 20;
  REQUIRE(api.MatmulPreferenceSetAttribute(preference, lt::PreferenceField::workspace_bytes_max, &bytes, sizeof bytes) ==
          lt::Code::success);
  REQUIRE(search(d) == lt::Code::success);

  auto device = open_cuda_device();
  const Buffer memory = device->alloc(2 << 20, Category::transient).take();
  char* const data = memory.as<char>();
  const float one = 1, zero = 0;
  const auto multiply = [&](char* out, size_t workspace_bytes, const lt::Algo& algo) {
    return api.Matmul(handle, desc, &one, data, a, data + 1024, d, &zero, out, d, out, d, &algo, data + (1 << 20),
                      workspace_bytes, device->compute().native());
  };
  CHECK(multiply(data + 4096, bytes, choice.algo) == lt::Code::success);
  CHECK(multiply(data + 4096 + 4, bytes, choice.algo) == lt::Code::invalid_value);  // 256 was promised
  CHECK(multiply(data + 4096, 16, choice.algo) == lt::Code::invalid_value);         // less workspace than it needs
  CHECK(multiply(data + 4096, bytes, lt::Algo{}) == lt::Code::invalid_value);       // no algorithm of this problem
  const int32_t bias = lt::epilogue::bias;
  REQUIRE(api.MatmulDescSetAttribute(desc, lt::DescField::epilogue, &bias, sizeof bias) == lt::Code::success);
  CHECK(search(d) == lt::Code::invalid_value);  // no bias is set
  CHECK(api.MatmulPreferenceDestroy(preference) == lt::Code::success);
  CHECK(device->compute().sync().ok());
}

}  // namespace
}  // namespace llmops::test
