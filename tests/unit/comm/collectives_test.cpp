#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "unit/comm/ranks.h"

using namespace llmops;
using namespace llmops::test;

namespace {

template <class T>
T scalar(ReduceOp op, int world, int64_t i) {
  T result = value_of<T>(0, i);
  for (int r = 1; r < world; ++r) {
    const T x = value_of<T>(r, i);
    result = op == ReduceOp::sum ? result + x : op == ReduceOp::max ? std::max(result, x) : std::min(result, x);
  }
  return result;
}

template <class T>
void fill(T* data, int rank, int64_t n) {
  for (int64_t i = 0; i < n; ++i) data[i] = value_of<T>(rank, i);
}

template <class T>
bool is_reduced(const T* data, ReduceOp op, int world, int64_t begin, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    if (data[i] != scalar<T>(op, world, begin + i)) return false;
  return true;
}

template <class T>
void check_all_reduce(Rank& at, int64_t n, ReduceOp op) {
  std::vector<T> x(static_cast<size_t>(n));
  fill(x.data(), at.rank, n);
  CHECK(at.comm.all_reduce(at.stream, view_of(x), op).ok());
  CHECK(at.stream.sync().ok());
  CHECK(is_reduced(x.data(), op, at.world, 0, n));
}

int64_t uneven(int rank, int64_t n) { return rank % 3 == 1 ? 0 : n + rank * 5; }

}  // namespace

TEST_CASE("all_reduce equals a scalar computation for every world, size, dtype and op, from private memory") {
  for (int world : kWorlds)
    run_as_threads(world, [](Rank& at) {
      for (int64_t n : kSizes) check_all_reduce<float>(at, n, ReduceOp::sum);
      for (ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
        check_all_reduce<double>(at, 333, op);
        check_all_reduce<int64_t>(at, 5000, op);
        check_all_reduce<float>(at, 77, op);
      }
    });
}

TEST_CASE("all_reduce works in place on shared memory, and with some ranks private") {
  for (int world : kWorlds)
    run_as_threads(world, [](Rank& at) {
      const int64_t n = 300007;
      auto shared = at.comm.alloc(n * 4, Category::grads);
      CHECK(shared.ok());
      CHECK(at.device.bytes_peak(Category::grads) == n * 4);
      fill(shared->as<float>(), at.rank, n);
      CHECK(at.comm.all_reduce(at.stream, shared->view(DType::f32, {n})).ok());
      CHECK(at.stream.sync().ok());
      CHECK(is_reduced(shared->as<float>(), ReduceOp::sum, at.world, 0, n));

      std::vector<float> own(static_cast<size_t>(n));
      const bool is_private = at.rank % 2 == 1;
      float* data = is_private ? own.data() : shared->as<float>();
      fill(data, at.rank, n);
      CHECK(at.comm.all_reduce(at.stream, is_private ? view_of(own) : shared->view(DType::f32, {n})).ok());
      CHECK(at.stream.sync().ok());
      CHECK(is_reduced(data, ReduceOp::sum, at.world, 0, n));
    });
}

TEST_CASE("a sum has the bits of the tree on every rank, by every path, in any order of arrival, for any threads") {
  for (int world : kWorlds)
    for (int threads : {1, 3})
      run_as_threads(
          world,
          [](Rank& at) {
            for (int64_t n : {200, 70001, 270001}) {
              std::vector<float> x(static_cast<size_t>(n)), expect(x.size());
              for (int64_t i = 0; i < n; ++i) {
                x[static_cast<size_t>(i)] = rough(at.rank, i);
                expect[static_cast<size_t>(i)] = rough_sum(0, at.world, i);
              }
              auto shared = at.comm.alloc(n * 4, Category::grads);
              std::memcpy(shared->data(), x.data(), x.size() * 4);
              std::this_thread::sleep_for(std::chrono::milliseconds((at.rank * 7 + static_cast<int>(n)) % 5));
              CHECK(at.comm.all_reduce(at.stream, view_of(x)).ok());
              CHECK(at.comm.all_reduce(at.stream, shared->view(DType::f32, {n})).ok());
              CHECK(at.stream.sync().ok());
              CHECK(std::memcmp(x.data(), expect.data(), x.size() * 4) == 0);
              CHECK(std::memcmp(shared->data(), expect.data(), x.size() * 4) == 0);
            }
          },
          {.threads = threads});
}

TEST_CASE("max and min give NaN when any rank has one; an i64 sum wraps") {
  run_as_threads(3, [](Rank& at) {
    for (int who = 0; who < 3; ++who)
      for (ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
        std::vector<float> x(300, 1.0f);
        if (at.rank == who) x[299] = std::numeric_limits<float>::quiet_NaN();
        CHECK(at.comm.all_reduce(at.stream, view_of(x), op).ok());
        CHECK(at.stream.sync().ok());
        CHECK(std::isnan(x[299]));
        CHECK(x[0] == 1.0f);
      }
    std::vector<int64_t> x = {at.rank == 0 ? std::numeric_limits<int64_t>::max() : int64_t{1}};
    CHECK(at.comm.all_reduce(at.stream, view_of(x)).ok());
    CHECK(at.stream.sync().ok());
    CHECK(x[0] == std::numeric_limits<int64_t>::min() + 1);
  });
}

TEST_CASE("all_gather puts uneven and empty parts in rank order; parts may lie in place") {
  for (int world : kWorlds)
    run_as_threads(world, [](Rank& at) {
      for (int64_t n : {0, 1, 37, 5000, 300001}) {
        int64_t total = 0, before = 0;
        for (int r = 0; r < at.world; ++r) {
          if (r == at.rank) before = total;
          total += uneven(r, n);
        }
        std::vector<double> mine(static_cast<size_t>(uneven(at.rank, n))), all(static_cast<size_t>(total), -1e9);
        fill(mine.data(), at.rank, std::ssize(mine));
        auto shared = at.comm.alloc(total * 8, Category::weights);
        fill(shared->as<double>() + before, at.rank, std::ssize(mine));
        CHECK(at.comm.all_gather(at.stream, view_of(mine), view_of(all)).ok());
        CHECK(at.comm.all_gather(at.stream, shared->view(DType::f64, {std::ssize(mine)}, before * 8),
                                 shared->view(DType::f64, {total})).ok());
        CHECK(at.stream.sync().ok());
        int64_t wrong = 0, i = 0;
        for (int r = 0; r < at.world; ++r)
          for (int64_t k = 0; k < uneven(r, n); ++k, ++i)
            wrong += all[static_cast<size_t>(i)] != value_of<double>(r, k) ||
                     shared->as<double>()[i] != value_of<double>(r, k);
        CHECK(wrong == 0);
      }
    });
}

TEST_CASE("reduce_scatter gives each rank its uneven slice of the sum") {
  for (int world : kWorlds)
    run_as_threads(world, [](Rank& at) {
      for (int64_t n : {0, 1, 64, 4099, 300001}) {
        int64_t total = 0, before = 0;
        for (int r = 0; r < at.world; ++r) {
          if (r == at.rank) before = total;
          total += uneven(r, n);
        }
        std::vector<float> in(static_cast<size_t>(total)), mine(static_cast<size_t>(uneven(at.rank, n)), -1e9f);
        fill(in.data(), at.rank, total);
        for (ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
          CHECK(at.comm.reduce_scatter(at.stream, view_of(in), view_of(mine), op).ok());
          CHECK(at.stream.sync().ok());
          CHECK(is_reduced(mine.data(), op, at.world, before, std::ssize(mine)));
        }
        auto shared = at.comm.alloc(total * 4, Category::grads);
        fill(shared->as<float>(), at.rank, total);
        const TensorView slice = shared->view(DType::f32, {std::ssize(mine)}, before * 4);
        CHECK(at.comm.reduce_scatter(at.stream, shared->view(DType::f32, {total}), slice).ok());
        CHECK(at.stream.sync().ok());
        CHECK(is_reduced(static_cast<float*>(slice.data), ReduceOp::sum, at.world, before, std::ssize(mine)));
      }
    });
}

TEST_CASE("broadcast from every root, from private and from shared memory") {
  for (int world : kWorlds)
    run_as_threads(world, [](Rank& at) {
      for (int root = 0; root < at.world; ++root)
        for (int64_t n : {0, 1, 1001, 400001}) {
          std::vector<float> x(static_cast<size_t>(n));
          fill(x.data(), at.rank, n);
          auto shared = at.comm.alloc(n * 4, Category::weights);
          fill(shared->as<float>(), at.rank, n);
          CHECK(at.comm.broadcast(at.stream, view_of(x), root).ok());
          CHECK(at.comm.broadcast(at.stream, shared->view(DType::f32, {n}), root).ok());
          CHECK(at.stream.sync().ok());
          int64_t wrong = 0;
          for (int64_t i = 0; i < n; ++i)
            wrong += x[static_cast<size_t>(i)] != value_of<float>(root, i) ||
                     shared->as<float>()[i] != value_of<float>(root, i);
          CHECK(wrong == 0);
        }
    });
}

TEST_CASE("all_to_all with equal, uneven and empty parts") {
  // What rank `from` sends to rank `to`, element k.
  const auto item = [](int from, int to, int64_t k) { return int64_t{from} * 1000003 + to * 1009 + k; };
  for (int world : kWorlds)
    run_as_threads(world, [item](Rank& at) {
      for (int64_t n : {0, 1, 50, 40001})
        for (bool equal : {true, false}) {
          const auto count = [&](int from, int to) { return equal ? n : (from + to) % 3 == 0 ? 0 : n + from * 2 + to; };
          std::vector<int64_t> in, out, counts, expect;
          for (int r = 0; r < at.world; ++r) {
            counts.push_back(count(at.rank, r));
            for (int64_t k = 0; k < count(at.rank, r); ++k) in.push_back(item(at.rank, r, k));
            for (int64_t k = 0; k < count(r, at.rank); ++k) expect.push_back(item(r, at.rank, k));
          }
          out.resize(expect.size());
          const std::vector<int64_t> given = equal ? std::vector<int64_t>() : counts;
          CHECK(at.comm.all_to_all(at.stream, view_of(in), view_of(out), given).ok());
          CHECK(at.stream.sync().ok());
          CHECK(out == expect);
        }
    });
}

TEST_CASE("messages arrive in order, longer than a channel and empty ones too") {
  for (int world : {2, 3, 5})
    run_as_threads(world, [](Rank& at) {
      const int next = (at.rank + 1) % at.world, last = (at.rank + at.world - 1) % at.world;
      for (int64_t n : {0, 1, 999, 100003}) {
        std::vector<float> out(static_cast<size_t>(n)), in(out.size(), -1.0f);
        std::vector<double> second = {at.rank * 1.5}, got = {-1.0};
        fill(out.data(), at.rank, n);
        const auto send = [&] {
          CHECK(at.comm.send(at.stream, view_of(out), next).ok());
          CHECK(at.comm.send(at.stream, view_of(second), next).ok());
        };
        const auto receive = [&] {
          CHECK(at.comm.recv(at.stream, view_of(in), last).ok());
          CHECK(at.comm.recv(at.stream, view_of(got), last).ok());
        };
        // Rank 0 receives first, so that a ring of long messages moves.
        if (at.rank == 0) receive();
        send();
        if (at.rank != 0) receive();
        CHECK(at.stream.sync().ok());
        std::vector<float> expect(in.size());
        fill(expect.data(), last, n);
        CHECK(in == expect);
        CHECK(got[0] == last * 1.5);
      }
    });
}

TEST_CASE("split groups by color and orders by key; the groups work side by side, and may be split again") {
  for (int world : kWorlds)
    run_as_threads(world, [](Rank& at) {
      auto part = at.comm.split(at.rank % 2, -at.rank);
      CHECK_MESSAGE(part.ok(), part.status().message());
      const int members = (at.world + (at.rank % 2 == 0 ? 1 : 0)) / 2;
      CHECK((*part)->world() == members);
      CHECK((*part)->rank() == members - 1 - at.rank / 2);  // keys descend
      std::vector<int64_t> x(500, at.rank);
      CHECK((*part)->all_reduce(at.stream, view_of(x)).ok());
      auto shared = (*part)->alloc(8 * 300, Category::grads);
      CHECK(shared.ok());
      std::fill_n(shared->as<int64_t>(), 300, at.rank);
      CHECK((*part)->all_reduce(at.stream, shared->view(DType::i64, {300}), ReduceOp::max).ok());
      CHECK(at.stream.sync().ok());
      int64_t sum = 0, largest = 0;
      for (int r = at.rank % 2; r < at.world; r += 2) sum += r, largest = r;
      CHECK(x[499] == sum);
      CHECK(shared->as<int64_t>()[299] == largest);

      // Memory of a part used in the whole group.
      CHECK(at.comm.all_reduce(at.stream, shared->view(DType::i64, {300}), ReduceOp::min).ok());
      auto alone = (*part)->split((*part)->rank(), 0);
      CHECK(alone.ok());
      CHECK((*alone)->world() == 1);
      CHECK((*alone)->barrier(at.stream).ok());
      CHECK(at.stream.sync().ok());
      // The largest of the even ranks or of the odd ones, whichever is less.
      CHECK(shared->as<int64_t>()[0] == std::max(0, at.world - 2));
    });
}

TEST_CASE("allocations are zero, may differ in size, and peers read them") {
  run_as_threads(3, [](Rank& at) {
    auto mine = at.comm.alloc(100 * at.rank, Category::grads);
    auto common = at.comm.alloc_common(4096, Category::weights);
    CHECK(mine.ok());
    CHECK(common.ok());
    CHECK(mine->bytes() == 100 * at.rank);
    CHECK(common->common());
    CHECK(std::all_of(mine->as<char>(), mine->as<char>() + mine->bytes(), [](char c) { return c == 0; }));
    if (at.rank == 2) mine->as<char>()[199] = 77;
    if (at.rank == 1) common->as<char>()[4095] = 5;
    CHECK(at.comm.barrier(at.stream).ok());
    CHECK(at.stream.sync().ok());
    CHECK(static_cast<char*>(mine->peer(2))[199] == 77);
    CHECK(common->as<char>()[4095] == 5);
    CHECK(at.device.bytes_peak(Category::weights) == (at.rank == 0 ? 4096 : 0));
  });
}

TEST_CASE("deferred streams give the same results, and an unordered second stream is refused") {
  for (uint64_t seed : {1, 2, 3, 4, 5})
    run_as_threads(
        4,
        [](Rank& at) {
          std::vector<float> x(3000), all(12000);
          fill(x.data(), at.rank, 3000);
          auto second = at.device.new_stream();
          CHECK(at.comm.all_reduce(at.stream, view_of(x)).ok());
          second->wait(at.stream.record());
          CHECK(at.comm.all_gather(*second, view_of(x), view_of(all)).ok());
          CHECK(second->sync().ok());
          CHECK(at.stream.sync().ok());
          CHECK(is_reduced(x.data(), ReduceOp::sum, at.world, 0, 3000));
          CHECK(std::equal(x.begin(), x.end(), all.begin() + 9000));
        },
        {.deferred_seed = seed * 100});
  int refused = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    auto device = Device::open_cpu(device_options(seed));
    auto segment = create_group(1);
    auto comm = LocalCommunicator::open(*segment, 0, **device, {});
    auto second = (*device)->new_stream();
    CHECK((*comm)->barrier((*device)->compute()).ok());
    CHECK((*comm)->barrier(*second).ok());
    const Status a = (*device)->compute().sync(), b = second->sync();
    const Status& bad = a.ok() ? b : a;
    if (bad.ok()) continue;
    ++refused;
    CHECK(bad.message().find("order their streams by an Event") != std::string::npos);
  }
  CHECK(refused > 0);
}

TEST_CASE("contract errors return at the call and leave the group usable") {
  run_as_threads(2, [](Rank& at) {
    std::vector<float> x(6);
    std::vector<double> wide(6);
    TensorView strided = dense_view(static_cast<void*>(x.data()), DType::f32, {2, 3});
    strided.dim[1] = 2;
    TensorView u8 = dense_view(static_cast<void*>(x.data()), DType::u8, {6});
    TensorView cuda = view_of(x);
    cuda.device.cuda = 0;
    const std::vector<int64_t> counts = {1, 2};
    CHECK(at.comm.all_reduce(at.stream, strided).code() == Code::usage);
    CHECK(at.comm.all_reduce(at.stream, u8).code() == Code::usage);
    CHECK(at.comm.all_reduce(at.stream, cuda).code() == Code::usage);
    CHECK(at.comm.all_gather(at.stream, view_of(x), view_of(wide)).code() == Code::usage);
    CHECK(at.comm.broadcast(at.stream, view_of(x), 2).code() == Code::usage);
    CHECK(at.comm.all_to_all(at.stream, view_of(x), view_of(x), counts).code() == Code::usage);
    CHECK(at.comm.send(at.stream, view_of(x), at.rank).code() == Code::usage);
    CHECK(at.comm.recv(at.stream, view_of(x), -1).code() == Code::usage);
    check_all_reduce<float>(at, 10, ReduceOp::sum);
  });
}
