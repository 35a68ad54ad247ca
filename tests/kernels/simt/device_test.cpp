// The runtime on an emulated device: memory in stream order, the host's side, recorded work, and waits that end.
#include "base/run.h"
#include "kernels/cuda/device.h"
#include "support/cuda_case.h"

namespace llmops::test {
namespace {

constexpr unsigned kCount = 64;

__global__ void add_one(float* data) { data[threadIdx.x] += 1; }

struct Rig {
  std::unique_ptr<Device> device;
  explicit Rig(simt::Schedule schedule = {}) {
    simt::set_schedule(schedule);
    device = open_cuda_device();
  }
  ~Rig() {
    device.reset();
    simt::reset();
    simt::set_schedule({});
  }
  Stream& stream() const { return device->compute(); }
  Status add(Stream& stream, const Buffer& data) const {
    return cuda::launch(stream.native(), 1, kCount, 0, "add_one", add_one, data.as<float>());
  }
};

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST_CASE("memory is zeroed before any stream uses it, and stays while one does") {
  for (const simt::Schedule schedule : schedules()) {
    Rig rig(schedule);
    auto other = rig.device->new_stream();
    float host[kCount];
    for (int round = 0; round < 3; ++round) {
      Buffer data = rig.device->alloc(sizeof host, Category::transient).take();
      CHECK(rig.add(*other, data).ok());
      other->copy(host, data.data(), sizeof host);
      data = Buffer();  // the copy has not run yet
      const Buffer next = rig.device->alloc(sizeof host, Category::transient).take();
      CHECK(rig.add(rig.stream(), next).ok());
      CHECK(other->sync().ok());
      CHECK(rig.stream().sync().ok());
      for (float x : host) CHECK(x == 1);
    }
    CHECK(rig.device->bytes_in_use(Category::transient) == 0);
    CHECK(rig.device->bytes_peak(Category::transient) == sizeof host);
  }
}

TEST_CASE("memory is zeroed before a stream that is made after it uses it") {
  for (const simt::Schedule schedule : schedules()) {
    Rig rig(schedule);
    const Buffer data = rig.device->alloc(sizeof(float) * kCount, Category::transient).take();
    const auto late = rig.device->new_stream();
    float host[kCount];
    CHECK(rig.add(*late, data).ok());
    late->copy(host, data.data(), sizeof host);
    CHECK(late->sync().ok());
    for (float x : host) CHECK(x == 1);
  }
}

TEST_CASE("the host's side is pinned memory of its own, counted as staging; on the CPU it is the memory") {
  Rig rig;
  const Buffer data = rig.device->alloc(sizeof(float) * kCount, Category::transient).take();
  const HostSide host = HostSide::of(*rig.device, data).take();
  CHECK(host.as<void>() != data.data());
  CHECK(rig.device->bytes_in_use(Category::staging) == sizeof(float) * kCount);
  for (unsigned i = 0; i < kCount; ++i) host.as<float>()[i] = float(i);
  host.push(rig.stream());
  CHECK(rig.add(rig.stream(), data).ok());
  host.pull(rig.stream(), 4, 8);
  CHECK(rig.stream().sync().ok());
  for (unsigned i = 0; i < 4; ++i) CHECK(host.as<float>()[i] == float(i == 1 || i == 2 ? i + 1 : i));

  const auto cpu = Device::open_cpu({.threads = 1}).take();
  const Buffer plain = cpu->alloc(64, Category::transient).take();
  CHECK(HostSide::of(*cpu, plain).take().as<void>() == plain.data());
  CHECK(cpu->bytes_in_use(Category::staging) == 0);
}

TEST_CASE("rows are copied with their distances, and nothing between them") {
  Rig rig;
  const Buffer data = rig.device->alloc(60, Category::transient).take();
  std::vector<uint8_t> from(60), to(60, 9);
  for (size_t i = 0; i < from.size(); ++i) from[i] = uint8_t(i);
  rig.stream().copy_rows(data.data(), 20, from.data(), 15, 7, 3);
  rig.stream().copy(to.data(), data.data(), 60);
  CHECK(rig.stream().sync().ok());
  for (size_t i = 0; i < to.size(); ++i) CHECK(to[i] == (i % 20 < 7 ? i / 20 * 15 + i % 20 : 0));
}

TEST_CASE("recorded work runs when it is replayed, on what memory then holds, in stream order") {
  for (const simt::Schedule schedule : schedules()) {
    Rig rig(schedule);
    Stream& stream = rig.stream();
    REQUIRE(stream.captures());
    const Buffer data = rig.device->alloc(sizeof(float) * kCount, Category::transient).take();
    const HostSide host = HostSide::of(*rig.device, data).take();
    auto graph = stream.capture([&]() -> Status {
      LLMOPS_TRY(rig.add(stream, data));
      return rig.add(stream, data);
    });
    REQUIRE_MESSAGE(graph.ok(), graph.status().message());
    host.pull(stream);
    CHECK(stream.sync().ok());
    CHECK(host.as<float>()[3] == 0);
    for (float value : {10.0f, 20.0f}) {
      host.as<float>()[3] = value;
      host.push(stream);
      stream.replay(*graph);
      stream.replay(*graph);
      host.pull(stream);
      CHECK(stream.sync().ok());
      CHECK(host.as<float>()[3] == value + 4);
    }
  }
}

TEST_CASE("a recording that needs more workspace, or fails, is an error and leaves the stream as it was") {
  Rig rig;
  Stream& stream = rig.stream();
  CHECK(stream.workspace(100).ok());
  const int64_t moves = stream.workspace_moves();
  const auto larger = stream.capture([&] { return stream.workspace(200).status(); });
  CHECK(contains(larger.status().message(), "needs 200 bytes of workspace, found 100"));
  CHECK(stream.capture([] { return invalid_error("no"); }).status().message() == "no");
  CHECK(stream.workspace_moves() == moves);
  CHECK(stream.workspace(200).ok());
  CHECK(stream.workspace_moves() == moves + 1);
  CHECK(stream.sync().ok());

  const auto cpu = Device::open_cpu({.threads = 1}).take();
  CHECK_FALSE(cpu->compute().captures());
  CHECK(cpu->compute().capture([] { return Status(); }).status().code() == Code::usage);
}

TEST_CASE("a wait for work that never ends is ended by a watch or by its deadline") {
  Rig rig;
  const auto hang = [&] {
    simt::enqueue_external(static_cast<cudaStream_t>(rig.stream().native()),
                           {[] { return std::string(); }, [] { return false; }, [] { return std::string(); }});
  };
  hang();
  CHECK(contains(rig.stream().sync(0.02).message(), "still has work after the deadline of 0.02 s"));
  int looks = 0;
  const int number = rig.device->watch([&] { return ++looks == 5 ? peer_error("a peer is gone") : Status(); });
  const Status ended = rig.stream().sync();
  CHECK(ended.message() == "a peer is gone");
  CHECK(ended.code() == Code::peer);
  CHECK(looks == 5);
  CHECK(rig.stream().sync().message() == "a peer is gone");  // it sticks
  rig.device->unwatch(number);
}

TEST_CASE("a device that comes no further until its deadline has failed, also while the host gives it more; a slow one has not") {
  {
    Rig rig;
    rig.device->set_deadline(0.1);
    const Buffer data = rig.device->alloc(sizeof(float) * kCount, Category::transient).take();
    simt::enqueue_external(static_cast<cudaStream_t>(rig.stream().native()),
                           {[] { return std::string(); }, [] { return false; }, [] { return std::string(); }});
    int given = 0;
    for (int i = 0; i < 1000; ++i) rig.stream().enqueue([&] { return ++given, rig.add(rig.stream(), data); }, "add");
    CHECK(given == 5 * 64);  // CUDA would have held the host at its 1024th launch
    CHECK(contains(rig.stream().sync().message(), "the device came no further for 0.1 s"));
  }
  Rig rig;
  rig.device->set_deadline(1);
  const Buffer data = rig.device->alloc(sizeof(float) * kCount, Category::transient).take();
  for (int i = 0; i < 4; ++i) {
    const auto end_s = std::make_shared<double>(0);
    simt::enqueue_external(static_cast<cudaStream_t>(rig.stream().native()),
                           {[=] { return *end_s = monotonic_s() + 0.3, std::string(); },
                            [=] { return monotonic_s() > *end_s; }, [] { return std::string(); }});
    for (int k = 0; k < 64; ++k) rig.stream().enqueue([&] { return rig.add(rig.stream(), data); }, "add");
  }
  CHECK(rig.stream().sync().message() == "");  // 1.2 s
}

TEST_CASE("a failure that only the wait shows says which calls it may be of") {
  Rig rig;
  const Buffer data = rig.device->alloc(sizeof(float) * kCount, Category::transient).take();
  rig.stream().enqueue(
      [&] {
        return cuda::launch(rig.stream().native(), 1, 32, 0, "lanes", +[](float* x) { *x = __shfl_sync(0u, *x, 0); },
                            data.as<float>());
      },
      "first_op");
  rig.stream().enqueue([&] { return rig.add(rig.stream(), data); }, "last_op");
  const Status status = rig.stream().sync();
  CHECK(status.code() == Code::peer);
  CHECK_MESSAGE(contains(status.message(), "(one of 2 calls from first_op to last_op; CUDA_LAUNCH_BLOCKING=1"),
                status.message());
  CHECK_FALSE(rig.device->alloc(64, Category::kv).ok());  // the device has failed, which is not "out of memory"
  CHECK(rig.device->alloc(64, Category::kv).status().code() == Code::peer);
}

TEST_CASE("devices are listed with name, UUID and memory") {
  const auto list = Device::list_cuda();
  REQUIRE(list.ok());
  REQUIRE(list->size() == 1);
  CHECK((*list)[0].uuid == "GPU-00000000-0000-0000-0000-000000000000");
  CHECK((*list)[0].bytes > 0);
  CHECK(open_cuda_device()->name() == (*list)[0].name);
}

}  // namespace
}  // namespace llmops::test
