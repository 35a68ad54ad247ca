// How many cores the process may use: the CPU affinity mask and the cgroup quotas, v1 and v2.
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "base/pool.h"

namespace llmops {
namespace {

// The ratio as whole cores: rounded down, because 8 threads on a quota of 7.65 throttle the whole group.
int cores_of(int64_t quota_us, int64_t period_us, int limit) {
  if (quota_us <= 0 || period_us <= 0) return limit;
  return static_cast<int>(std::min<int64_t>(limit, std::max<int64_t>(1, quota_us / period_us)));
}

std::optional<int64_t> read_int(const std::string& path) {
  std::ifstream in(path);
  int64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

// cpu.max holds "QUOTA PERIOD", or "max PERIOD" for no limit.
int limit_v2(const std::string& folder, int limit) {
  std::ifstream in(folder + "/cpu.max");
  std::string quota;
  int64_t period_us = 0;
  if (!(in >> quota >> period_us) || quota == "max") return limit;
  return cores_of(std::strtoll(quota.c_str(), nullptr, 10), period_us, limit);
}

int limit_v1(const std::string& folder, int limit) {
  const auto quota_us = read_int(folder + "/cpu.cfs_quota_us");  // -1: no limit
  const auto period_us = read_int(folder + "/cpu.cfs_period_us");
  return quota_us && period_us ? cores_of(*quota_us, *period_us, limit) : limit;
}

// Applies `limit_of` to the group and all its ancestors. In a container the path may name groups that are not mounted:
// those are absent files; the mount's own root is always asked.
template <class LimitOf>
int walk_up(const std::string& mount, std::string group, int limit, LimitOf&& limit_of) {
  if (group.find("..") != std::string::npos) group.clear();  // a group above the root of our cgroup namespace
  for (;;) {
    while (!group.empty() && group.back() == '/') group.pop_back();
    limit = limit_of(mount + group, limit);
    if (group.empty()) return limit;
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
}

bool names_cpu(const std::string& controllers) {
  return ("," + controllers + ",").find(",cpu,") != std::string::npos;
}

}  // namespace

int usable_cores(const char* root, int affinity_cores) {
  int limit = std::max(affinity_cores, 1);
  const std::string mounts = std::string(root) + "/sys/fs/cgroup";
  std::ifstream groups(std::string(root) + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "ID:CONTROLLERS:PATH", v2: "0::PATH"
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (controllers.empty()) {
      for (const char* mount : {"", "/unified"}) limit = walk_up(mounts + mount, group, limit, limit_v2);
    } else if (names_cpu(controllers)) {
      for (const std::string& mount : {std::string("cpu"), controllers})
        limit = walk_up(mounts + "/" + mount, group, limit, limit_v1);
    }
  }
  return limit;
}

int usable_cores() {
  // A mask larger than cpu_set_t makes the call fail; then the count of online cores is all we know.
  cpu_set_t set;
  const bool known = sched_getaffinity(0, sizeof(set), &set) == 0;
  return usable_cores("", known ? CPU_COUNT(&set) : static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace llmops
