#include <chrono>
#include <thread>

#include "base/run.h"
#include "unit/comm/ranks.h"

using namespace llmops;
using namespace llmops::test;

TEST_CASE("ranks that do not arrive within the deadline are named, and the late ones learn why") {
  run_as_threads(
      4,
      [](Rank& at) {
        std::vector<float> x(500, 1.0f);
        CHECK(at.comm.all_reduce(at.stream, view_of(x)).ok());
        CHECK(at.stream.sync().ok());
        if (at.rank % 2 == 1) std::this_thread::sleep_for(std::chrono::milliseconds(900));
        const double begin_s = monotonic_s();
        CHECK(at.comm.all_reduce(at.stream, view_of(x)).ok());
        const Status status = at.stream.sync();
        CHECK(status.code() == Code::peer);
        CHECK(monotonic_s() - begin_s < 10);
        // #1 was the opening; either even rank is the first whose deadline ends, the others are told.
        const std::string& message = status.message();
        CHECK_MESSAGE(message.find("all_reduce #3: rank 1 (pid ") != std::string::npos, message);
        CHECK_MESSAGE(message.find("), rank 3 (pid ") != std::string::npos, message);
        CHECK_MESSAGE(message.find("did not arrive within 0.4 s") != std::string::npos, message);
        if (at.rank % 2 == 1) CHECK(message.find("the group was aborted: rank ") != std::string::npos);
        CHECK(at.comm.health().code() == Code::peer);
        CHECK(at.comm.alloc(8, Category::comm).status().code() == Code::peer);
      },
      {.deadline_s = 0.4});
}

TEST_CASE("ranks that never open the group are named") {
  auto segment = create_group(2);
  auto device = Device::open_cpu(device_options());
  auto comm = LocalCommunicator::open(*segment, 0, **device, {.deadline_s = 0.2});
  CHECK(comm.status().code() == Code::peer);
  CHECK(comm.status().message() == "open #1: rank 1 (not started) did not arrive within 0.2 s");
  CHECK(LocalCommunicator::open(*segment, 0, **device, {}).status().message().find("is taken") != std::string::npos);
  CHECK(LocalCommunicator::open(*segment, 2, **device, {}).status().code() == Code::usage);
  CHECK(create_group(0).status().code() == Code::usage);
  CHECK(create_group(65).status().code() == Code::usage);
}

TEST_CASE("send and recv have the deadline too and name the peer") {
  run_as_threads(
      3,
      [](Rank& at) {
        std::vector<float> x(200000);
        if (at.rank == 2) return;
        CHECK((at.rank == 0 ? at.comm.send(at.stream, view_of(x), 2) : at.comm.recv(at.stream, view_of(x), 2)).ok());
        const Status status = at.stream.sync();
        CHECK(status.code() == Code::peer);
        const bool sent = status.message().find("send #1 to rank 2: rank 2 (pid ") != std::string::npos;
        const bool received = status.message().find("recv #1 from rank 2: rank 2 (pid ") != std::string::npos;
        CHECK_MESSAGE((sent || received), status.message());
      },
      {.deadline_s = 0.3});
}

TEST_CASE("a message of another size is an error on the receiver") {
  run_as_threads(2, [](Rank& at) {
    std::vector<float> x(4), y(5);
    if (at.rank == 0) {
      CHECK(at.comm.send(at.stream, view_of(x), 1).ok());
      return;
    }
    CHECK(at.comm.recv(at.stream, view_of(y), 0).ok());
    const Status status = at.stream.sync();
    CHECK(status.code() == Code::peer);
    CHECK(status.message().find("found 4 elements of F32, expected 5 of F32") != std::string::npos);
  });
}

TEST_CASE("abort wakes a waiting rank at once with the first reason") {
  run_as_threads(3, [](Rank& at) {
    const double begin_s = monotonic_s();
    if (at.rank == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      CHECK(at.comm.health().ok());
      at.comm.abort("the loader failed");
      at.comm.abort("a second reason");
    } else {
      CHECK(at.comm.barrier(at.stream).ok());
      const Status status = at.stream.sync();
      CHECK(status.code() == Code::peer);
      CHECK(status.message() == "comm: the group was aborted: the loader failed");
    }
    CHECK(at.comm.health().message() == "the group was aborted: the loader failed");
    CHECK(monotonic_s() - begin_s < 5);
  });
}

TEST_CASE("an abort reaches the ranks of a part") {
  run_as_threads(4, [](Rank& at) {
    auto part = at.comm.split(at.rank / 2, 0);
    CHECK_MESSAGE(part.ok(), part.status().message());
    if (at.rank == 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the others have left split by now
      return at.comm.abort("enough");
    }
    if (!part.ok()) return;
    std::vector<int64_t> x(1000, 1);
    CHECK((*part)->all_reduce(at.stream, view_of(x)).ok());
    const Status status = at.stream.sync();
    // Ranks 0 and 1 may have finished before the abort.
    if (at.rank == 2) CHECK(status.code() == Code::peer);
    if (!status.ok()) CHECK(status.message().find("enough") != std::string::npos);
  });
}

TEST_CASE("ranks that call different things, or give different counts, are told so") {
  const auto both_fail = [](const std::function<Status(Rank&)>& issue, const char* what) {
    run_as_threads(2, [&](Rank& at) {
      CHECK(issue(at).ok());
      const Status status = at.stream.sync();
      CHECK(status.code() == Code::peer);
      CHECK_MESSAGE(status.message().find(what) != std::string::npos, status.message());
    });
  };
  std::vector<float> x[2] = {std::vector<float>(8), std::vector<float>(8)};
  std::vector<double> wide(8);
  both_fail([&](Rank& at) {
    return at.rank ? at.comm.barrier(at.stream) : at.comm.all_reduce(at.stream, view_of(x[0]));
  }, "instead");
  both_fail([&](Rank& at) { return at.comm.all_reduce(at.stream, at.rank ? view_of(wide) : view_of(x[0])); },
            "another dtype, reduction or root");
  both_fail([&](Rank& at) { return at.comm.broadcast(at.stream, view_of(x[at.rank]), at.rank); },
            "another dtype, reduction or root");
  both_fail([&](Rank& at) {
    x[at.rank].resize(static_cast<size_t>(8 + at.rank));
    return at.comm.all_reduce(at.stream, view_of(x[at.rank]));
  }, "elements, I gave");
  both_fail([&](Rank& at) {
    std::vector<float> all(3);
    return at.comm.all_gather(at.stream, view_of(x[at.rank]), view_of(all));
  }, "expected the 3 of my output");
  both_fail([&](Rank& at) { return at.comm.reduce_scatter(at.stream, view_of(x[at.rank]), view_of(x[at.rank])); },
            "expected my input's");
}

TEST_CASE("waiting is counted apart from work") {
  run_as_threads(2, [](Rank& at) {
    if (at.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::vector<float> x(1000);
    CHECK(at.comm.all_reduce(at.stream, view_of(x)).ok());
    CHECK(at.stream.sync().ok());
    if (at.rank == 0) CHECK(at.comm.time().wait_s > 0.15);
    CHECK(at.comm.time().work_s < 0.15);
  });
}
