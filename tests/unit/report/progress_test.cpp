#include "report/progress.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

#include "base/run.h"

using namespace llmops;

namespace {

double clock_s = 0;

// A terminal of 60 columns and what was shown on it.
struct Terminal {
  int screen = -1, fd = -1;
  Terminal() {
    winsize size = {24, 60, 0, 0};
    REQUIRE(openpty(&screen, &fd, nullptr, nullptr, &size) == 0);
    fcntl(screen, F_SETFL, O_NONBLOCK);
    setenv("TERM", "xterm", 1);
    clock_s = 100;
  }
  ~Terminal() {
    close(screen);
    close(fd);
  }
  std::string shown() const {
    char text[4096];
    const ssize_t bytes = read(screen, text, sizeof text);
    return bytes > 0 ? std::string(text, static_cast<size_t>(bytes)) : "";
  }
};

double now() { return clock_s; }

}  // namespace

TEST_CASE("nothing before two seconds, then share and time left, at most ten times a second") {
  Terminal terminal;
  {
    Progress progress("rows", 100, terminal.fd, now);
    clock_s += 1.9;
    progress.update(10);
    CHECK(terminal.shown() == "");
    clock_s += 0.6;
    progress.update(25, "loss 2.31");
    CHECK(terminal.shown() == "\rrows  25 %  25 of 100  7.5 s left  loss 2.31");
    clock_s += 0.05;
    progress.update(26);
    CHECK(terminal.shown() == "");
    clock_s += 0.07;
    progress.update(30);
    const std::string shorter = terminal.shown();
    CHECK(shorter.starts_with("\rrows  30 %  30 of 100  "));
    CHECK(shorter.size() ==
          std::string("\rrows  25 %  25 of 100  7.5 s left  loss 2.31").size());  // padded with blanks
  }
  const std::string cleared = terminal.shown();
  CHECK(cleared.front() == '\r');
  CHECK(cleared.back() == '\r');
  CHECK(cleared.find_first_not_of("\r ") == std::string::npos);
}

TEST_CASE("the line stays within the terminal and control characters do not reach it") {
  Terminal terminal;
  Progress progress("rows", 0, terminal.fd, now);
  clock_s += 3;
  progress.update(5, "\x1b[2J" + std::string(200, 'x'));
  const std::string line = terminal.shown();
  CHECK(line.size() == 60);  // the carriage return and 59 columns
  CHECK(line.find('\x1b') == std::string::npos);
}

TEST_CASE("no terminal, a dumb one, or quiet: nothing") {
  Terminal terminal;
  auto shows = [&](int fd) {
    terminal.shown();  // what the one before took away
    Progress progress("rows", 10, fd, now);
    clock_s += 3;
    progress.update(5);
    return terminal.shown() != "";
  };
  CHECK(shows(terminal.fd));
  setenv("TERM", "dumb", 1);
  CHECK_FALSE(shows(terminal.fd));
  setenv("TERM", "xterm", 1);
  set_log_level(LogLevel::quiet);
  CHECK_FALSE(shows(terminal.fd));
  set_log_level(LogLevel::normal);
  int fds[2];
  REQUIRE(pipe2(fds, O_NONBLOCK) == 0);
  Progress progress("rows", 10, fds[1], now);
  clock_s += 3;
  progress.update(5);
  char byte;
  CHECK(read(fds[0], &byte, 1) == -1);
  close(fds[0]);
  close(fds[1]);
}
