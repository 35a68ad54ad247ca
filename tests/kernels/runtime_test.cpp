// Device, Stream, Event, Buffer: order, failures and memory accounting.
#include "kernels/runtime.h"

#include <chrono>
#include <thread>

#include "kernels/tables.h"
#include "support/kernel_case.h"

namespace llmops::test {
namespace {

constexpr uint64_t kSeeds = 16;  // a wrong order shows with probability 1/2 or more per seed: missed once in 65536

// A producer stream and a consumer stream; returns what the consumer saw of the producer's 1.
int handed_over(uint64_t seed, bool with_wait) {
  auto device = open_device({.deferred_seed = seed});
  auto producer = device->new_stream(), consumer = device->new_stream();
  int made = 0, seen = -1;
  producer->enqueue([&] { return made = 1, Status(); }, "make");
  if (with_wait) consumer->wait(producer->record());
  consumer->enqueue([&] { return seen = made, Status(); }, "read");
  CHECK(consumer->sync().ok());
  return seen;
}

TEST_CASE("deferred mode: a missing wait between streams shows, a wait cures it") {
  int right = 0, wrong = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    CHECK(handed_over(seed, true) == 1);
    (handed_over(seed, false) == 1 ? right : wrong) += 1;
  }
  CHECK(right > 0);
  CHECK(wrong > 0);
}

TEST_CASE("deferred mode: the host sees nothing before sync") {
  auto device = open_device({.deferred_seed = 1});
  int value = 0;
  device->compute().enqueue([&] { return value = 1, Status(); }, "set");
  CHECK(value == 0);
  CHECK(device->compute().sync().ok());
  CHECK(value == 1);
}

TEST_CASE("deferred mode: one stream keeps its order; a seed repeats its interleaving") {
  const auto order = [](uint64_t seed) {
    auto device = open_device({.deferred_seed = seed});
    auto other = device->new_stream();
    std::string text;
    for (char c = 'a'; c <= 'h'; ++c) {
      device->compute().enqueue([&text, c] { return text += c, Status(); }, "lower");
      other->enqueue([&text, c] { return text += char(c - 32), Status(); }, "upper");
    }
    CHECK(device->compute().sync().ok());
    CHECK(other->sync().ok());
    return text;
  };
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const std::string text = order(seed);
    CHECK(text == order(seed));
    std::string lower, upper;
    for (char c : text) (c >= 'a' ? lower : upper) += c;
    CHECK(lower == "abcdefgh");
    CHECK(upper == "ABCDEFGH");
  }
  CHECK(order(1) != order(2));
}

TEST_CASE("events: chains over three streams hold for every seed; polling makes progress") {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    auto device = open_device({.deferred_seed = seed});
    auto a = device->new_stream(), b = device->new_stream(), c = device->new_stream();
    int value = 1;
    a->enqueue([&] { return value += 2, Status(); }, "a");
    b->wait(a->record());
    b->enqueue([&] { return value *= 10, Status(); }, "b");
    c->wait(b->record());
    c->enqueue([&] { return value -= 5, Status(); }, "c");
    const Event last = c->record();
    while (!last.complete()) {
    }
    CHECK(value == 25);
  }
  CHECK(Event().complete());
}

TEST_CASE("events: a stream may wait for another device's") {
  auto first = open_device({.deferred_seed = 3}), second = open_device({});
  int value = 0;
  first->compute().enqueue([&] { return value = 7, Status(); }, "make");
  second->compute().wait(first->compute().record());
  CHECK(value == 7);
}

TEST_CASE("a failure sticks to its stream, later work is dropped, the first error returns at sync") {
  for (uint64_t seed : {0, 1, 2}) {
    auto device = open_device({.deferred_seed = seed});
    auto other = device->new_stream();
    Stream& stream = device->compute();
    bool later = false, unrelated = false;
    stream.enqueue([] { return invalid_error("the first"); }, "op_a");
    stream.enqueue([] { return invalid_error("the second"); }, "op_b");
    stream.enqueue([&] { return later = true, Status(); }, "op_c");
    other->enqueue([&] { return unrelated = true, Status(); }, "op_d");
    for (int i = 0; i < 2; ++i) {
      const Status status = stream.sync();
      CHECK(status.code() == Code::invalid);
      CHECK(status.message() == "op_a: the first");
    }
    CHECK(other->sync().ok());
    CHECK_FALSE(later);
    CHECK(unrelated);
  }
}

TEST_CASE("a failure reaches the streams that wait for its results") {
  for (uint64_t seed : {0, 1, 2}) {
    auto device = open_device({.deferred_seed = seed});
    auto consumer = device->new_stream();
    bool used = false;
    device->compute().enqueue([] { return io_error("no data"); }, "load");
    const Event event = device->compute().record();
    consumer->wait(event);
    consumer->enqueue([&] { return used = true, Status(); }, "use");
    CHECK(consumer->sync().message() == "load: no data");
    CHECK_FALSE(used);
    CHECK(event.complete());
  }
}

TEST_CASE("sync: a deadline ends the wait with a peer error") {
  auto device = open_device({.deferred_seed = 1});
  const auto nap = [] { return std::this_thread::sleep_for(std::chrono::milliseconds(20)), Status(); };
  for (int i = 0; i < 3; ++i) device->compute().enqueue(nap, "nap");
  CHECK(device->compute().sync(0.001).code() == Code::peer);
  CHECK(device->compute().sync().ok());
}

TEST_CASE("streams that go away finish their work") {
  for (uint64_t seed : {0, 1}) {
    auto device = open_device({.deferred_seed = seed});
    int value = 0;
    auto stream = device->new_stream();
    stream->enqueue([&] { return value = 1, Status(); }, "set");
    const Event event = stream->record();
    stream.reset();
    CHECK(value == 1);
    CHECK(event.complete());
  }
}

TEST_CASE("alloc: aligned, zero, counted by category; the peak stays") {
  auto device = open_device({});
  for (int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{100}, int64_t{300} << 10, int64_t{5} << 20}) {
    auto buffer = device->alloc(bytes, Category::grads);
    REQUIRE(buffer.ok());
    CHECK(buffer->data() != nullptr);
    CHECK(reinterpret_cast<uintptr_t>(buffer->data()) % 64 == 0);
    CHECK(std::all_of(buffer->as<char>(), buffer->as<char>() + bytes, [](char c) { return c == 0; }));
    std::fill_n(buffer->as<char>(), bytes, 'x');
    CHECK(device->bytes_in_use(Category::grads) == bytes);
    CHECK(device->bytes_peak(Category::grads) == bytes);
  }
  CHECK(device->bytes_in_use(Category::grads) == 0);
  CHECK(device->bytes_peak(Category::grads) == 5 << 20);
  CHECK(device->bytes_peak(Category::weights) == 0);
  device->note_external(Category::comm, 1000);
  device->note_external(Category::comm, -400);
  CHECK(device->bytes_in_use(Category::comm) == 600);
  CHECK(device->bytes_peak(Category::comm) == 1000);
}

TEST_CASE("alloc: zero pages cost nothing until they are touched") {
  auto device = open_device({});
  auto buffer = device->alloc(int64_t{1} << 40, Category::kv);  // 1 TiB of address space, or an honest error
  if (buffer.ok()) CHECK(buffer->as<char>()[(int64_t{1} << 40) - 1] == 0);
  else CHECK(buffer.status().code() == Code::io);
}

TEST_CASE("alloc: out of memory names the category, the size and what is in use") {
  auto device = open_device({});
  auto weights = device->alloc(1 << 20, Category::weights);
  for (int64_t bytes : {int64_t{1} << 50, INT64_MAX}) {
    auto buffer = device->alloc(bytes, Category::optim);
    REQUIRE_FALSE(buffer.ok());
    CHECK(buffer.status().code() == Code::io);
    for (const char* part : {"out of memory", "optim needs", "weights 1.00 MiB"})
      CHECK_MESSAGE(buffer.status().message().find(part) != std::string::npos, buffer.status().message());
  }
  CHECK(device->alloc(-1, Category::saved).status().code() == Code::invalid);
  CHECK(device->bytes_peak(Category::optim) == 0);
}

TEST_CASE("buffers move; views are dense and at an offset") {
  auto device = open_device({});
  Buffer a = device->alloc(256, Category::saved).take();
  void* const data = a.data();
  Buffer b = std::move(a);
  CHECK(a.data() == nullptr);
  CHECK(b.data() == data);
  a = std::move(b);
  CHECK(device->bytes_in_use(Category::saved) == 256);
  const TensorView view = a.view(DType::bf16, {3, 5}, 64);
  CHECK(view.data == a.as<char>() + 64);
  CHECK(view.stride[0] == 5);
  CHECK(view.contiguous());
  a = Buffer();
  CHECK(device->bytes_in_use(Category::saved) == 0);
}

TEST_CASE("workspace: grows, is kept, and holds NaN in deferred mode") {
  auto device = open_device({.deferred_seed = 1});
  Stream& stream = device->compute();
  auto small = stream.workspace(1000), large = stream.workspace(5000), again = stream.workspace(1000);
  REQUIRE((small.ok() && large.ok() && again.ok()));
  CHECK(*again == *large);
  CHECK(device->bytes_in_use(Category::workspace) == 5000);
  CHECK(device->bytes_peak(Category::workspace) == 5000);
  CHECK(std::isnan(static_cast<float*>(*again)[10]));
  CHECK(stream.workspace(0).ok());
}

TEST_CASE("devices: what cannot be opened says why") {
  CHECK(Device::open_cpu({.threads = 0}).status().code() == Code::usage);
  for (Isa isa : {Isa::avx2, Isa::avx512, Isa::avx512_bf16}) {
    const auto device = Device::open_cpu({.isa = isa});
    CHECK(device.ok() == isa_runs(isa));
    if (!device.ok()) CHECK(device.status().message().find(name_of(isa)) != std::string::npos);
  }
  CHECK(isa_best() != Isa::best);
  CHECK(isa_runs(isa_best()));
  CHECK(isa_runs(Isa::baseline));
  CHECK(open_device({})->isa() == isa_best());
}

TEST_CASE("tables: complete, and each instruction set has its own entries") {
  const OpTable& ref = op_table_ref();
  const OpTable& baseline = op_table_cpu(Isa::baseline);
  const OpTable& avx2 = op_table_cpu(Isa::avx2);
  const OpTable& avx512 = op_table_cpu(Isa::avx512);
#define X(op, Args)                          \
  CHECK((ref.op.run != nullptr));            \
  CHECK((baseline.op.run != nullptr));       \
  CHECK((baseline.op.run != avx2.op.run));   \
  CHECK((avx2.op.run != avx512.op.run));
  LLMOPS_OPS(X)
#undef X
  CHECK(&op_table_cpu(Isa::avx512_bf16) == &avx512);
  CHECK(&reference_device().ops() == &ref);
}

}  // namespace
}  // namespace llmops::test
