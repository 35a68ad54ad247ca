#include "base/run.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>

#include "base/text.h"

namespace llmops {
namespace {

std::atomic<LogLevel> level_now{LogLevel::normal};
std::atomic<int> cancelled_by{0};
static_assert(std::atomic<int>::is_always_lock_free);

// timeout(1) and some launchers signal the process and then its whole group: that is one request, not two.
constexpr int64_t kRepeatNs = 200'000'000;
std::atomic<int64_t> cancelled_at_ns{0};
static_assert(std::atomic<int64_t>::is_always_lock_free);

int64_t monotonic_ns() {  // async-signal-safe
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

void on_signal(int signal) {
  int64_t never = 0;
  cancelled_at_ns.compare_exchange_strong(never, monotonic_ns());  // before the flag: a second signal may come in between
  int none = 0;
  if (cancelled_by.compare_exchange_strong(none, signal)) return;
  if (monotonic_ns() - cancelled_at_ns.load() < kRepeatNs) return;
  ::signal(signal, SIG_DFL);
  ::raise(signal);  // blocked while its handler runs: ends the process on return
}

// Linear interpolation between the two nearest ranks of sorted samples.
double percentile(const std::vector<double>& sorted, double p) {
  const double rank = p * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(rank), above = std::min(below + 1, sorted.size() - 1);
  const double share = rank - static_cast<double>(below);
  if (share == 0 || sorted[below] == sorted[above]) return sorted[below];  // infinities have no difference
  return sorted[below] + (sorted[above] - sorted[below]) * share;
}

}  // namespace

LogLevel log_level() { return level_now.load(std::memory_order_relaxed); }
void set_log_level(LogLevel level) { level_now.store(level, std::memory_order_relaxed); }

void log(LogLevel level, std::string_view message) {
  if (level > log_level()) return;
  std::string line = "llmops: ";
  line.append(escape_control(message)) += '\n';  // names of files and text from them may hold anything
  // Nothing is left to tell when stderr itself is gone.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_handler = on_signal;  // without SA_RESTART: a blocking read returns and its loop sees the flag
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
  sigaction(SIGXFSZ, &action, nullptr);  // a file size limit is then an error of the write, like a full disk
}

int cancel_signal() { return cancelled_by.load(std::memory_order_relaxed); }
void request_cancel(int signal) { cancelled_by.store(signal); }

double monotonic_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t unix_time_ms() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

SampleStats statistics(std::vector<double> samples) {
  SampleStats stats;
  stats.count = static_cast<int64_t>(samples.size());
  if (samples.empty()) return stats;
  double sum = 0;
  for (double x : samples) sum += x;
  if (std::isnan(sum)) {  // NaN has no order: every figure says so rather than one that looks fine
    const double nan = std::numeric_limits<double>::quiet_NaN();
    return {stats.count, nan, nan, nan, nan, nan, nan, nan};
  }
  std::sort(samples.begin(), samples.end());
  stats.min = samples.front();
  stats.max = samples.back();
  stats.mean = sum / static_cast<double>(samples.size());
  stats.median = percentile(samples, 0.5);
  stats.p95 = percentile(samples, 0.95);
  stats.p99 = percentile(samples, 0.99);
  if (stats.median != 0) stats.spread = (percentile(samples, 0.75) - percentile(samples, 0.25)) / stats.median;
  return stats;
}

}  // namespace llmops
