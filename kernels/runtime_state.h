// What the pieces of the runtime share; nobody outside kernels/*.cpp includes it.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <optional>

#include "kernels/accelerator.h"
#include "kernels/runtime.h"

namespace llmops {

struct Event::State {
  Device* device;
  std::atomic<bool> done = false;
  Status failure;  // written before `done`
  std::shared_ptr<QueueMark> mark;  // of an accelerator's stream: `done` follows it
};

struct Stream::State {
  struct Item {
    enum class Kind : uint8_t { work, record, wait } kind;
    std::function<Status()> work;
    std::string what;
    Event event;
  };
  std::deque<Item> queue;  // deferred mode only
  Status failure;
  std::unique_ptr<DeviceQueue> accelerated;  // null on the host
  const char *first = nullptr, *last = nullptr;  // of the calls since the last sync, on an accelerated stream
  int64_t calls = 0;
  std::deque<std::shared_ptr<QueueMark>> marks;  // one every few calls: how far the device has come
  int64_t unmarked = 0;                          // calls since the newest
  int64_t workspace_moves = 0;
  bool capturing = false;
  Buffer workspace;
};

constexpr size_t kCategories = static_cast<size_t>(Category::kCount);

struct Device::State {
  Options options;
  const OpTable* ops = nullptr;
  std::optional<Pool> pool;
  std::unique_ptr<Accelerator> accelerator;  // null on the host
  bool fast_matmul = false;
  Status lost;  // why nothing waits for the accelerator any more
  std::mutex memory;  // guards the two arrays: snapshots are freed by writer threads
  int64_t in_use[kCategories] = {};
  int64_t peak[kCategories] = {};
  std::vector<Stream*> streams;
  std::map<int, std::function<Status()>> watches;
  int watch_count = 0;
  double deadline_s = 0;
  uint64_t draws = 0;
  std::unique_ptr<Stream> compute;
};

}  // namespace llmops
