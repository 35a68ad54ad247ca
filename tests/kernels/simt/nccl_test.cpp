// NcclCommunicator on emulated devices: each rank is a process with a device of its own, NCCL is tests/support/simt_nccl.cpp.
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <numeric>

#include "comm/local.h"
#include "comm/nccl.h"
#include "comm/nccl_api.h"
#include "support/cuda_case.h"

namespace llmops::test {
namespace {

struct Rank {
  Device& device;
  Communicator& comm;
  int rank() const { return comm.rank(); }
  Stream& stream() const { return device.compute(); }
};
using Body = std::function<std::string(const Rank&)>;  // "" or what is wrong

constexpr double kDeadline_s = 2;
constexpr int kPatience_ms = 60'000;  // for a rank to end

std::string run_rank(const std::shared_ptr<Segment>& segment, int rank, const Body& body) {
  const std::shared_ptr<Device> host = Device::open_cpu({.threads = 1}).take();
  auto device = Device::open_cuda(0);
  if (!device.ok()) return device.status().message();
  auto meeting = LocalCommunicator::open(segment, rank, *host, {.deadline_s = 20});
  if (!meeting.ok()) return meeting.status().message();
  auto group = HostGroup::open(host, meeting.take());
  if (!group.ok()) return group.status().message();
  auto comm = NcclCommunicator::open(**device, group.take(), {.deadline_s = kDeadline_s});
  if (!comm.ok()) return comm.status().message();
  const std::string said = body({**device, **comm});
  if (!said.empty()) return said;
  // Nobody ends before the last has finished.
  Status status = (*comm)->barrier((*device)->compute());
  if (status.ok()) status = (*device)->compute().sync();
  return status.message();
}

// Of this process, as the library counts them.
int open_communicators() {
  void* const library = dlopen(nccl::kLibrary, RTLD_NOW | RTLD_NOLOAD);
  const auto count = library ? reinterpret_cast<int (*)()>(dlsym(library, "simt_nccl_open")) : nullptr;
  return count ? count() : -1;
}

// What each rank says. A rank that dies says so.
std::vector<std::string> on_ranks(int world, const Body& body, simt::Schedule schedule = {}, const char* inject = nullptr) {
  auto segment = create_group(world).take();
  std::vector<std::pair<pid_t, int>> ranks;
  for (int rank = 0; rank < world; ++rank) {
    int fds[2];
    REQUIRE(pipe(fds) == 0);
    const pid_t pid = fork();
    if (pid == 0) {
      simt::set_schedule({schedule.order, schedule.seed + static_cast<uint64_t>(rank)});
      if (inject != nullptr) setenv("LLMOPS_SIMT_NCCL", inject, 1);
      std::string said;
      try {
        said = run_rank(segment, rank, body);
        if (open_communicators() != 0) said += " (a communicator is left, and with it its kernels)";
      } catch (const std::exception& error) {  // it must not get back to the runner of tests, which is the parent's
        said = error.what();
      }
      const bool written = write(fds[1], said.data(), said.size()) == static_cast<ssize_t>(said.size());
      _exit(written ? 0 : 1);
    }
    close(fds[1]);
    ranks.emplace_back(pid, fds[0]);
  }
  std::vector<std::string> said;
  for (const auto& [pid, fd] : ranks) {
    std::string text;
    char piece[4096];
    pollfd ready = {fd, POLLIN, 0};
    while (true) {
      if (poll(&ready, 1, kPatience_ms) == 0) text += "(hangs)", kill(pid, SIGKILL);
      const ssize_t n = read(fd, piece, sizeof piece);
      if (n <= 0) break;
      text.append(piece, static_cast<size_t>(n));
    }
    close(fd);
    int status = 0;
    waitpid(pid, &status, 0);
    if (status != 0) text += fmt::format(" (ended with wait status {})", status);
    CHECK_MESSAGE(text.find("a communicator is left") == std::string::npos, text);
    said.push_back(text);
  }
  return said;
}

void check_ranks(int world, const Body& body) {
  for (const simt::Schedule schedule : schedules())
    for (const std::string& said : on_ranks(world, body, schedule)) CHECK_MESSAGE(said == "", said);
}

// A device tensor with its host side.
template <class T>
struct Data {
  Buffer buffer;
  HostSide host;
  TensorView view;
  Data(const Rank& r, DType dtype, std::vector<T> values)
      : buffer(r.device.alloc(int64_t(values.size() * sizeof(T)), Category::transient).take()),
        host(HostSide::of(r.device, buffer).take()),
        view(buffer.view(dtype, {int64_t(values.size())})) {
    std::copy(values.begin(), values.end(), host.template as<T>());
    host.push(r.stream());
  }
  std::vector<T> pull(const Rank& r) {
    host.pull(r.stream());
    if (const Status status = r.stream().sync(); !status.ok()) throw std::runtime_error(status.message());
    return {host.template as<T>(), host.template as<T>() + view.elems()};
  }
};

std::vector<float> counting(int64_t n, float first) {
  std::vector<float> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), first);
  return values;
}

template <class T>
std::string same(const char* what, const std::vector<T>& got, const std::vector<T>& want) {
  return got == want ? "" : fmt::format("{}: {} instead of {}", what, fmt::join(got, " "), fmt::join(want, " "));
}

#define RANK_TRY(expr) \
  if (const Status status_ = (expr); !status_.ok()) return status_.message()
#define RANK_SAME(what, got, want) \
  if (const std::string wrong_ = same(what, got, want); !wrong_.empty()) return wrong_

TEST_CASE("all_reduce, broadcast and barrier; sum, max and min of each dtype") {
  check_ranks(3, [](const Rank& r) -> std::string {
    const float k = float(r.rank());
    Data<float> sum(r, DType::f32, {k, 1, 2 * k});
    Data<double> most(r, DType::f64, {-double(k), 5});
    Data<int64_t> least(r, DType::i64, {10 - r.rank(), r.rank()});
    Data<float> given(r, DType::f32, counting(37, 100 * k));
    RANK_TRY(r.comm.all_reduce(r.stream(), sum.view));
    RANK_TRY(r.comm.all_reduce(r.stream(), most.view, ReduceOp::max));
    RANK_TRY(r.comm.all_reduce(r.stream(), least.view, ReduceOp::min));
    RANK_TRY(r.comm.broadcast(r.stream(), given.view, 2));
    RANK_TRY(r.comm.barrier(r.stream()));
    RANK_SAME("sum", sum.pull(r), (std::vector<float>{3, 3, 6}));
    RANK_SAME("max", most.pull(r), (std::vector<double>{0, 5}));
    RANK_SAME("min", least.pull(r), (std::vector<int64_t>{8, 0}));
    RANK_SAME("broadcast", given.pull(r), counting(37, 200));
    return "";
  });
}

TEST_CASE("gather, scatter and all_to_all with equal, unequal and no elements") {
  check_ranks(3, [](const Rank& r) -> std::string {
    for (const std::vector<int64_t>& counts : {std::vector<int64_t>{4, 4, 4}, {2, 0, 7}}) {
      const int64_t mine = counts[size_t(r.rank())], total = counts[0] + counts[1] + counts[2];
      const int64_t before = std::accumulate(counts.begin(), counts.begin() + r.rank(), int64_t{0});
      Data<float> part(r, DType::f32, counting(mine, float(before))), all(r, DType::f32, counting(total, -50));
      RANK_TRY(r.comm.all_gather(r.stream(), part.view, all.view));
      RANK_SAME("all_gather", all.pull(r), counting(total, 0));
      RANK_TRY(r.comm.reduce_scatter(r.stream(), all.view, part.view));
      std::vector<float> thrice = counting(mine, float(before));
      for (float& x : thrice) x *= 3;
      RANK_SAME("reduce_scatter", part.pull(r), thrice);
    }
    // Rank r gives rank q r + q elements of value 10 r + q.
    std::vector<int64_t> give;
    std::vector<float> in, want;
    for (int q = 0; q < 3; ++q) {
      give.push_back(r.rank() + q);
      in.insert(in.end(), size_t(r.rank() + q), float(10 * r.rank() + q));
      want.insert(want.end(), size_t(r.rank() + q), float(10 * q + r.rank()));
    }
    Data<float> from(r, DType::f32, in), to(r, DType::f32, counting(int64_t(want.size()), -1));
    RANK_TRY(r.comm.all_to_all(r.stream(), from.view, to.view, give));
    RANK_SAME("all_to_all", to.pull(r), want);
    return "";
  });
}

TEST_CASE("messages, and a split into groups of which one is alone") {
  check_ranks(3, [](const Rank& r) -> std::string {
    Data<float> data(r, DType::f32, counting(5, float(100 * r.rank())));
    if (r.rank() == 0) {
      RANK_TRY(r.comm.send(r.stream(), data.view, 1));
      RANK_TRY(r.comm.recv(r.stream(), data.view, 2));
      RANK_SAME("recv", data.pull(r), counting(5, 200));
    } else if (r.rank() == 1) {
      RANK_TRY(r.comm.recv(r.stream(), data.view, 0));
      RANK_SAME("recv", data.pull(r), counting(5, 0));
    } else {
      RANK_TRY(r.comm.send(r.stream(), data.view, 0));
    }
    auto part = r.comm.split(r.rank() == 1 ? 7 : 3, -r.rank());
    RANK_TRY(part.status());
    if ((*part)->world() != (r.rank() == 1 ? 1 : 2)) return "the split has the wrong size";
    if ((*part)->rank() != (r.rank() == 0 ? 1 : 0)) return "the split has the wrong order";
    Data<float> sum(r, DType::f32, {float(1 + r.rank())});
    RANK_TRY((*part)->all_reduce(r.stream(), sum.view));
    RANK_SAME("sum of the part", sum.pull(r), (std::vector<float>{r.rank() == 1 ? 2.0f : 4.0f}));
    return "";
  });
}

TEST_CASE("gradients are reduced beside the compute stream, weights gathered: equal and unequal slices, two steps") {
  check_ranks(3, [](const Rank& r) -> std::string {
    constexpr int64_t kElems = 30;
    auto grads = r.comm.alloc(kElems * 4, Category::grads), weights = r.comm.alloc_common(kElems * 4, Category::weights);
    RANK_TRY(grads.status());
    RANK_TRY(weights.status());
    if (weights->common()) return "there is no common memory between devices";
    const HostSide g = HostSide::of(r.device, grads->data(), grads->bytes()).take();
    const HostSide w = HostSide::of(r.device, weights->data(), weights->bytes()).take();
    const std::vector<Bucket> buckets = {{{0, 4, 8, 12}}, {{12, 13, 13, 30}}};
    auto exchange = r.comm.new_exchange(*grads, buckets);
    RANK_TRY(exchange.status());
    for (int step = 0; step < 2; ++step) {
      for (int64_t i = 0; i < kElems; ++i) g.as<float>()[i] = float(i + step), w.as<float>()[i] = -1;
      g.push(r.stream());
      for (int b : {1, 0}) RANK_TRY((*exchange)->post(r.stream(), b));
      if ((*exchange)->post(r.stream(), 0).code() != Code::usage) return "a bucket was posted twice";
      for (int b : {0, 1}) RANK_TRY((*exchange)->reduce_slice(r.stream(), b));
      g.pull(r.stream());
      RANK_TRY(r.stream().sync());
      for (const Bucket& bucket : buckets)
        for (int64_t i = bucket.cut[size_t(r.rank())]; i < bucket.cut[size_t(r.rank()) + 1]; ++i) {
          if (g.as<float>()[i] != 3 * float(i + step)) return fmt::format("gradient {} is {}", i, g.as<float>()[i]);
          w.as<float>()[i] = g.as<float>()[i];
        }
      w.push(r.stream());
      for (int b : {0, 1}) RANK_TRY((*exchange)->publish_slice(r.stream(), b));
      for (int b : {0, 1}) RANK_TRY((*exchange)->gather_slices(r.stream(), b, *weights, DType::f32));
      w.pull(r.stream());
      RANK_TRY(r.stream().sync());
      for (int64_t i = 0; i < kElems; ++i)
        if (w.as<float>()[i] != 3 * float(i + step)) return fmt::format("weight {} is {}", i, w.as<float>()[i]);
    }
    return "";
  });
}

TEST_CASE("a view of the host, a strided one, and a rank that is none are refused at the call") {
  for (const std::string& said : on_ranks(2, [](const Rank& r) -> std::string {
         float host[4] = {};
         Data<float> data(r, DType::f32, counting(4, 0));
         TensorView strided = data.view;
         strided.rank = 2, strided.dim[0] = strided.dim[1] = 1, strided.dim[1] = 2, strided.dim[0] = 2, strided.stride[0] = 3,
         strided.stride[1] = 1;
         for (const Status& status :
              {r.comm.all_reduce(r.stream(), dense_view(static_cast<void*>(host), DType::f32, {4})),
               r.comm.all_reduce(r.stream(), strided), r.comm.send(r.stream(), data.view, r.rank()),
               r.comm.broadcast(r.stream(), data.view, 2)})
           if (status.code() != Code::usage) return "not refused: " + status.message();
         return "";
       }))
    CHECK_MESSAGE(said == "", said);
}

std::string reduce_thrice(const Rank& r) {
  Data<float> data(r, DType::f32, counting(4, 0));
  for (int i = 0; i < 3; ++i) {
    RANK_TRY(r.comm.all_reduce(r.stream(), data.view));
    RANK_TRY(r.stream().sync());
  }
  return "";
}
bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST_CASE("a rank that does not come is named, on every rank that waits") {
  const auto said = on_ranks(3, [](const Rank& r) -> std::string {
    if (r.rank() != 1) return reduce_thrice(r);
    while (r.comm.health().ok()) usleep(1000);
    return r.comm.health().message();
  });
  const std::string waiting = said[0] + said[2];
  CHECK_MESSAGE(contains(waiting, "all_reduce #1: rank 1 (pid "), waiting);
  CHECK_MESSAGE(contains(waiting, "did not arrive within 2 s"), waiting);
  for (const std::string& text : said) CHECK_MESSAGE(contains(text, "rank 1 (pid "), text);
}

TEST_CASE("a rank that waits on the host is not taken for one whose device is late") {
  const auto said = on_ranks(3, [](const Rank& r) -> std::string {
    Data<float> data(r, DType::f32, counting(4, 0)), all(r, DType::f32, counting(12, 0));
    if (r.rank() == 2)
      simt::enqueue_external(static_cast<cudaStream_t>(r.stream().native()),
                             {[] { return std::string(); }, [] { return false; }, [] { return std::string(); }});
    RANK_TRY(r.comm.all_reduce(r.stream(), data.view));
    if (r.rank() == 0) return r.comm.all_gather(r.stream(), data.view, all.view).message();
    return r.stream().sync().message();
  });
  for (const std::string& text : said) CHECK_MESSAGE(contains(text, "all_reduce #1: the device of rank 2 (pid "), text);
}

TEST_CASE("a message without its other end names that rank") {
  const auto said = on_ranks(2, [](const Rank& r) -> std::string {
    while (r.rank() == 1 && r.comm.health().ok()) usleep(1000);
    if (r.rank() == 1) return r.comm.health().message();
    Data<float> data(r, DType::f32, counting(4, 0));
    RANK_TRY(r.comm.recv(r.stream(), data.view, 1));
    return r.stream().sync().message();
  });
  CHECK_MESSAGE(contains(said[0], "recv from rank 1: rank 1 (pid "), said[0]);
}

TEST_CASE("NCCL's asynchronous error on one rank ends all of them with its words") {
  const auto said = on_ranks(3, reduce_thrice, {}, "error@1:2");
  CHECK_MESSAGE(contains(said[1], "all_reduce #2: NCCL error 2 (unhandled system error): injected"), said[1]);
  for (int r : {0, 2}) CHECK_MESSAGE(contains(said[size_t(r)], "rank 1: all_reduce #2: NCCL error 2"), said[size_t(r)]);
}

TEST_CASE("a call whose progress cannot be asked about fails at once, with NCCL's error") {
  const auto said = on_ranks(2, reduce_thrice, {}, "blind@1:2");
  CHECK_MESSAGE(contains(said[1], "all_reduce: NCCL error 3"), said[1]);
  CHECK_MESSAGE(contains(said[0], "rank 1: all_reduce: NCCL error 3"), said[0]);
}

TEST_CASE("joining that does not come to an end names the ranks that are not there, or says that none is missing") {
  for (const std::string& said : on_ranks(2, reduce_thrice, {}, "hang@1:0"))
    CHECK_MESSAGE(contains(said, "ncclCommInitRankConfig is not through after 2 s; no rank is behind"), said);
  for (const std::string& said : on_ranks(3, reduce_thrice, {}, "late@1:0")) {
    CHECK_MESSAGE(contains(said, "ncclCommInitRankConfig: rank 1 (pid "), said);
    CHECK_MESSAGE(contains(said, "did not arrive within 2 s"), said);
  }
}

TEST_CASE("a library that is missing, too old or too new, or lacks a function is named, with what was expected") {
  const auto message = [](const char* library) {
    const auto api = nccl::load(library);
    CHECK(api.status().code() == Code::io);
    return api.status().message();
  };
  const auto of_version = [&](const char* version) {
    setenv("LLMOPS_SIMT_NCCL_VERSION", version, 1);
    const std::string said = message(nccl::kLibrary);
    unsetenv("LLMOPS_SIMT_NCCL_VERSION");
    return said;
  };
  const std::string expected = ", expected 2.28 or a later 2.x";
  CHECK(nccl::load().ok());
  CHECK(of_version("22706") == "NCCL: libnccl.so.2 is version 2.27.6" + expected);
  CHECK(of_version("30000") == "NCCL: libnccl.so.2 is version 3.0.0" + expected);
  CHECK(message("libm.so.6") == "NCCL: libm.so.6 has no ncclGetVersion" + expected);
  CHECK(contains(message("libnccl-none.so"), "NCCL: libnccl-none.so cannot be opened (libnccl-none.so: cannot open shared"));
}

TEST_CASE("a call that never ends is given up at the deadline on all ranks") {
  const auto said = on_ranks(3, reduce_thrice, {}, "hang@1:2");
  for (const std::string& text : said) CHECK_MESSAGE(contains(text, "all_reduce #2"), text);
  CHECK_MESSAGE(contains(said[0] + said[1] + said[2], "all ranks are in it, and it is not through after 2 s"), said[0]);
}

}  // namespace
}  // namespace llmops::test
