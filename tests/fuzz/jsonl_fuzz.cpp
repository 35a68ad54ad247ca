// The input is a file of JSON lines, plain or compressed; reading goes on after a malformed line.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "data/records.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace llmops;
  const int fd = ::memfd_create("jsonl", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, data, size) != static_cast<ssize_t>(size)) return ::close(fd);
  auto reader = RecordReader::open("/proc/self/fd/" + std::to_string(fd), {.line_bytes_max = 4096, .keep_going = true});
  int64_t line = 0;
  while (reader.ok()) {
    const auto record = reader->next();
    if (!record.ok() || !*record) break;
    if ((*record)->line <= line) __builtin_trap();
    line = (*record)->line;
    if ((*record)->status.ok() != (*record)->json.is_object()) __builtin_trap();
  }
  return ::close(fd);
}
