// How a job passes through the pool. The caller writes the job, then stores its number of tasks in `remaining` (release).
// Whoever decrements `remaining` from r >= 1 owns task count - r. The job cannot end before that task has, so the fields of
// the job are read only after a claim and never change under the reader; a worker that comes late, from an older job,
// either finds nothing or legally helps the new one. Nobody waits for a worker that holds no task.
#include "base/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <system_error>
#include <thread>
#include <vector>

namespace llmops {
namespace {

constexpr std::chrono::microseconds kSpin{100};

using Word = std::atomic<uint32_t>;
static_assert(sizeof(Word) == 4 && Word::is_always_lock_free);

void futex_wait(Word& word, uint32_t expected) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake(Word& word, int waiters_max) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, waiters_max, nullptr, nullptr, 0);
}

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until ready() or kSpin has passed; whether ready() was seen.
template <class Ready>
bool spin_until(Ready&& ready) {
  if (ready()) return true;
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      cpu_relax();
      if (ready()) return true;
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

}  // namespace

struct Pool::Shared {
  // The job: written by the caller before `remaining`.
  int64_t count = 0;
  Body body = nullptr;
  void* context = nullptr;

  alignas(64) std::atomic<int64_t> remaining{0};   // tasks not yet claimed; below zero: none
  alignas(64) std::atomic<int64_t> unfinished{0};  // tasks not yet done
  alignas(64) Word started{0};                     // changes with every job; workers sleep on it
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  alignas(64) Word finished{0};  // changes with every end of a job; the caller sleeps on it
  std::atomic<bool> caller_sleeps{false};

  std::vector<std::thread> workers;
  cpu_set_t cpus;  // where the workers may run

  void wake_workers(int count);
  void work(int worker);
  void worker_main(int worker);
  void wait_for_end();
};

// Runs tasks until none is left to claim.
void Pool::Shared::work(int worker) {
  int64_t done = 0;
  for (;;) {
    const int64_t left = remaining.fetch_sub(1, std::memory_order_acq_rel);
    if (left <= 0) break;
    body(context, count - left, worker);
    ++done;
  }
  if (done == 0) return;
  if (unfinished.fetch_sub(done, std::memory_order_acq_rel) == done) {
    finished.fetch_add(1);
    if (caller_sleeps.load()) futex_wake(finished, 1);
  }
}

void Pool::Shared::worker_main(int worker) {
  pthread_setname_np(pthread_self(), "llmops-pool");
  while (!stop.load()) {
    // Read before looking for tasks: a job that starts after this line changes `started`, and the wait below returns.
    const uint32_t seen = started.load();
    if (remaining.load(std::memory_order_relaxed) > 0) work(worker);
    if (spin_until([&] { return started.load(std::memory_order_relaxed) != seen; })) continue;
    sleepers.fetch_add(1);
    futex_wait(started, seen);
    sleepers.fetch_sub(1);
    pthread_setaffinity_np(pthread_self(), sizeof cpus, &cpus);
  }
}

// The kernel of a virtual machine takes a halted CPU for one that its host has given to others, and would wake a worker on
// the CPU of its caller: there the two take turns, and the other CPU idles for milliseconds. So a sleeper is told first to
// wake anywhere else; awake, it may again run everywhere.
void Pool::Shared::wake_workers(int count) {
  cpu_set_t others = cpus;
  CPU_CLR(sched_getcpu(), &others);
  if (CPU_COUNT(&others) > 0)
    for (std::thread& worker : workers) pthread_setaffinity_np(worker.native_handle(), sizeof others, &others);
  futex_wake(started, count);
}

void Pool::Shared::wait_for_end() {
  const auto ended = [&] { return unfinished.load(std::memory_order_acquire) == 0; };
  if (spin_until(ended)) return;
  caller_sleeps.store(true);
  for (;;) {
    const uint32_t seen = finished.load();
    if (ended()) break;
    futex_wait(finished, seen);
  }
  caller_sleeps.store(false);
}

Pool::Pool(int threads) : threads_(std::max(threads, 1)), shared_(std::make_unique<Shared>()) {
  // Signals that ask us to stop go to the threads that read and write, never to a worker.
  sigset_t stop_signals, before;
  sigemptyset(&stop_signals);
  sigaddset(&stop_signals, SIGINT);
  sigaddset(&stop_signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &stop_signals, &before);
  shared_->workers.reserve(threads_ - 1);
  if (sched_getaffinity(0, sizeof shared_->cpus, &shared_->cpus) != 0) CPU_ZERO(&shared_->cpus);  // more CPUs than bits
  for (int worker = 1; worker < threads_; ++worker) {
    try {
      shared_->workers.emplace_back([s = shared_.get(), worker] { s->worker_main(worker); });
    } catch (const std::system_error&) {  // a limit on threads: work with those we got
      threads_ = worker;
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Pool::~Pool() {
  shared_->stop.store(true);
  shared_->started.fetch_add(1);
  futex_wake(shared_->started, INT_MAX);
  for (std::thread& worker : shared_->workers) worker.join();
}

void Pool::run(int64_t count, Body body, void* context) {
  if (count <= 1 || threads_ == 1) {
    for (int64_t task = 0; task < count; ++task) body(context, task, 0);
    return;
  }
  Shared& s = *shared_;
  s.count = count;
  s.body = body;
  s.context = context;
  s.unfinished.store(count, std::memory_order_relaxed);
  s.remaining.store(count, std::memory_order_release);
  s.started.fetch_add(1);
  if (s.sleepers.load() > 0) s.wake_workers(static_cast<int>(std::min<int64_t>(count, threads_) - 1));
  s.work(0);
  s.wait_for_end();
}

}  // namespace llmops
