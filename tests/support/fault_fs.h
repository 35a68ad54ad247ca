// A file system that fails on purpose: the Nth call, or every call from the Nth on, returns a chosen error; writes and
// reads may be cut short. To visit every failure, count the calls of one clean run, then repeat it for each N.
#pragma once

#include <errno.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/io.h"

namespace llmops::testing {

class FaultFs : public Fs {
 public:
  int fail_at = 0;         // 1 is the first call; 0: never
  int error = EIO;
  bool stays_broken = false;  // all later calls fail too, as if the process had been killed at call fail_at
  size_t bytes_per_call_max = SIZE_MAX;  // longer reads and writes are cut short
  std::vector<std::string> calls;        // the names of the calls so far

  void reset(int next_fail_at, int next_error) {
    calls.clear();
    fail_at = next_fail_at;
    error = next_error;
  }
  bool fired() const { return fail_at > 0 && static_cast<int>(calls.size()) >= fail_at; }

  int openat(int dir, const char* path, int flags, mode_t mode) override {
    return fails("openat") ? -1 : Fs::openat(dir, path, flags, mode);
  }
  int openat_beneath(int dir, const char* path, int flags) override {
    return fails("openat_beneath") ? -1 : Fs::openat_beneath(dir, path, flags);
  }
  ssize_t read(int fd, void* data, size_t bytes) override {
    return fails("read") ? -1 : Fs::read(fd, data, std::min(bytes, bytes_per_call_max));
  }
  ssize_t pread(int fd, void* data, size_t bytes, off_t offset) override {
    return fails("pread") ? -1 : Fs::pread(fd, data, std::min(bytes, bytes_per_call_max), offset);
  }
  ssize_t write(int fd, const void* data, size_t bytes) override {
    return fails("write") ? -1 : Fs::write(fd, data, std::min(bytes, bytes_per_call_max));
  }
  ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) override {
    return fails("pwrite") ? -1 : Fs::pwrite(fd, data, std::min(bytes, bytes_per_call_max), offset);
  }
  int preallocate(int fd, off_t bytes) override { return fails("preallocate") ? -1 : Fs::preallocate(fd, bytes); }
  int fsync(int fd) override { return fails("fsync") ? -1 : Fs::fsync(fd); }
  int close(int fd) override {
    // As in Linux, a failing close releases the descriptor all the same.
    const bool failed = fails("close");
    const int result = Fs::close(fd);
    if (failed) errno = error;
    return failed ? -1 : result;
  }
  int renameat(int from_dir, const char* from, int to_dir, const char* to) override {
    return fails("renameat") ? -1 : Fs::renameat(from_dir, from, to_dir, to);
  }
  int mkdirat(int dir, const char* path, mode_t mode) override {
    return fails("mkdirat") ? -1 : Fs::mkdirat(dir, path, mode);
  }
  int unlinkat(int dir, const char* path, int flags) override {
    return fails("unlinkat") ? -1 : Fs::unlinkat(dir, path, flags);
  }
  int fstat(int fd, struct stat* out) override { return fails("fstat") ? -1 : Fs::fstat(fd, out); }
  int list(int dir, std::vector<std::string>* names) override { return fails("list") ? -1 : Fs::list(dir, names); }

 private:
  bool fails(const char* name) {
    calls.emplace_back(name);
    const int number = static_cast<int>(calls.size());
    const bool failed = fail_at > 0 && (stays_broken ? number >= fail_at : number == fail_at);
    if (failed) errno = error;
    return failed;
  }
};

}  // namespace llmops::testing
