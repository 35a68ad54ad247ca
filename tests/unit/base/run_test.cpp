#include "base/run.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <string>

using namespace llmops;

namespace {

// Runs f in a child with stderr on a pipe; the child's wait status and what it wrote.
template <class F>
int in_child(F&& f, std::string* err = nullptr) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    f();
    _exit(0);
  }
  close(ends[1]);
  char buffer[4096];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof(buffer))) > 0;)
    if (err) err->append(buffer, static_cast<size_t>(got));
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace

TEST_CASE("the first signal asks, the second ends the process") {
  const int once = in_child([] {
    install_signal_handlers();
    raise(SIGTERM);
    _exit(cancel_signal() == SIGTERM ? 7 : 8);
  });
  CHECK(WIFEXITED(once));
  CHECK(WEXITSTATUS(once) == 7);

  const int twice = in_child([] {
    install_signal_handlers();
    raise(SIGINT);
    usleep(250'000);
    raise(SIGINT);
  });
  CHECK(WIFSIGNALED(twice));
  CHECK(WTERMSIG(twice) == SIGINT);

  const int echo = in_child([] {  // timeout(1) signals the process, then its group: one request
    install_signal_handlers();
    raise(SIGTERM);
    raise(SIGTERM);
    _exit(9);
  });
  CHECK(WIFEXITED(echo));
}

TEST_CASE("a closed pipe is an error of write, not the death of the process") {
  const int status = in_child([] {
    install_signal_handlers();
    int ends[2];
    if (pipe(ends) != 0) _exit(1);
    close(ends[0]);
    _exit(write(ends[1], "x", 1) == -1 && errno == EPIPE ? 7 : 8);
  });
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
}

TEST_CASE("cancellation can be asked for and taken back") {
  request_cancel(SIGTERM);
  CHECK(cancel_signal() == SIGTERM);
  request_cancel(0);
  CHECK(cancel_signal() == 0);
}

TEST_CASE("messages go to stderr with our name, by level") {
  std::string err;
  const int status = in_child(
      [] {
        warn("one");
        log(LogLevel::verbose, "hidden");
        set_log_level(LogLevel::debug);
        log(LogLevel::verbose, "two");
        log(LogLevel::trace, "hidden");
        set_log_level(LogLevel::quiet);
        warn("hidden");
      },
      &err);
  CHECK(status == 0);
  CHECK(err == "llmops: one\nllmops: two\n");
}

TEST_CASE("clocks move forward; the wall clock is in this century") {
  const double before = monotonic_s();
  usleep(2000);
  const double passed = monotonic_s() - before;
  CHECK(passed >= 0.002);
  CHECK(passed < 60);
  CHECK(unix_time_ms() > 1'600'000'000'000);
  CHECK(unix_time_ms() < 4'100'000'000'000);
}

TEST_CASE("statistics: percentiles are interpolated between ranks") {
  const SampleStats s = statistics({4, 1, 3, 2});  // sorted 1 2 3 4
  CHECK(s.count == 4);
  CHECK(s.min == 1);
  CHECK(s.max == 4);
  CHECK(s.mean == 2.5);
  CHECK(s.median == 2.5);
  CHECK(s.p95 == doctest::Approx(3.85).epsilon(1e-12));
  CHECK(s.p99 == doctest::Approx(3.97).epsilon(1e-12));
  CHECK(s.spread == doctest::Approx((3.25 - 1.75) / 2.5).epsilon(1e-12));
}

TEST_CASE("statistics of none, of one, of equals, and of NaN") {
  CHECK(statistics({}).count == 0);
  CHECK(statistics({}).median == 0);
  const SampleStats one = statistics({7});
  CHECK(one.min == 7);
  CHECK(one.p99 == 7);
  CHECK(one.spread == 0);
  CHECK(statistics({0, 0, 0}).spread == 0);
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(statistics({1, 2, infinity}).median == 2);
  CHECK(statistics({1, infinity}).max == infinity);
  const SampleStats bad = statistics({1, std::nan(""), 3});
  CHECK(bad.count == 3);
  CHECK(std::isnan(bad.median));
  CHECK(std::isnan(bad.spread));
}
