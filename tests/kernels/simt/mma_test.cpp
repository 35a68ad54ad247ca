// Tensor core fragments and asynchronous copies on the SIMT shim: every storage order of the operands gives the product,
// and the mistakes that the twins are there for are found.
#include "kernels/cuda/copy.h"
#include "kernels/cuda/mma.h"
#include "support/cuda_case.h"

namespace llmops::test {
namespace {

constexpr int kM = 16, kN = 16, kK = 16;

// Rows of 16 elements and 8 unused ones, as kernels pad them.
struct Operands {
  bf16 a[16][24], b[16][24];
};

enum class Mistake : uint8_t { none, no_wait, wrong_group, shifted_row, shifted_copy, lane_missing };

// c[m,n] = a[m,k] * b[k,n] by one warp; a is stored [m,k] or [k,m], b [n,k] or [k,n].
template <bool kTransA, bool kTransB>
__global__ void product(const bf16* a, const bf16* b, float* c, Mistake mistake) {
  Operands& shared = cuda::block_shared<Operands>();
  const int lane = static_cast<int>(threadIdx.x), row = lane / 2, half = lane % 2 * 8;
  const int shift = mistake == Mistake::shifted_copy ? 1 : 0;
  cuda::copy_async(&shared.a[row][half], a + row * 16 + half + shift);
  if (mistake == Mistake::wrong_group) cuda::copy_commit();
  cuda::copy_async(&shared.b[row][half], b + row * 16 + half);
  cuda::copy_commit();
  if (mistake == Mistake::wrong_group) cuda::copy_wait<1>();
  else if (mistake != Mistake::no_wait) cuda::copy_wait<0>();
  __syncwarp();
  if (mistake == Mistake::lane_missing && lane == 5) return;

  const int r = lane % 8, first = lane / 8 % 2 * 8, second = lane / 16 * 8;  // of the four matrices
  cuda::MmaA left;
  const int off = mistake == Mistake::shifted_row ? 1 : 0;
  if (kTransA) cuda::load_matrices<true>(left.r, &shared.a[second + r][first]);
  else cuda::load_matrices<false>(left.r, &shared.a[first + r][second + off]);
  unsigned right[4];
  if (kTransB) cuda::load_matrices<false>(right, &shared.b[second + r][first]);
  else cuda::load_matrices<true>(right, &shared.b[first + r][second]);
  for (int n = 0; n < 2; ++n) {
    cuda::MmaC sum = {{1, 2, 3, 4}};
    cuda::mma(sum, left, {{right[2 * n], right[2 * n + 1]}});
    for (int i = 0; i < 4; ++i)
      c[(lane / 4 + i / 2 * 8) * kN + n * 8 + lane % 4 * 2 + i % 2] = sum.r[i] - static_cast<float>(i + 1);
  }
}

struct Rig {
  std::unique_ptr<Device> device;
  GuardedTensor a = random_tensor(DType::bf16, {16, 16}, 1), b = random_tensor(DType::bf16, {16, 16}, 2);
  explicit Rig(simt::Schedule schedule) {
    simt::set_schedule(schedule);
    device = open_cuda_device();
    for (GuardedTensor* x : {&a, &b})  // small integers: the product is exact
      for (int64_t i = 0; i < x->elems(); ++i) x->set(i, std::round(x->at(i) * 8));
  }
  ~Rig() {
    simt::reset();
    simt::set_schedule({});
  }
  // The product, or the report of what failed.
  template <bool kTransA, bool kTransB>
  Result<std::vector<float>> run(Mistake mistake = Mistake::none) {
    const Mirror on_a(*device, a), on_b(*device, b);
    Buffer c = device->alloc(kM * kN * 4, Category::transient).take();
    LLMOPS_TRY(cuda::launch(device->compute().native(), 1, 32, sizeof(Operands), "product", product<kTransA, kTransB>,
                            static_cast<const bf16*>(on_a.view().data), static_cast<const bf16*>(on_b.view().data),
                            c.as<float>(), mistake));
    std::vector<float> host(kM * kN);
    device->compute().copy(host.data(), c.data(), c.bytes());
    LLMOPS_TRY(device->compute().sync());
    return host;
  }
  double left(int m, int k, bool trans) const { return a.at(trans ? k * 16 + m : m * 16 + k); }
  double right(int k, int n, bool trans) const { return b.at(trans ? n * 16 + k : k * 16 + n); }
};

template <bool kTransA, bool kTransB>
void check_product(simt::Schedule schedule) {
  CAPTURE(kTransA);
  CAPTURE(kTransB);
  Rig rig(schedule);
  const auto got = rig.run<kTransA, kTransB>();
  REQUIRE_MESSAGE(got.ok(), got.status().message());
  for (int m = 0; m < kM; ++m)
    for (int n = 0; n < kN; ++n) {
      double want = 0;
      for (int k = 0; k < kK; ++k) want += rig.left(m, k, kTransA) * rig.right(k, n, kTransB);
      REQUIRE((*got)[size_t(m * kN + n)] == want);
    }
}

TEST_CASE("mma: operands stored either way give the product") {
  for (const simt::Schedule schedule : schedules()) {
    check_product<false, false>(schedule);
    check_product<false, true>(schedule);
    check_product<true, false>(schedule);
    check_product<true, true>(schedule);
  }
}

TEST_CASE("an asynchronous copy that is not waited for is NaN under every schedule") {
  for (const simt::Schedule schedule : schedules())
    for (const Mistake mistake : {Mistake::no_wait, Mistake::wrong_group}) {
      const auto got = Rig(schedule).run<false, true>(mistake);
      REQUIRE(got.ok());
      for (float x : *got) CHECK(std::isnan(x));
    }
}

TEST_CASE("rows and copies off 16 bytes, and a warp without one of its lanes, are errors") {
  const auto failure = [](Mistake mistake) { return Rig({}).run<false, true>(mistake).status().message(); };
  const auto has = [](const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; };
  const std::string row = failure(Mistake::shifted_row), copy = failure(Mistake::shifted_copy);
  CHECK_MESSAGE(has(row, "ldmatrix of lanes ffffffff: a row does not start on 16 bytes"), row);
  CHECK_MESSAGE(has(copy, "lane 0 of warp 0: copy_async: a side is not on 16 bytes"), copy);
  const std::string missing = failure(Mistake::lane_missing);
  CHECK_MESSAGE(has(missing, "lane 5 of warp 0: done"), missing);
}

}  // namespace
}  // namespace llmops::test
