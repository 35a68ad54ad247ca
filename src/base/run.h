// The running process: log level, cancellation, clock, sample statistics.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace llmops {

enum class LogLevel : int8_t { quiet = -1, normal = 0, verbose = 1, debug = 2, trace = 3 };
LogLevel log_level();
void set_log_level(LogLevel level);
// "llmops: message" on stderr when the level is on. One write(2) per message, so ranks do not tear lines.
void log(LogLevel level, std::string_view message);
inline void warn(std::string_view message) { log(LogLevel::normal, message); }

// Cancellation: the first SIGINT or SIGTERM sets a flag that long work reads at micro-batch, chunk or record boundaries;
// a second one re-raises with the default action. SIGPIPE is ignored process-wide.
void install_signal_handlers();
int cancel_signal();            // 0: none; else the signal number
void request_cancel(int signal);  // for ranks told by a peer, and for tests (0 clears)

double monotonic_s();
int64_t unix_time_ms();

struct SampleStats {
  int64_t count = 0;
  double min = 0, median = 0, mean = 0, p95 = 0, p99 = 0, max = 0;
  double spread = 0;  // (p75 - p25) / median; > 0.05 is called unstable
};
SampleStats statistics(std::vector<double> samples);  // percentiles by linear interpolation

}  // namespace llmops
