#include "report/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/run.h"
#include "base/text.h"

namespace llmops {
namespace {

constexpr double kQuietStart_s = 2;  // shorter work needs no progress line
constexpr double kRedrawEvery_s = 0.1;

bool can_rewrite_lines(int fd) {
  const char* term = std::getenv("TERM");
  return ::isatty(fd) == 1 && term != nullptr && *term != '\0' && std::strcmp(term, "dumb") != 0;
}

int columns_of(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void write_text(int fd, std::string_view text) {
  // A terminal that went away takes no progress; the work goes on.
  [[maybe_unused]] const ssize_t written = ::write(fd, text.data(), text.size());
}

}  // namespace

Progress::Progress(std::string what, double total, int fd, double (*now)())
    : what_(std::move(what)),
      total_(total),
      fd_(fd),
      now_(now != nullptr ? now : monotonic_s),
      shown_(log_level() >= LogLevel::normal && can_rewrite_lines(fd)),
      start_s_(now_()),
      drawn_s_(start_s_) {}

std::string Progress::line(double done, double elapsed_s, std::string_view detail) const {
  std::string out = what_ + "  ";
  if (total_ > 0) {
    const double share = std::clamp(done / total_, 0.0, 1.0);
    out += std::to_string(static_cast<int>(share * 100)) + " %  " + format_count(done) + " of " + format_count(total_);
    if (share > 0) out += "  " + format_duration(elapsed_s * (1 - share) / share) + " left";
  } else {
    out += format_count(done) + "  " + format_duration(elapsed_s);
  }
  if (!detail.empty()) out += "  " + escape_control(detail);
  return out;
}

void Progress::update(double done, std::string_view detail) {
  if (!shown_) return;
  const double now_s = now_();
  if (now_s - start_s_ < kQuietStart_s || now_s - drawn_s_ < kRedrawEvery_s) return;
  drawn_s_ = now_s;
  std::string text = line(done, now_s - start_s_, detail);
  // One column short of the edge: a full line would wrap, and a carriage return could not take it back.
  const int room = columns_of(fd_) - 1;
  while (!text.empty() && display_width(text) > room) {
    do text.pop_back();
    while (utf8_tail(text) != 0);
  }
  const int width = display_width(text);
  const std::string padding(static_cast<size_t>(std::max(0, width_ - width)), ' ');
  write_text(fd_, "\r" + text + padding);
  width_ = std::max(width, width_);
}

void Progress::clear() {
  if (width_ == 0) return;
  std::string blank = "\r";
  blank.append(static_cast<size_t>(width_), ' ') += '\r';
  write_text(fd_, blank);
  width_ = 0;
}

}  // namespace llmops
