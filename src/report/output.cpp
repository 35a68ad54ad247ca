#include "report/output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace llmops {
namespace {

Status write_error(int error) {
  return io_error(std::string("standard output: cannot write: ") + std::strerror(error));
}

bool has_text(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

}  // namespace

Status Output::write(std::string_view text) {
  while (!text.empty() && !closed_ && failure_.ok()) {
    const ssize_t written = ::write(fd_, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EPIPE) {
      closed_ = true;
    } else if (errno == EAGAIN) {  // a non-blocking pipe or terminal that another program left so
      pollfd ready{fd_, POLLOUT, 0};
      ::poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      failure_ = write_error(errno);
    }
  }
  return failure_;
}

bool Output::is_terminal() const { return ::isatty(fd_) == 1; }

Status Output::finish() {
  // Closing a duplicate reports what only the end of a file shows and keeps the descriptor itself in use.
  const int copy = ::dup(fd_);
  if (copy >= 0 && ::close(copy) != 0 && errno != EINTR && failure_.ok()) failure_ = write_error(errno);
  return failure_;
}

bool colour_wanted(int fd) {
  if (has_text("NO_COLOR")) return false;
  if (has_text("FORCE_COLOR")) return true;
  const char* term = std::getenv("TERM");
  return ::isatty(fd) == 1 && term != nullptr && std::strcmp(term, "dumb") != 0;
}

}  // namespace llmops
