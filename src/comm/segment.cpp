#include "comm/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>

#include "base/checked.h"
#include "base/run.h"

namespace llmops {
namespace {

constexpr double kSpin_s = 20e-6;     // longer would starve a rank that shares our core
constexpr double kLivenessEvery_s = 0.1;

// Not FUTEX_PRIVATE: the word is shared between processes.
void futex_sleep(std::atomic<uint32_t>& word, uint32_t value, double timeout_s) {
  const time_t whole_s = static_cast<time_t>(timeout_s);
  const timespec timeout = {whole_s, static_cast<long>((timeout_s - static_cast<double>(whole_s)) * 1e9)};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &timeout, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Result<std::shared_ptr<Segment>> Segment::create(int world) {
  if (world < 1 || world > kRanksMax)
    return usage_error(fmt::format("ranks: found {}, expected 1 to {}", world, kRanksMax));
  const int low_fd = memfd_create("llmops-ranks", MFD_CLOEXEC);
  // Above 2, where ranks have their standard streams, even when ours are closed.
  const int fd = low_fd < 0 ? -1 : fcntl(low_fd, F_DUPFD_CLOEXEC, 3);
  const int error = errno;
  if (low_fd >= 0) close(low_fd);
  if (fd < 0) return io_error(fmt::format("shared memory file: cannot be created: {}", strerror(error)));
  std::shared_ptr<Segment> segment(new Segment(fd));
  if (ftruncate(fd, kHeaderBytes) != 0)
    return io_error(fmt::format("shared memory file: cannot hold {} bytes: {}", kHeaderBytes, strerror(errno)));
  LLMOPS_ASSIGN(char* address, segment->at(0, kHeaderBytes));
  segment->header_ = reinterpret_cast<SegmentHeader*>(address);
  segment->header_->magic = SegmentHeader::kMagic;
  segment->header_->world = world;
  segment->header_->bytes_used.store(kHeaderBytes);
  return segment;
}

Result<std::shared_ptr<Segment>> Segment::attach(int fd) {
  const Status other =
      peer_error(fmt::format("shared memory file: descriptor {} is none: start ranks with --ranks", fd));
  struct stat st = {};
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size < static_cast<off_t>(kHeaderBytes)) return other;
  SegmentHeader header;
  const auto begins = offsetof(SegmentHeader, bytes_used);
  if (pread(fd, &header, begins, 0) != static_cast<ssize_t>(begins)) return other;
  if (header.magic != SegmentHeader::kMagic || header.world < 1 || header.world > kRanksMax) return other;
  std::shared_ptr<Segment> segment(new Segment(fd));
  fcntl(fd, F_SETFD, FD_CLOEXEC);  // not for processes that a rank may start
  LLMOPS_ASSIGN(char* address, segment->at(0, kHeaderBytes));
  segment->header_ = reinterpret_cast<SegmentHeader*>(address);
  return segment;
}

Segment::~Segment() {
  for (const Mapping& m : mappings_) munmap(m.address, m.bytes);
  close(fd_);
}

Result<uint64_t> Segment::extend(uint64_t bytes) {
  const auto room = checked_round_up(std::max<uint64_t>(bytes, 1), kPage);
  if (!room || *room > uint64_t{1} << 46) return io_error(fmt::format("shared memory: cannot hold {} bytes", bytes));
  const uint64_t offset = header_->bytes_used.fetch_add(*room);
  // A write at the last byte makes the file longer and, unlike ftruncate, never shorter when two ranks extend at once.
  const char zero = 0;
  if (pwrite(fd_, &zero, 1, static_cast<off_t>(offset + *room - 1)) != 1)
    return io_error(fmt::format("shared memory: cannot hold {} bytes after {}: {}", *room, offset, strerror(errno)));
  return offset;
}

Result<char*> Segment::at(uint64_t offset, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  for (const Mapping& m : mappings_)
    if (m.offset <= offset && offset + bytes <= m.offset + m.bytes) return m.address + (offset - m.offset);
  const uint64_t begin = offset / kPage * kPage;
  const uint64_t end = (offset + std::max<uint64_t>(bytes, 1) + kPage - 1) / kPage * kPage;
  void* address = mmap(nullptr, end - begin, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, static_cast<off_t>(begin));
  if (address == MAP_FAILED)
    return io_error(fmt::format("shared memory: cannot map {} bytes: {}", end - begin, strerror(errno)));
  madvise(address, end - begin, MADV_HUGEPAGE);  // a hint: some kernels have no huge pages for memory files
  mappings_.push_back({begin, end - begin, static_cast<char*>(address)});
  return static_cast<char*>(address) + (offset - begin);
}

std::optional<uint64_t> Segment::offset_of(const void* data, uint64_t bytes) {
  const char* p = static_cast<const char*>(data);
  std::lock_guard lock(mutex_);
  for (const Mapping& m : mappings_)
    if (m.address <= p && p + bytes <= m.address + m.bytes) return m.offset + static_cast<uint64_t>(p - m.address);
  return std::nullopt;
}

void Segment::ring() {
  // Sequentially consistent on both sides: either the sleeper sees the new bell, or we see the sleeper.
  header_->bell.fetch_add(1);
  if (header_->sleepers.load() != 0) futex_wake_all(header_->bell);
}

Segment::WaitEnd Segment::wait(const std::function<bool()>& done, const std::function<bool()>& lost,
                               double deadline_s) {
  const auto is_aborted = [&] { return header_->abort_state.load() != 0; };
  if (is_aborted()) return WaitEnd::aborted;
  if (done()) return WaitEnd::done;
  const double start_s = monotonic_s();
  while (monotonic_s() - start_s < kSpin_s) {
    for (int i = 0; i < 32; ++i) cpu_relax();
    if (done()) return WaitEnd::done;
  }
  WaitEnd end = WaitEnd::late;
  double look_s = start_s + kLivenessEvery_s;
  header_->sleepers.fetch_add(1);
  for (;;) {
    const uint32_t bell = header_->bell.load();
    const double now_s = monotonic_s();
    if (is_aborted()) end = WaitEnd::aborted;
    else if (done()) end = WaitEnd::done;
    else if (now_s - start_s >= deadline_s) end = WaitEnd::late;
    else if (now_s >= look_s && lost()) end = done() ? WaitEnd::done : WaitEnd::lost;
    else {
      if (now_s >= look_s) look_s = now_s + kLivenessEvery_s;
      futex_sleep(header_->bell, bell, std::max(1e-6, std::min(start_s + deadline_s, look_s) - now_s));
      continue;
    }
    break;
  }
  header_->sleepers.fetch_sub(1);
  return end;
}

void Segment::abort(const std::string& reason) {
  uint32_t none = 0;
  if (!header_->abort_state.compare_exchange_strong(none, 1)) return;
  const size_t n = std::min(reason.size(), sizeof header_->abort_reason - 1);
  memcpy(header_->abort_reason, reason.data(), n);
  header_->abort_state.store(2);
  ring();
}

Status Segment::aborted() const {
  const uint32_t state = header_->abort_state.load();
  if (state == 0) return Status();
  // In state 1 the writer is about to finish, or died: do not wait for it.
  if (state == 1) return peer_error("the group was aborted");
  return peer_error(fmt::format("the group was aborted: {}", header_->abort_reason));
}

bool Segment::alive(int rank) const {
  const int pid = header_->pid[rank].load();
  return pid == 0 || kill(pid, 0) == 0 || errno != ESRCH;
}

std::string Segment::name_of(int rank) const {
  const int pid = header_->pid[rank].load();
  return pid == 0 ? fmt::format("rank {} (not started)", rank) : fmt::format("rank {} (pid {})", rank, pid);
}

}  // namespace llmops
