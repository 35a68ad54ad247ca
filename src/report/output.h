// Standard output of the process. A reader that went away (EPIPE) is quiet and remembered: the work goes on, later
// writes are dropped and count as success. Any other failure (a full disk) is kept and becomes Code::io.
#pragma once

#include <string_view>

#include "base/status.h"

namespace llmops {

class Output {
 public:
  explicit Output(int fd = 1) : fd_(fd) {}
  // One write(2) when the kernel takes it whole, so a record is visible as soon as it is written.
  Status write(std::string_view text);
  bool closed() const { return closed_; }  // nobody reads any more: work that only prints may stop
  bool is_terminal() const;
  // The first failure of the run, or one that only the end of the file shows (quota, network file systems).
  Status finish();

 private:
  int fd_;
  bool closed_ = false;
  Status failure_;
};

// Colour on this descriptor: a terminal, TERM not "dumb", NO_COLOR empty. FORCE_COLOR (not empty) asks for it anywhere
// but does not beat NO_COLOR.
bool colour_wanted(int fd);

}  // namespace llmops
