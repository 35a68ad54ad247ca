#include <algorithm>
#include <chrono>
#include <cstring>

#include "unit/comm/ranks.h"

using namespace llmops;
using namespace llmops::test;

namespace {

constexpr int64_t kElems = 50021;

// Slices of very different sizes, some of them empty, and an empty bucket.
std::vector<Bucket> uneven_buckets(int world) {
  std::vector<Bucket> buckets = {even_bucket(0, 17001, world, 4096), even_bucket(17001, 33000, world, 1)};
  Bucket third;
  for (int r = 0; r <= world; ++r) third.cut.push_back(r == 0 || r + 1 < world ? 50001 : kElems);
  buckets.push_back(third);
  buckets.push_back(even_bucket(kElems, 0, world, 64));
  return buckets;
}

float gradient(int step, int rank, int64_t i) { return rough(rank + step * 17, i); }

// One step as the training loop does it: "parameters" become the sums of gradients.
void run_step(Rank& at, GradientExchange& exchange, const std::vector<Bucket>& buckets, const SharedBuffer& grads,
              const SharedBuffer& params, int step) {
  const int n = static_cast<int>(buckets.size());
  std::vector<bool> folded(buckets.size());
  int folded_early = 0;
  for (int b = 0; b < n; ++b) {
    CHECK(!exchange.ready(b));
    for (int64_t i = buckets[b].begin(); i < buckets[b].end(); ++i) grads.as<float>()[i] = gradient(step, at.rank, i);
    CHECK(exchange.post(at.stream, b).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds((at.rank * 3 + b * 5 + step) % 4));
    for (int earlier = 0; earlier <= b; ++earlier)
      if (!folded[earlier] && exchange.ready(earlier)) {
        CHECK(exchange.reduce_slice(at.stream, earlier).ok());
        folded[earlier] = true;
        ++folded_early;
      }
  }
  for (int b = n - 1; b >= 0; --b)
    if (!folded[b]) CHECK(exchange.reduce_slice(at.stream, b).ok());
  // The norm's all_reduce: all ranks are done with this step's parameters.
  std::vector<double> norm = {1.0};
  CHECK(at.comm.all_reduce(at.stream, view_of(norm)).ok());
  CHECK(at.stream.sync().ok());
  CHECK(norm[0] == at.world);
  if (at.world == 1) CHECK(folded_early == n);
  for (int b = 0; b < n; ++b) {
    const int64_t begin = buckets[b].cut[at.rank], end = buckets[b].cut[at.rank + 1];
    std::copy(grads.as<float>() + begin, grads.as<float>() + end, params.as<float>() + begin);
    CHECK(exchange.publish_slice(at.stream, b).ok());
  }
  for (int b = 0; b < n; ++b) CHECK(exchange.gather_slices(at.stream, b, params, DType::f32).ok());
  CHECK(at.stream.sync().ok());
  int64_t wrong = 0;
  for (int64_t i = 0; i < kElems; ++i) wrong += params.as<float>()[i] != rough_sum(step * 17, at.world, i);
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("steps of the exchange: tree sums in own slices, gathered parameters, own or common, deferred or not") {
  for (int world : kWorlds)
    for (bool common : {false, true})
      run_as_threads(
          world,
          [common](Rank& at) {
            auto grads = at.comm.alloc(kElems * 4, Category::grads);
            auto params = common ? at.comm.alloc_common(kElems * 4, Category::weights)
                                 : at.comm.alloc(kElems * 4, Category::weights);
            const std::vector<Bucket> buckets = uneven_buckets(at.world);
            auto exchange = at.comm.new_exchange(*grads, buckets);
            CHECK_MESSAGE(exchange.ok(), exchange.status().message());
            for (int step = 0; step < 3; ++step) run_step(at, **exchange, buckets, *grads, *params, step);
          },
          {.threads = common ? 2 : 1});
}

TEST_CASE("the exchange on deferred streams") {
  for (uint64_t seed : {11, 12, 13})
    run_as_threads(
        3,
        [](Rank& at) {
          auto grads = at.comm.alloc(1000 * 4, Category::grads);
          auto params = at.comm.alloc(1000 * 2, Category::weights);
          auto exchange = at.comm.new_exchange(*grads, {even_bucket(0, 600, 3, 64), even_bucket(600, 400, 3, 64)});
          for (int i = 0; i < 1000; ++i) grads->as<float>()[i] = value_of<float>(at.rank, i);
          for (int b : {0, 1}) CHECK((*exchange)->post(at.stream, b).ok());
          CHECK(!(*exchange)->ready(0));  // recorded, not run
          for (int b : {1, 0}) CHECK((*exchange)->reduce_slice(at.stream, b).ok());
          CHECK(at.stream.sync().ok());
          const Bucket first = even_bucket(0, 600, 3, 64);
          for (int64_t i = first.cut[at.rank]; i < first.cut[at.rank + 1]; ++i)
            CHECK(grads->as<float>()[i] == value_of<float>(0, i) + value_of<float>(1, i) + value_of<float>(2, i));
          // bf16 parameters: the slices are copied as they are.
          for (int64_t i = first.cut[at.rank]; i < first.cut[at.rank + 1]; ++i)
            params->as<uint16_t>()[i] = static_cast<uint16_t>(i);
          CHECK((*exchange)->publish_slice(at.stream, 0).ok());
          CHECK((*exchange)->gather_slices(at.stream, 0, *params, DType::bf16).ok());
          CHECK(at.stream.sync().ok());
          for (int i = 0; i < 600; ++i) CHECK(params->as<uint16_t>()[i] == i);
        },
        {.deferred_seed = seed});
}

TEST_CASE("misuse of the exchange is refused") {
  run_as_threads(2, [](Rank& at) {
    auto grads = at.comm.alloc(400, Category::grads);
    CHECK(at.comm.new_exchange(*grads, {even_bucket(0, 101, 2, 1)}).status().code() == Code::usage);
    CHECK(at.comm.new_exchange(*grads, {even_bucket(0, 50 + at.rank, 2, 1)}).status().code() == Code::usage);
    auto exchange = at.comm.new_exchange(*grads, {even_bucket(0, 100, 2, 1)});
    CHECK((*exchange)->reduce_slice(at.stream, 0).code() == Code::usage);
    CHECK((*exchange)->post(at.stream, 1).code() == Code::usage);
    CHECK((*exchange)->gather_slices(at.stream, 0, *grads, DType::f32).code() == Code::usage);
    CHECK((*exchange)->post(at.stream, 0).ok());
    CHECK((*exchange)->post(at.stream, 0).code() == Code::usage);
    CHECK((*exchange)->publish_slice(at.stream, 0).ok());
    CHECK((*exchange)->gather_slices(at.stream, 0, *grads, DType::f64).code() == Code::usage);
  });
}

TEST_CASE("a bucket that a rank does not post is named at the deadline") {
  run_as_threads(
      3,
      [](Rank& at) {
        auto grads = at.comm.alloc(400, Category::grads);
        auto exchange = at.comm.new_exchange(*grads, {even_bucket(0, 100, 3, 1)});
        if (at.rank == 1) return;
        CHECK((*exchange)->post(at.stream, 0).ok());
        CHECK((*exchange)->reduce_slice(at.stream, 0).ok());
        const Status status = at.stream.sync();
        CHECK(status.code() == Code::peer);
        CHECK(status.message().find("gradients of bucket 0: rank 1 (pid ") != std::string::npos);
        CHECK(status.message().find("did not post within 0.3 s") != std::string::npos);
      },
      {.deadline_s = 0.3});
}

TEST_CASE("even_bucket cuts multiples of the grain") {
  CHECK(even_bucket(10, 100, 4, 8).cut == std::vector<int64_t>{10, 42, 66, 90, 110});
  CHECK(even_bucket(0, 5, 3, 8).cut == std::vector<int64_t>{0, 5, 5, 5});
  CHECK(even_bucket(7, 0, 2, 64).cut == std::vector<int64_t>{7, 7, 7});
}
