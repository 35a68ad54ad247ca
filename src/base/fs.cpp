// The system calls of Fs. Interrupted calls are repeated here, except where the kernel may have done the work already
// (close, rename) and where a person may want to stop us (read).
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include "base/io.h"

namespace llmops {
namespace {

template <class Call>
auto uninterrupted(Call&& call) {
  for (;;) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

}  // namespace

int Fs::openat(int dir, const char* path, int flags, mode_t mode) {
  return uninterrupted([&] { return ::openat(dir, path, flags, mode); });
}

int Fs::openat_beneath(int dir, const char* path, int flags) {
  struct open_how how = {};
  how.flags = static_cast<uint64_t>(flags);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  // EAGAIN: a rename elsewhere raced with the lookup. It passes; the bound is for a hostile neighbour.
  for (int attempt = 0; attempt < 128; ++attempt) {
    const int fd = static_cast<int>(uninterrupted([&] { return syscall(SYS_openat2, dir, path, &how, sizeof(how)); }));
    if (fd != -1) return fd;
    if (errno == ENOSYS || errno == EPERM) return walk_beneath(dir, path, flags);
    if (errno != EAGAIN) return -1;
  }
  return -1;
}

int Fs::walk_beneath(int dir, const char* path, int flags) {
  std::string_view rest = path;
  int at = dir;
  const auto leave = [&](int error) {
    if (at != dir) close(at);
    errno = error;
    return -1;
  };
  if (rest.starts_with('/')) return leave(EXDEV);
  for (;;) {
    const size_t slash = rest.find('/');
    const std::string part(rest.substr(0, slash));
    if (part == "..") return leave(EXDEV);
    // O_PATH opens a symlink itself: refused here, whatever it points to.
    const int next = openat(at, part.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC, 0);
    if (next == -1) return leave(errno);
    struct stat status;
    const int error = fstat(next, &status) != 0 ? errno : S_ISLNK(status.st_mode) ? ELOOP : 0;
    if (error == 0 && slash != std::string_view::npos) {
      if (at != dir) close(at);
      at = next;
      rest.remove_prefix(slash + 1);
      continue;
    }
    close(next);
    if (error != 0) return leave(error);
    const int opened = openat(at, part.c_str(), flags | O_NOFOLLOW, 0);
    if (opened == -1) return leave(errno);
    if (at != dir) close(at);
    return opened;
  }
}

ssize_t Fs::read(int fd, void* data, size_t bytes) { return ::read(fd, data, bytes); }

ssize_t Fs::pread(int fd, void* data, size_t bytes, off_t offset) {
  return uninterrupted([&] { return ::pread(fd, data, bytes, offset); });
}

ssize_t Fs::write(int fd, const void* data, size_t bytes) {
  return uninterrupted([&] { return ::write(fd, data, bytes); });
}

ssize_t Fs::pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  return uninterrupted([&] { return ::pwrite(fd, data, bytes, offset); });
}

int Fs::preallocate(int fd, off_t bytes) {
  // The size stays what was written; fallocate itself, since glibc's posix_fallocate would write zeros where it is missing.
  const int result = uninterrupted([&] { return ::fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, bytes); });
  return result != 0 && (errno == EOPNOTSUPP || errno == ENOSYS) ? 0 : result;
}

int Fs::fsync(int fd) {
  return uninterrupted([&] { return ::fsync(fd); });
}

int Fs::close(int fd) { return ::close(fd); }

int Fs::renameat(int from_dir, const char* from, int to_dir, const char* to) {
  return ::renameat(from_dir, from, to_dir, to);
}

int Fs::mkdirat(int dir, const char* path, mode_t mode) { return ::mkdirat(dir, path, mode); }
int Fs::unlinkat(int dir, const char* path, int flags) { return ::unlinkat(dir, path, flags); }
int Fs::fstat(int fd, struct stat* out) { return ::fstat(fd, out); }

int Fs::list(int dir, std::vector<std::string>* names) {
  // A descriptor of our own: a stream moves its descriptor's position and closes it.
  const int fd = ::openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd == -1) return -1;
  DIR* stream = ::fdopendir(fd);
  if (stream == nullptr) {
    const int error = errno;
    ::close(fd);
    errno = error;
    return -1;
  }
  errno = 0;
  while (const dirent* entry = ::readdir(stream)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names->emplace_back(name);
    errno = 0;
  }
  const int error = errno;
  ::closedir(stream);
  errno = error;
  return error == 0 ? 0 : -1;
}

Fs& real_fs() {
  static Fs fs;
  return fs;
}

}  // namespace llmops
