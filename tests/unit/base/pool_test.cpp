#include "base/pool.h"

#include <doctest/doctest.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "support/scratch.h"

using namespace llmops;
using llmops::testing::Scratch;

TEST_CASE("every task runs exactly once, with a worker number in range") {
  for (int threads : {1, 2, 3, 8}) {
    Pool pool(threads);
    CHECK(pool.threads() == threads);
    for (int64_t count : {0, 1, 2, 3, 7, 64, 1000}) {
      std::vector<int> runs(static_cast<size_t>(count));  // plain ints: a task run twice at once is a race that tsan sees
      std::atomic<int> bad_workers{0};
      pool.parallel_for(count, [&](int64_t task, int worker) {
        ++runs[static_cast<size_t>(task)];
        if (worker < 0 || worker >= threads) ++bad_workers;
      });
      CHECK(std::all_of(runs.begin(), runs.end(), [](int n) { return n == 1; }));
      CHECK(bad_workers == 0);
    }
  }
}

TEST_CASE("two tasks never hold the same worker number at once, so scratch by worker is safe") {
  Pool pool(4);
  std::vector<int64_t> scratch(4);
  for (int round = 0; round < 200; ++round)
    pool.parallel_for(50, [&](int64_t task, int worker) { scratch[static_cast<size_t>(worker)] += task; });
  int64_t sum = 0;
  for (int64_t s : scratch) sum += s;
  CHECK(sum == 200 * 50 * 49 / 2);
}

TEST_CASE("what the tasks wrote is seen after the loop, what was written before is seen by the tasks") {
  Pool pool(3);
  std::vector<int64_t> data(256, 0);
  for (int64_t round = 1; round <= 2000; ++round) {
    const int64_t add = round;
    pool.parallel_for(static_cast<int64_t>(data.size()), [&](int64_t task, int) { data[static_cast<size_t>(task)] += add; });
    data[0] -= add;
  }
  CHECK(data[0] == 0);
  CHECK(data[255] == 2000 * 2001 / 2);
}

TEST_CASE("no wake-up is lost: workers that sleep, that spin and that are just falling asleep all come back") {
  Pool pool(4);
  std::atomic<int64_t> done{0};
  for (int round = 0; round < 1500; ++round) {
    // Pauses around the 20 us of spinning hit the moment of falling asleep.
    std::this_thread::sleep_for(std::chrono::microseconds(round % 60));
    pool.parallel_for(4, [&](int64_t, int) { ++done; });
  }
  CHECK(done == 6000);
}

TEST_CASE("workers take part: tasks that wait for each other need as many threads") {
  Pool pool(3);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> arrived{0};
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    std::atomic<bool> met{true};
    pool.parallel_for(3, [&](int64_t, int) {
      ++arrived;
      while (arrived < 3) {
        if (std::chrono::steady_clock::now() > deadline) {
          met = false;
          return;
        }
        std::this_thread::yield();
      }
    });
    CHECK(met);
  }
}

TEST_CASE("a single task and a pool of one run on the calling thread") {
  const auto caller = std::this_thread::get_id();
  Pool one(1), three(3);
  int foreign = 0;
  one.parallel_for(10, [&](int64_t, int worker) { foreign += std::this_thread::get_id() != caller || worker != 0; });
  three.parallel_for(1, [&](int64_t, int worker) { foreign += std::this_thread::get_id() != caller || worker != 0; });
  CHECK(foreign == 0);
}

TEST_CASE("worker threads carry the name llmops-pool") {
  Pool pool(2);
  std::mutex mutex;
  std::set<std::string> names;
  const auto caller = std::this_thread::get_id();
  std::atomic<int> arrived{0};
  pool.parallel_for(2, [&](int64_t, int) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();  // both threads take one task
    char name[16] = {};
    pthread_getname_np(pthread_self(), name, sizeof(name));
    const std::lock_guard lock(mutex);
    if (std::this_thread::get_id() != caller) names.insert(name);
  });
  CHECK(names == std::set<std::string>{"llmops-pool"});
}

TEST_CASE("an idle pool uses no processor time") {
  Pool pool(4);
  pool.parallel_for(8, [](int64_t, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::clock_t before = std::clock();  // of all threads of the process
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC < 0.05);
}

TEST_CASE("several pools work at the same time, and pools come and go") {
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&] {
      for (int life = 0; life < 20; ++life) {
        Pool pool(2);
        for (int i = 0; i < 10; ++i) pool.parallel_for(10, [&](int64_t task, int) { sum += task; });
      }
    });
  for (auto& rank : ranks) rank.join();
  CHECK(sum == 3 * 20 * 10 * 45);
}

TEST_CASE("cgroup v2: the smallest quota of the group and its ancestors, rounded down") {
  Scratch root;
  const auto cores = [&](int affinity) { return usable_cores(root.path().c_str(), affinity); };
  CHECK(cores(16) == 16);  // no /proc/self/cgroup at all
  CHECK(cores(0) == 1);
  root.put("proc/self/cgroup", "0::/a/b\n");
  CHECK(cores(16) == 16);
  root.put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  CHECK(cores(16) == 16);
  root.put("sys/fs/cgroup/a/cpu.max", "765000 100000\n");
  CHECK(cores(16) == 7);
  CHECK(cores(4) == 4);
  root.put("sys/fs/cgroup/a/b/cpu.max", "250000 100000\n");
  CHECK(cores(16) == 2);
  root.put("sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
  CHECK(cores(16) == 1);  // half a core is still one thread
  root.put("sys/fs/cgroup/a/b/cpu.max", "garbage");
  CHECK(cores(16) == 7);
  root.put("sys/fs/cgroup/a/b/cpu.max", "0 0\n");
  CHECK(cores(16) == 7);
}

TEST_CASE("cgroup v2 in a container: the path is the root, or lies above it") {
  Scratch root;
  root.put("sys/fs/cgroup/cpu.max", "400000 100000\n");
  for (const char* line : {"0::/\n", "0::/../..\n", "0::/not/mounted/here\n"}) {
    root.put("proc/self/cgroup", line);
    CHECK(usable_cores(root.path().c_str(), 16) == 4);
  }
}

TEST_CASE("cgroup v1 and hybrid mounts") {
  Scratch root;
  root.put("proc/self/cgroup", "12:memory:/job\n4:cpu,cpuacct:/job/step\n3:cpuset:/x\n0::/user\n");
  root.put("sys/fs/cgroup/cpu,cpuacct/job/step/cpu.cfs_quota_us", "-1\n");
  root.put("sys/fs/cgroup/cpu,cpuacct/job/step/cpu.cfs_period_us", "100000\n");
  CHECK(usable_cores(root.path().c_str(), 16) == 16);
  root.put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "390000\n");
  root.put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  CHECK(usable_cores(root.path().c_str(), 16) == 3);
  root.put("sys/fs/cgroup/unified/user/cpu.max", "200000 100000\n");
  CHECK(usable_cores(root.path().c_str(), 16) == 2);
}

TEST_CASE("this machine has at least one core for us") {
  CHECK(usable_cores() >= 1);
  CHECK(usable_cores() <= static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
}
