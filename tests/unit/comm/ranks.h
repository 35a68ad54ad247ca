// Ranks as threads over one segment, for tests.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "comm/comm.h"
#include "comm/local.h"

namespace llmops::test {

inline Device::Options device_options(uint64_t deferred_seed = 0, int threads = 1) {
  Device::Options options;
  options.threads = threads;
  options.deferred_seed = deferred_seed;
  return options;
}

struct Rank {
  Communicator& comm;
  Device& device;
  Stream& stream;
  int rank, world;
};

struct RanksOptions {
  uint64_t deferred_seed = 0;
  int threads = 1;
  double deadline_s = 20;
};

// Calls body once per rank, each on a thread of its own with a device and a communicator of its own.
inline void run_as_threads(int world, const std::function<void(Rank&)>& body, const RanksOptions& options = {}) {
  auto segment = create_group(world);
  REQUIRE(segment.ok());
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r)
    threads.emplace_back([&, r] {
      const uint64_t seed = options.deferred_seed == 0 ? 0 : options.deferred_seed + static_cast<uint64_t>(r);
      auto device = Device::open_cpu(device_options(seed, options.threads));
      CHECK(device.ok());
      auto comm = LocalCommunicator::open(*segment, r, **device, {.deadline_s = options.deadline_s});
      CHECK_MESSAGE(comm.ok(), comm.status().message());
      if (!comm.ok()) return;
      Rank rank{**comm, **device, (*device)->compute(), r, world};
      body(rank);
      CHECK((*device)->bytes_peak(Category::comm) > 0);
    });
  for (std::thread& t : threads) t.join();
}

// Small integers, different per rank and element: sums are exact in f32, so a scalar sum is the expected value.
template <class T>
T value_of(int rank, int64_t i) {
  return static_cast<T>((i * 7 + rank * 13) % 101 - 50);
}

// Values whose sum depends on the order of addition.
inline float rough(int rank, int64_t i) {
  const uint32_t h = static_cast<uint32_t>(i) * 2654435761u ^ static_cast<uint32_t>(rank + 1) * 40503u;
  return (static_cast<float>(h % 20011) - 10005.0f) * (h & 1 ? 1.0f : 3e-4f) + 1.0f / static_cast<float>(h % 97 + 1);
}

// The tree of comm.h, written out for one element.
inline float tree_sum(const float* x, int low, int high) {
  if (high - low == 1) return x[low];
  int half = 1;
  while (half * 2 < high - low) half *= 2;
  return tree_sum(x, low, low + half) + tree_sum(x, low + half, high);
}

// The sum over ranks first, first + 1, ... of their rough values of element i.
inline float rough_sum(int first, int world, int64_t i) {
  float x[kRanksMax];
  for (int r = 0; r < world; ++r) x[r] = rough(first + r, i);
  return tree_sum(x, 0, world);
}

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::f32;
  if constexpr (std::is_same_v<T, double>) return DType::f64;
  if constexpr (std::is_same_v<T, int64_t>) return DType::i64;
}

template <class T>
TensorView view_of(std::vector<T>& x) {
  return dense_view(static_cast<void*>(x.data()), dtype_of<T>(), {std::ssize(x)});
}

constexpr int kWorlds[] = {1, 2, 3, 4, 5, 8};
// Empty, one, odd, around the inline limit (256 f32), beyond one stage (262144 f32), several stages.
constexpr int64_t kSizes[] = {0, 1, 3, 255, 256, 257, 1000, 4097, 262145, 530001};

}  // namespace llmops::test
