// A thread pool for data-parallel loops. It belongs to a Device; a process may own several.
//
// Tasks are cut by the caller, never by the number of threads, and claimed one by one from an atomic counter: results
// that do not depend on who runs a task do not depend on the thread count either. An idle worker spins for at most
// 100 us, then sleeps on a futex, so that two processes sharing a core do not starve each other.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace llmops {

class Pool {
 public:
  explicit Pool(int threads);  // threads >= 1, the calling thread included
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // Calls f(task, worker) for every task in [0, count); worker in [0, threads()) names the scratch that f may use.
  // Returns when all tasks are done. Not re-entrant: f must not call parallel_for on the same pool.
  template <class F>
  void parallel_for(int64_t count, F&& f) {
    using Fn = std::remove_reference_t<F>;
    run(count, [](void* context, int64_t task, int worker) { (*static_cast<Fn*>(context))(task, worker); },
        const_cast<void*>(static_cast<const void*>(&f)));
  }

 private:
  using Body = void (*)(void* context, int64_t task, int worker);
  void run(int64_t count, Body body, void* context);

  struct Shared;
  int threads_;
  std::unique_ptr<Shared> shared_;
};

// Cores that this process may really use: min(affinity, cgroup v2 cpu.max and v1 cfs quota over the whole ancestor
// chain, rounded down), at least 1.
int usable_cores();
// The same against a fake root, for tests: `root` stands for "/" when /proc/self/cgroup and /sys/fs/cgroup are read.
int usable_cores(const char* root, int affinity_cores);

}  // namespace llmops
