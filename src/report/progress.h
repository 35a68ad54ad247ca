// A progress line with ETA for work that takes longer than two seconds. It shows only where stderr is a terminal that
// can return to the start of a line (TERM not "dumb") and the log level is not quiet. No colour, no escape sequences:
// the line is padded with blanks and rewritten after a carriage return.
#pragma once

#include <string>
#include <string_view>

namespace llmops {

class Progress {
 public:
  // `total` <= 0: unknown, shown without share and ETA. `now` is the clock in seconds, replaced by tests.
  Progress(std::string what, double total, int fd = 2, double (*now)() = nullptr);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Cheap enough for every record: draws at most ten times a second. `detail` ends the line ("loss 2.31").
  void update(double done, std::string_view detail = {});
  // Takes the line away, before anything else is written to the terminal; the next update draws it anew.
  void clear();

 private:
  std::string line(double done, double elapsed_s, std::string_view detail) const;

  std::string what_;
  double total_;
  int fd_;
  double (*now_)();
  bool shown_;  // may it be drawn at all?
  double start_s_, drawn_s_;
  int width_ = 0;  // columns on the screen now
};

}  // namespace llmops
