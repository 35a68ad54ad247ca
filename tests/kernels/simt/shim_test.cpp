// The SIMT shim itself: warp operations have CUDA's results, and each of the defects it is there for is found, by kernels
// that have them.
#include "kernels/cuda/device.h"
#include "support/cuda_case.h"
#include "support/last_words.h"

namespace llmops::test {
namespace {

constexpr unsigned kThreads = 256;

struct Exchange {
  float v[kThreads];
};

// out[i] = in[255 - i] through shared memory.
template <bool kBarrier, bool kWrite = true>
__global__ void reverse(const float* in, float* out) {
  Exchange& shared = cuda::block_shared<Exchange>();
  const unsigned i = threadIdx.x;
  if (kWrite) shared.v[i] = in[blockIdx.x * kThreads + i];
  if (kBarrier) __syncthreads();
  out[blockIdx.x * kThreads + i] = shared.v[kThreads - 1 - i];
}

__global__ void touch(float* data, int64_t at, float* out) {
  if (out != nullptr) *out = data[at];
  else data[at] = 1;
}

// What one warp computes, with room for a result per lane.
template <class Body>
__global__ void lanes(Body body, float* out) {
  out[threadIdx.x] = static_cast<float>(body(threadIdx.x));
}

// A cuda device with a float buffer; failures are forgotten at the end.
struct Rig {
  std::unique_ptr<Device> device;
  Buffer in, out;
  explicit Rig(simt::Schedule schedule = {}, int64_t floats = 2 * kThreads) {
    simt::set_schedule(schedule);
    device = open_cuda_device();
    in = device->alloc(floats * 4, Category::transient).take();
    out = device->alloc(floats * 4, Category::transient).take();
  }
  ~Rig() {
    simt::reset();
    simt::set_schedule({});
  }
  void* stream() { return device->compute().native(); }
  std::vector<float> download(const Buffer& buffer) {
    std::vector<float> host(size_t(buffer.bytes() / 4), -1);
    device->compute().copy(host.data(), buffer.data(), buffer.bytes());
    const Status status = device->compute().sync();
    CHECK_MESSAGE(status.ok(), status.message());
    return host;
  }
  template <class Kernel>
  std::vector<float> reversed(Kernel kernel) {
    std::vector<float> host;
    for (unsigned i = 0; i < 2 * kThreads; ++i) host.push_back(float(i));
    device->compute().copy(in.data(), host.data(), in.bytes());
    CHECK(cuda::launch(stream(), 2, kThreads, sizeof(Exchange), "reverse", kernel, in.as<float>(), out.as<float>()).ok());
    return download(out);
  }
  template <class Body>
  std::vector<float> warp(Body body, unsigned threads = 32) {
    CHECK(cuda::launch(stream(), 1, threads, 0, "lanes", lanes<Body>, body, out.as<float>()).ok());
    return download(out);
  }
  template <class Body>
  std::string failure(Body body, unsigned threads = 32) {
    CHECK(cuda::launch(stream(), 1, threads, 0, "lanes", lanes<Body>, body, out.as<float>()).ok());
    const Status status = device->compute().sync();
    CHECK(status.code() == Code::peer);
    return status.message();
  }
};

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST_CASE("a kernel with its barrier is right under every schedule; without it, wrong under every one") {
  for (const simt::Schedule schedule : schedules()) {
    CAPTURE(int(schedule.order));
    std::vector<float> want;
    for (unsigned i = 0; i < 2 * kThreads; ++i) want.push_back(float(i / kThreads * kThreads + kThreads - 1 - i % kThreads));
    CHECK(Rig(schedule).reversed(reverse<true>) == want);
    CHECK(Rig(schedule).reversed(reverse<false>) != want);
  }
}

TEST_CASE("shared memory that nobody wrote is NaN") {
  for (const float x : Rig().reversed(reverse<true, false>)) CHECK(std::isnan(x));
}

TEST_CASE("fresh device memory is zero by contract; a buffer's size is counted") {
  Rig rig;
  for (const float x : rig.download(rig.in)) CHECK(x == 0);
  CHECK(rig.device->bytes_in_use(Category::transient) == 2 * 2 * kThreads * 4);
  CHECK(rig.device->kind() == DeviceKind::cuda);
  CHECK(rig.device->id() == DeviceId{0});
}

TEST_CASE("one element past a buffer, or before it, is found") {
  for (const int64_t at : {int64_t{-1}, int64_t{5}}) {
    CAPTURE(at);
    const auto touched = [at](bool by_read) {
      Rig rig({}, 5);
      float* const out = by_read ? rig.out.as<float>() : nullptr;
      CHECK(cuda::launch(rig.stream(), 1, 1, 0, "touch", touch, rig.in.as<float>(), at, out).ok());
      const Status status = rig.device->compute().sync();
      return by_read && status.ok() ? fmt::format("{}", rig.download(rig.out)[0]) : status.message();
    };
#if defined(__SANITIZE_ADDRESS__)
    for (const bool by_read : {false, true}) CHECK(contains(last_words([&] { touched(by_read); }), "use-after-poison"));
#else
    CHECK(contains(touched(false), fmt::format("byte {} of an allocation of 20 was written", at * 4)));
    CHECK(contains(touched(true), "nan"));
#endif
  }
}

TEST_CASE("host code that touches device memory is named and ends") {
  const std::string text = last_words([] { Rig().in.as<volatile float>()[3] = 1; });
  CHECK_MESSAGE(contains(text, "simt: host code touched device memory: byte 12 of an allocation of 2048"), text);
}

TEST_CASE("kernels and copies run late: a missing sync shows") {
  Rig rig;
  float host = 7;
  CHECK(cuda::launch(rig.stream(), 1, 1, 0, "touch", touch, rig.out.as<float>(), 0, nullptr).ok());
  rig.device->compute().copy(&host, rig.out.data(), 4);
  CHECK(host == 7);
  CHECK(rig.device->compute().sync().ok());
  CHECK(host == 1);
}

TEST_CASE("streams run in the schedule's order: a missing wait shows, an event cures it") {
  int wrong = 0;
  for (uint64_t seed = 1; seed <= 16; ++seed) {
    for (const bool waits : {true, false}) {
      Rig rig({simt::Order::seeded, seed});
      auto other = rig.device->new_stream();
      float host = 7;
      CHECK(cuda::launch(rig.stream(), 1, 1, 0, "touch", touch, rig.out.as<float>(), 0, nullptr).ok());
      const Event done = rig.device->compute().record();
      if (waits) other->wait(done);
      other->copy(&host, rig.out.data(), 4);
      CHECK(other->sync().ok());
      if (waits) CHECK(host == 1);
      else wrong += host != 1;
      while (!done.complete()) {
      }
      CHECK(rig.device->compute().sync(10.0).ok());
    }
  }
  CHECK(wrong > 0);
}

TEST_CASE("warp operations give what CUDA gives") {
  for (const simt::Schedule schedule : schedules()) {
    Rig rig(schedule);
    const auto twice = rig.warp([](unsigned i) { return 1000 * __shfl_xor_sync(~0u, int(i), 5) + __shfl_sync(~0u, int(i), 9); });
    const auto ends = rig.warp([](unsigned i) { return 1000 * __shfl_down_sync(~0u, int(i), 3, 16) + __shfl_up_sync(~0u, int(i), 3, 16); });
    const auto wide = rig.warp([](unsigned i) { return __shfl_xor_sync(~0u, double(i) * 0.5, 1); });
    const auto votes = rig.warp([](unsigned i) {
      __syncwarp();
      return __ballot_sync(~0u, i % 3 == 0) == 0x49249249u && __any_sync(~0u, i == 7) && !__all_sync(~0u, i != 7);
    });
    const auto half = rig.warp([](unsigned i) { return __shfl_xor_sync(i < 16 ? 0xffffu : 0xffff0000u, float(i), i < 16 ? 1 : 2); });
    const auto none = rig.warp([](unsigned i) { return i < 16 ? __shfl_sync(0xffffu, 1.0f, 20) : 0.0f; });
    for (int i = 0; i < 32; ++i) {
      CHECK(twice[size_t(i)] == float(1000 * (i ^ 5) + 9));
      CHECK(ends[size_t(i)] == float(1000 * (i % 16 + 3 > 15 ? i : i + 3) + (i % 16 < 3 ? i : i - 3)));
      CHECK(wide[size_t(i)] == float(i ^ 1) * 0.5f);
      CHECK(votes[size_t(i)] == 1);
      CHECK(half[size_t(i)] == float(i ^ (i < 16 ? 1 : 2)));
      CHECK((i < 16 ? std::isnan(none[size_t(i)]) : none[size_t(i)] == 0));  // lane 20 is outside the mask
    }
  }
}

TEST_CASE("threads that wait for each other in vain are told apart") {
  const std::string text = Rig().failure([](unsigned i) {
    if (i < 16) __syncwarp();
    else __syncthreads();
    return 0;
  });
  CHECK_MESSAGE(contains(text, "lanes, block (0,0,0): deadlock"), text);
  CHECK_MESSAGE(contains(text, "thread (0,0,0), lane 0 of warp 0: __syncwarp of lanes ffffffff"), text);
  CHECK_MESSAGE(contains(text, "thread (16,0,0), lane 16 of warp 0: __syncthreads"), text);
}

TEST_CASE("a warp operation whose lanes disagree, ended, or are not there is an error") {
  const std::string differ = Rig().failure([](unsigned i) {
    return i == 3 ? int(__ballot_sync(~0u, 1)) : __shfl_xor_sync(~0u, int(i), 1);
  });
  CHECK_MESSAGE((contains(differ, "__ballot_sync") && contains(differ, "__shfl_xor_sync")), differ);
  const std::string ended = Rig().failure([](unsigned i) { return i == 0 ? 0 : __shfl_sync(~0u, int(i), 1); });
  CHECK_MESSAGE(contains(ended, "lane 0 of warp 0: done"), ended);
  const std::string outside = Rig().failure([](unsigned i) { return __shfl_sync(0x7fffffffu, int(i), 1); });
  CHECK_MESSAGE(contains(outside, "lane 31 of warp 0: __shfl_sync of lanes 7fffffff, which leave the caller out"), outside);
  const std::string missing = Rig().failure([](unsigned i) { return __shfl_sync(~0u, int(i), 1); }, 40);
  CHECK_MESSAGE(contains(missing, "the block has no lane 8"), missing);
}

TEST_CASE("threads that end early do not hold up a barrier") {
  const auto got = Rig().warp([](unsigned i) { return i % 2 ? 1 : (__syncthreads(), 2); });
  for (size_t i = 0; i < 32; ++i) CHECK(got[i] == (i % 2 ? 1 : 2));
}

TEST_CASE("a launch beyond the device's limits, or with too little shared memory, is refused") {
  Rig rig;
  const Status many = cuda::launch(rig.stream(), 1, 2048, 0, "touch", touch, rig.in.as<float>(), 0, nullptr);
  CHECK(many.message() == "touch: cudaErrorInvalidConfiguration (9): cudaErrorInvalidConfiguration");
  CHECK(many.code() == Code::peer);
  CHECK(cuda::launch(rig.stream(), 2, kThreads, 16, "reverse", reverse<true>, rig.in.as<float>(), rig.out.as<float>()).ok());
  const std::string text = rig.device->compute().sync().message();
  CHECK_MESSAGE(contains(text, "1024 bytes of shared memory are used, but the launch gives 16"), text);
}

TEST_CASE("out of device memory names the category and what is in use") {
  Rig rig;
  const auto buffer = rig.device->alloc(int64_t{1} << 40, Category::kv);
  REQUIRE_FALSE(buffer.ok());
  CHECK(buffer.status().code() == Code::io);
  CHECK(contains(buffer.status().message(), "out of memory: kv needs 1.00 TiB more; in use: transient 4.00 KiB"));
  CHECK(rig.device->alloc(16, Category::kv).ok());
}

TEST_CASE("a device that cannot be opened says what was looked for") {
  const auto message = [](int index, cudaError_t error) {
    simt::set_device_count_error(error);
    const auto device = Device::open_cuda(index);
    simt::set_device_count_error(cudaSuccess);
    CHECK(device.status().code() == Code::io);
    return device.status().message();
  };
  CHECK(contains(message(0, cudaErrorInsufficientDriver), "libcuda.so.1; cudaGetDeviceCount gave error 35"));
  CHECK(contains(message(0, cudaErrorNoDevice), "sees no GPU (cudaGetDeviceCount gave error 100; CUDA_VISIBLE_DEVICES is "));
  CHECK(message(1, cudaSuccess) == "CUDA device 1: this machine has 1, numbered from 0");
  CHECK(message(-1, cudaSuccess) == "CUDA device -1: this machine has 1, numbered from 0");
}

}  // namespace
}  // namespace llmops::test
