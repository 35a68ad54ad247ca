#include <fcntl.h>
#include <unistd.h>

#include <new>
#include <string>
#include <vector>

#include "base/run.h"
#include "cmds/dispatch.h"

namespace {

// A descriptor that the caller closed would be given to the next file we open, and results would land in it. Open for
// the wrong direction, its use still fails.
void keep_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd)
    if (fcntl(fd, F_GETFD) < 0) (void)!open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
}

}  // namespace

int main(int argc, char** argv) {
  keep_standard_descriptors();
  llmops::install_signal_handlers();
  llmops::Output out;
  int code = 0;
  try {
    const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
    code = llmops::dispatch(words, out);
  } catch (const std::bad_alloc&) {
    llmops::log(llmops::LogLevel::quiet, "out of memory");
    return llmops::exit_code(llmops::Code::io);
  }
  // Results that did not reach the disk are a failure, unless one was told already.
  const llmops::Status written = out.finish();
  if (written.ok() || code > 1) return code;
  llmops::log(llmops::LogLevel::quiet, written.message());
  return llmops::exit_code(written.code());
}
