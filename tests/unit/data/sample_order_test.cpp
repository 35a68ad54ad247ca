#include <doctest/doctest.h>

#include <set>

#include "data/dataset.h"

using namespace llmops;

TEST_CASE("an epoch visits every window once, side by side") {
  for (const int64_t tokens : {9, 10, 16, 17, 100, 1000, 4097}) {
    for (const int64_t seq : {1, 3, 8}) {
      CAPTURE(tokens);
      CAPTURE(seq);
      const auto order = SampleOrder::create(tokens, seq, 7);
      REQUIRE(order.ok());
      const int64_t windows = order->windows_per_epoch();
      for (int64_t epoch = 0; epoch < 3; ++epoch) {
        std::set<int64_t> offsets;
        for (int64_t i = 0; i < windows; ++i) offsets.insert(order->offset(epoch * windows + i));
        REQUIRE(static_cast<int64_t>(offsets.size()) == windows);
        CHECK(*offsets.begin() >= 0);
        CHECK(*offsets.rbegin() + seq < tokens);
        CHECK(*offsets.rbegin() - *offsets.begin() == (windows - 1) * seq);
        CHECK(order->epoch_of(epoch * windows) == epoch);
      }
    }
  }
}

TEST_CASE("over epochs every token is an input and the last one is a target") {
  const auto order = SampleOrder::create(50, 8, 1);
  std::set<int64_t> inputs, targets;
  for (int64_t i = 0; i < 400 * order->windows_per_epoch(); ++i)
    for (int64_t t = 0; t < 8; ++t) inputs.insert(order->offset(i) + t), targets.insert(order->offset(i) + t + 1);
  CHECK(inputs.size() == 49);
  CHECK(*targets.rbegin() == 49);
}

TEST_CASE("the order is drawn anew per epoch and seed, and is no plain walk") {
  const auto a = SampleOrder::create(100001, 10, 1), b = SampleOrder::create(100001, 10, 2);
  const int64_t windows = a->windows_per_epoch();
  int64_t same_epoch = 0, same_seed = 0, neighbours = 0;
  for (int64_t i = 0; i + 1 < windows; ++i) {
    same_epoch += a->offset(i) / 10 == a->offset(windows + i) / 10;
    same_seed += a->offset(i) / 10 == b->offset(i) / 10;
    neighbours += a->offset(i + 1) - a->offset(i) == 10;
  }
  CHECK(windows == 9999);
  CHECK(same_epoch < 20);  // about 1 is expected
  CHECK(same_seed < 20);
  CHECK(neighbours < 20);
}

TEST_CASE("the order never changes: a checkpoint counts on it") {
  const auto order = SampleOrder::create(1003854, 64, 1);
  CHECK(order->windows_per_epoch() == 15684);
  const int64_t first[] = {order->offset(0), order->offset(1), order->offset(2), order->offset(1000000)};
  const int64_t recorded[] = {302786, 617538, 475266, 493224};  // by a second implementation, in Python
  for (int i = 0; i < 4; ++i) CHECK(first[i] == recorded[i]);
}

TEST_CASE("data for less than one window is refused with the numbers") {
  const auto order = SampleOrder::create(64, 64, 1);
  CHECK(order.status().code() == Code::invalid);
  CHECK(order.status().message().find("64 tokens; one sample of 64 needs 65") != std::string::npos);
  CHECK(SampleOrder::create(65, 64, 1)->windows_per_epoch() == 1);
  CHECK(SampleOrder::create(65, 64, 1)->offset(5) == 0);
  CHECK(SampleOrder::create(0, 1, 1).status().code() == Code::invalid);
  CHECK(SampleOrder::create(100, 0, 1).status().code() == Code::usage);
  CHECK(validation_windows(111540, 64) == 1742);
  CHECK(validation_windows(64, 64) == 0);
  CHECK(validation_windows(65, 64) == 1);
  CHECK(validation_windows(0, 64) == 0);
}
