// Deliberately broken kernels, one of each kind, through the harness that holds the cuda table (cuda_case.h): it passes
// the sound kernel and fails each of the others. What the shim itself reports has its own tests in shim_test.cpp;
// atomics on floats do not compile (float_atomics.cpp).
#include "kernels/cuda/device.h"
#include "support/cuda_case.h"
#include "support/last_words.h"

namespace llmops::test {
namespace {

enum class Defect : uint8_t {
  none,
  no_barrier,      // shared memory is read before others have written it
  no_write,        // ... or although one thread never writes it
  past_end,        // one element more than there are
  past_end_read,   // ... of an operand, for nothing
  mask_too_small,  // a shuffle by lanes that its mask leaves out
  mask_too_large,  // a shuffle that waits for lanes that do not come
};

constexpr unsigned kThreads = 64;

struct Exchange {
  float b[kThreads];
};

// out = a + b, where a reaches its thread by a shuffle from its neighbour and b through shared memory from the opposite
// thread.
template <Defect kDefect>
__global__ void __launch_bounds__(kThreads) roundabout_add(const float* a, const float* b, float* out, int64_t n) {
  Exchange& shared = cuda::block_shared<Exchange>();
  const unsigned mine = threadIdx.x, opposite = kThreads - 1 - mine;
  const int64_t first = int64_t{blockIdx.x} * kThreads, i = first + opposite;
  const int64_t end = kDefect == Defect::past_end ? n + 1 : n;
  const int64_t given = kDefect == Defect::past_end_read ? n + 1 : n;
  if (kDefect != Defect::no_write || mine != 5) shared.b[mine] = first + mine < given ? b[first + mine] : 0;
  if (kDefect != Defect::no_barrier) __syncthreads();
  if (kDefect == Defect::mask_too_large && i >= end) return;
  const unsigned mask = kDefect == Defect::mask_too_small ? 0xffffu : ~0u;
  const float own_a = __shfl_xor_sync(mask, (i ^ 1) < n ? a[i ^ 1] : 0, 1);
  if (i < end) out[i] = own_a + shared.b[opposite];
}

// The op `add` with that kernel in place of the cuda table's.
template <Defect kDefect>
Status broken_add(Stream& stream, const AddArgs& args) {
  if (stream.device().kind() == DeviceKind::cpu) return add(stream, args);
  const int64_t n = args.a.dim[0];
  return cuda::launch(stream.native(), static_cast<unsigned>((n + kThreads - 1) / kThreads), kThreads, sizeof(Exchange),
                      "roundabout_add", roundabout_add<kDefect>, static_cast<const float*>(args.a.data),
                      static_cast<const float*>(args.b.data), static_cast<float*>(args.out.data), n);
}

// "" or what the harness found under one schedule. The last block has 37 elements.
template <Defect kDefect>
std::string found(simt::Schedule schedule) {
  constexpr int64_t kSize = 3 * kThreads + 37;
  GuardedTensor a = random_tensor(DType::f32, {kSize}, 1), b = random_tensor(DType::f32, {kSize}, 2);
  GuardedTensor out(DType::f32, {kSize});
  const std::string text = cuda_against_others(broken_add<kDefect>, {{&a}, {&b}, {&out, Bound{}}},
                                               [](auto& t) { return AddArgs{t[0], t[1], t[2]}; }, {schedule});
  simt::reset();
  simt::set_schedule({});
  return text;
}

// Under every schedule the harness says something with `part` in it.
template <Defect kDefect>
void check_found(std::string_view part) {
  for (const simt::Schedule schedule : schedules()) {
    const std::string text = found<kDefect>(schedule);
    CHECK_MESSAGE((!text.empty() && text.find(part) != std::string::npos), text);
  }
}

TEST_CASE("broken kernels: the sound one passes") {
  for (const simt::Schedule schedule : schedules()) CHECK(found<Defect::none>(schedule) == "");
}

// The shuffle between the write and the read is no barrier: a warp may be past it before another has begun.
TEST_CASE("broken kernels: a missing __syncthreads gives NaN") { check_found<Defect::no_barrier>("nan"); }

TEST_CASE("broken kernels: shared memory that was not initialised gives NaN") { check_found<Defect::no_write>("nan"); }

// A read that nothing comes of is found by AddressSanitizer only, which ends the process.
TEST_CASE("broken kernels: one element too many is found") {
#if defined(__SANITIZE_ADDRESS__)
  for (const simt::Schedule schedule : schedules())
    for (const auto& broken : {found<Defect::past_end>, found<Defect::past_end_read>}) {
      const std::string text = last_words([&] { broken(schedule); });
      CHECK_MESSAGE(text.find("use-after-poison") != std::string::npos, text);
    }
#else
  check_found<Defect::past_end>("byte 916 of an allocation of 916 was written");
#endif
}

TEST_CASE("broken kernels: a warp mask without its caller, and one with lanes that do not come, end the launch") {
  check_found<Defect::mask_too_small>("__shfl_xor_sync of lanes 0000ffff, which leave the caller out");
  check_found<Defect::mask_too_large>("__shfl_xor_sync of lanes ffffffff");
}

// y = (x + x) + x over two streams: the second addition reads what the first, on the other stream, has written.
TEST_CASE("broken kernels: a missing wait between streams is wrong under some order of them, with it none is") {
  const std::vector<float> x(4, 1), want(4, 3);
  int wrong = 0;
  for (uint64_t seed = 1; seed <= 16; ++seed)
    for (const bool waits : {true, false}) {
      simt::set_schedule({simt::Order::seeded, seed});
      const auto device = open_cuda_device();
      const auto other = device->new_stream();
      Buffer buffer = device->alloc(3 * 16, Category::transient).take();
      const TensorView in = buffer.view(DType::f32, {4}), twice = buffer.view(DType::f32, {4}, 16);
      const TensorView thrice = buffer.view(DType::f32, {4}, 32);
      device->compute().copy(in.data, x.data(), 16);
      CHECK(add(device->compute(), {in, in, twice}).ok());
      if (waits) other->wait(device->compute().record());
      CHECK(add(*other, {twice, in, thrice}).ok());
      std::vector<float> got(4);
      other->copy(got.data(), thrice.data, 16);
      CHECK(other->sync().ok());
      CHECK(device->compute().sync().ok());
      if (waits) CHECK(got == want);
      wrong += got != want;
    }
  CHECK(wrong > 0);
  simt::set_schedule({});
}

}  // namespace
}  // namespace llmops::test
