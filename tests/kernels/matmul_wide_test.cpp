// What only newer CPUs run, on any CPU with AVX2: the tile of AVX-512 (12 rows, two panels), and the matmul of bf16
// pairs with a software model in place of VDPBF16PS. The code under test is compiled here for AVX2, in a namespace of
// its own.
#include "support/kernel_case.h"

#define LLMOPS_ISA matmul_wide
#define LLMOPS_ISA_matmul_wide 2
#define LLMOPS_MATMUL_WIDE

#include "base/checked.h"
#include "kernels/cpu/matmul_blocks.h"
#include "kernels/cpu/tasks.h"
#include "kernels/cpu/vec.h"

#include "kernels/gelu.h"
#include "kernels/cpu/lanes.h"

#include "kernels/cpu/matmul_kernel.h"
#include "kernels/cpu/matmul_pack.h"

#include "kernels/cpu/matmul_driver.h"

namespace llmops::LLMOPS_ISA {
namespace {

// Two fused multiply-adds, the odd element first (Intel SDM, VDPBF16PS), without its flush of denormals.
struct ModelDot {
  LLMOPS_INLINE F32x16 add(F32x16 left, F32x16 right, F32x16 sum) {
    const I32x16 high = set1_int(static_cast<int32_t>(0xffff0000u)), a = bits_of(left), b = bits_of(right);
    sum = fma(from_bits(a & high), from_bits(b & high), sum);
    return fma(from_bits(shift_left<16>(a)), from_bits(shift_left<16>(b)), sum);
  }
};

}  // namespace

Status matmul_f32(Stream& stream, const MatmulArgs& args) { return run_matmul<F32>(stream, args); }
Status matmul_dots(Stream& stream, const MatmulArgs& args) { return run_matmul<Dots<ModelDot>>(stream, args); }

}  // namespace llmops::LLMOPS_ISA

#include "kernels/cpu/vec_end.h"

namespace llmops::test {
namespace {

struct Shape {
  int64_t m, n, k;
};
// Around 12 rows, 32 columns, odd k and the chain of 512; several tasks; no k.
constexpr Shape kShapes[] = {{1, 1, 1},   {12, 32, 2},   {11, 31, 3},  {13, 33, 64},  {24, 48, 513}, {5, 65, 1027},
                             {25, 17, 9}, {70, 800, 21}, {300, 70, 5}, {270, 40, 600}, {4, 3, 0}};

GuardedTensor matrix(DType dtype, int64_t rows, int64_t columns, bool transposed, uint64_t seed) {
  const Dimensions dims = transposed ? Dimensions{columns, rows} : Dimensions{rows, columns};
  return random_tensor(dtype, dims, seed, padded_strides(dims, 3));
}

// Chains of 256 pairs; a last single k is paired with zero.
float defined_dots(const GuardedTensor& a, const GuardedTensor& b, const MatmulArgs& args, int64_t m, int64_t n,
                   int64_t k_end) {
  const int64_t rows = args.out.dim[0], columns = args.out.dim[1];
  const auto product = [&](int64_t k, float sum) {
    if (k >= k_end) return sum;
    const double left = a.at(args.a_trans ? k * rows + m : m * k_end + k);
    const double right = b.at(args.b_trans ? n * k_end + k : k * columns + n);
    return std::fma(static_cast<float>(left), static_cast<float>(right), sum);
  };
  float sum = 0;
  for (int64_t k0 = 0; k0 < k_end; k0 += 512) {
    float chain = 0;
    for (int64_t k = k0; k < std::min(k_end, k0 + 512); k += 2) chain = product(k, product(k + 1, chain));
    sum = k0 == 0 ? chain : sum + chain;
  }
  return sum;
}

void check_form(Device& device, DType dtype, const Shape& s, bool a_trans, bool b_trans, bool packed) {
  CAPTURE(s.m);
  CAPTURE(s.n);
  CAPTURE(s.k);
  CAPTURE(a_trans);
  CAPTURE(b_trans);
  CAPTURE(packed);
  const GuardedTensor a = matrix(dtype, s.m, s.k, a_trans, 1), b = matrix(dtype, s.k, s.n, b_trans, 2);
  GuardedTensor out(DType::f32, {s.m, s.n}, padded_strides({s.m, s.n}, 1)), want(DType::f32, {s.m, s.n});
  GuardedTensor panels(DType::u8, {matmul_pack_bytes(dtype, s.k, s.n)});
  MatmulArgs args = {};
  args.a = a;
  args.b.data = b;
  args.out = out;
  args.a_trans = a_trans;
  args.b_trans = b_trans;
  if (dtype == DType::f32) {
    MatmulArgs same = args;
    same.out = want;
    REQUIRE(run_on(device, matmul, same) == "");
  } else {
    for (int64_t i = 0; i < want.elems(); ++i) want.set(i, defined_dots(a, b, args, i / s.n, i % s.n, s.k));
  }
  if (packed) {
    REQUIRE(run_on(device, matmul_pack, MatmulPackArgs{b, panels, b_trans}) == "");
    args.b = {panels.view(), Pack::panels};
  }
  const Status status = dtype == DType::f32 ? matmul_wide::matmul_f32(device.compute(), args)
                                            : matmul_wide::matmul_dots(device.compute(), args);
  REQUIRE(status.ok());
  CHECK(difference_bits(out, want) == "");
}

}  // namespace

TEST_CASE("matmul: the tile of AVX-512 and the dot products of bf16 pairs, modelled on AVX2") {
  if (!isa_runs(Isa::avx2)) {
    MESSAGE("skipped: this CPU has no AVX2");
    return;
  }
  for (int threads : {1, 3}) {
    const auto device = open_device({.threads = threads});
    for (const Shape& s : kShapes)
      for (DType dtype : {DType::f32, DType::bf16})
        for (int form = 0; form < 8; ++form)
          check_form(*device, dtype, s, form % 2 == 1, form / 2 % 2 == 1, form / 4 == 1);
  }
}

}  // namespace llmops::test
