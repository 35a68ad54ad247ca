// Another process of this binary (or of a program on PATH), its output line by line.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/status.h"

namespace llmops {

class Child {
 public:
  // args[0] is the program: "/proc/self/exe" or a name on PATH. stderr goes to `stderr_path`.
  static Result<Child> start(const std::vector<std::string>& args, const std::string& stderr_path);
  Child(Child&& other) noexcept;
  ~Child();  // kills
  // The next line of its stdout without the newline; false at the end.
  bool next_line(std::string* line);
  void kill_now();
  int wait();  // exit code, or 128 + signal

 private:
  Child() = default;
  pid_t pid_ = -1;
  int fd_ = -1;
  std::string buffer_;
};

}  // namespace llmops
