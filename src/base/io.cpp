// Reading files, and the directory handle.
#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "base/run.h"

namespace llmops {
namespace {

constexpr int kOpenDir = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

// Why `path` is not a plain relative path ("a/b"); nullptr when it is one.
const char* not_plain(std::string_view path) {
  if (path.empty()) return "an empty name";
  if (path.starts_with('/')) return "an absolute path";
  if (path.find('\0') != path.npos) return "a name with a NUL byte";
  for (;;) {
    const size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    if (part == "..") return "a path with '..'";
    if (part.empty() || part == ".") return "a path with an empty or '.' part";
    if (slash == path.npos) return nullptr;
    path.remove_prefix(slash + 1);
  }
}

Status check_plain(std::string_view path) {
  const char* why = not_plain(path);
  return why ? invalid_error(fmt::format("{} where a name inside the folder was expected", why)) : Status();
}

std::string join(const std::string& dir, std::string_view relative) {
  return fmt::format("{}{}{}", dir, dir.ends_with('/') ? "" : "/", relative);
}

// ELOOP and EXDEV are how the kernel says that a path is, or leads through, a symlink, or leaves the folder.
Status open_status(const std::string& path, const char* what, int error) {
  if (error == ELOOP || error == EXDEV) return invalid_error(path + ": a symbolic link, or a path that leaves its folder");
  return errno_status(path, what, error);
}

// The folder that holds the last part of `relative`: opened when it is not `dir` itself.
struct Parent {
  std::optional<Dir> opened;
  int fd;
  std::string leaf;
};

Result<Parent> parent_of(const Dir& dir, std::string_view relative) {
  LLMOPS_TRY(check_plain(relative).in(join(dir.path(), relative)));
  const size_t slash = relative.rfind('/');
  if (slash == relative.npos) return Parent{std::nullopt, dir.fd(), std::string(relative)};
  LLMOPS_ASSIGN(Dir parent, dir.open_dir(relative.substr(0, slash)));
  const int fd = parent.fd();
  return Parent{std::move(parent), fd, std::string(relative.substr(slash + 1))};
}

}  // namespace

Status errno_status(const std::string& object, const char* what, int error) {
  const char* text = strerrordesc_np(error);
  return io_error(fmt::format("{}: cannot {}: {}", object, what, text ? text : "unknown error"));
}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) fs_->close(fd_);
    fs_ = other.fs_;
    fd_ = std::exchange(other.fd_, -1);
    path_ = std::move(other.path_);
  }
  return *this;
}

File::~File() {
  if (fd_ >= 0) fs_->close(fd_);
}

Result<File> File::open(const std::string& path, Fs& fs) {
  if (path == "-") {
    const int fd = ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    if (fd == -1) return errno_status("stdin", "open", errno);
    return File(fs, fd, "stdin");
  }
  const int fd = fs.openat(AT_FDCWD, path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY, 0);
  if (fd == -1) return errno_status(path, "open", errno);
  File file(fs, fd, path);
  struct stat status;
  if (fs.fstat(fd, &status) != 0) return errno_status(path, "stat", errno);
  if (S_ISDIR(status.st_mode)) return errno_status(path, "read", EISDIR);
  return file;
}

Result<int64_t> File::size() const {
  struct stat status;
  if (fs_->fstat(fd_, &status) != 0) return errno_status(path_, "stat", errno);
  return static_cast<int64_t>(status.st_size);
}

Status File::read_at(int64_t offset, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const int64_t at = offset + static_cast<int64_t>(done);
    const ssize_t got = fs_->pread(fd_, out.data() + done, out.size() - done, at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status(path_, "read", errno);
    if (got == 0)
      return invalid_error(fmt::format("{}: truncated: {} bytes at offset {} expected, the file ends at {}", path_, out.size(),
                                       offset, at));
    done += static_cast<size_t>(got);
  }
  return {};
}

Result<size_t> File::read_some(std::span<std::byte> out) const {
  for (;;) {
    const ssize_t got = fs_->read(fd_, out.data(), out.size());
    if (got >= 0) return static_cast<size_t>(got);
    if (errno != EINTR) return errno_status(path_, "read", errno);
    if (cancel_signal() != 0) return Status(Code::interrupted, path_ + ": stopped by a signal while reading");
  }
}

Status File::close() {
  if (fd_ < 0) return {};
  // After EINTR Linux has released the descriptor all the same.
  if (fs_->close(std::exchange(fd_, -1)) != 0 && errno != EINTR) return errno_status(path_, "close", errno);
  return {};
}

Result<Dir> Dir::open(const std::string& path, Fs& fs) {
  const int fd = fs.openat(AT_FDCWD, path.empty() ? "." : path.c_str(), kOpenDir, 0);
  if (fd == -1) return errno_status(path, "open the folder", errno);
  return Dir(fs, File(fs, fd, path.empty() ? "." : path));
}

Result<Dir> Dir::create(const std::string& path, Fs& fs) {
  for (size_t end = path.find('/', 1); ; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (!part.empty() && fs.mkdirat(AT_FDCWD, part.c_str(), 0777) != 0) {
      // An existing part is fine, even where mkdir names another reason first (a read-only or foreign parent).
      const int error = errno;
      const int there = fs.openat(AT_FDCWD, part.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
      if (there == -1) return errno_status(part, "create the folder", error);
      fs.close(there);
    }
    if (end == std::string::npos) return open(path, fs);
  }
}

namespace {

// O_NONBLOCK: a pipe or device planted under the name must not hang us before fstat refuses it.
constexpr int kOpenFile = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;

Result<File> regular(Fs& fs, int fd, const std::string& full) {
  if (fd == -1 && errno == ENXIO) return invalid_error(full + ": not a regular file");  // a socket
  if (fd == -1) return open_status(full, "open", errno);
  File file(fs, fd, full);
  struct stat status;
  if (fs.fstat(fd, &status) != 0) return errno_status(full, "stat", errno);
  if (!S_ISREG(status.st_mode)) return invalid_error(full + ": not a regular file");
  return file;
}

}  // namespace

Result<File> Dir::open_file(std::string_view relative) const {
  const std::string full = join(path(), relative);
  LLMOPS_TRY(check_plain(relative).in(full));
  return regular(*fs_, fs_->openat_beneath(this->fd(), std::string(relative).c_str(), kOpenFile), full);
}

Result<File> Dir::open_linked(std::string_view relative) const {
  LLMOPS_ASSIGN(const Parent parent, parent_of(*this, relative));
  return regular(*fs_, fs_->openat(parent.fd, parent.leaf.c_str(), kOpenFile, 0), join(path(), relative));
}

Result<Dir> Dir::open_dir(std::string_view relative) const {
  const std::string full = join(path(), relative);
  LLMOPS_TRY(check_plain(relative).in(full));
  const int fd = fs_->openat_beneath(this->fd(), std::string(relative).c_str(), kOpenDir);
  if (fd == -1) return open_status(full, "open the folder", errno);
  return Dir(*fs_, File(*fs_, fd, full));
}

Result<Dir> Dir::reopen() const {
  const int fd = fs_->openat(this->fd(), ".", kOpenDir, 0);
  if (fd == -1) return errno_status(path(), "open the folder", errno);
  return Dir(*fs_, File(*fs_, fd, path()));
}

bool Dir::exists(std::string_view relative) const {
  if (not_plain(relative)) return false;
  const int fd = fs_->openat_beneath(this->fd(), std::string(relative).c_str(), O_PATH | O_CLOEXEC);
  if (fd == -1) return errno == ELOOP;
  fs_->close(fd);
  return true;
}

Result<std::vector<std::string>> Dir::list() const {
  std::vector<std::string> names;
  if (fs_->list(fd(), &names) != 0) return errno_status(path(), "list the folder", errno);
  std::sort(names.begin(), names.end());
  return names;
}

Status Dir::sync() const {
  return fs_->fsync(fd()) == 0 ? Status() : errno_status(path(), "sync the folder", errno);
}

Status Dir::rename(std::string_view from, std::string_view to) const {
  LLMOPS_ASSIGN(Parent source, parent_of(*this, from));
  LLMOPS_ASSIGN(Parent target, parent_of(*this, to));
  if (fs_->renameat(source.fd, source.leaf.c_str(), target.fd, target.leaf.c_str()) == 0) return {};
  const int error = errno;
  return errno_status(join(path(), from), fmt::format("rename to {}", to).c_str(), error);
}

Status Dir::make_dir(std::string_view relative) const {
  LLMOPS_ASSIGN(Parent parent, parent_of(*this, relative));
  if (fs_->mkdirat(parent.fd, parent.leaf.c_str(), 0777) == 0) return {};
  return errno_status(join(path(), relative), "create the folder", errno);
}

Status Dir::remove_tree(std::string_view relative) const {
  const std::string full = join(path(), relative);
  LLMOPS_ASSIGN(Parent parent, parent_of(*this, relative));
  if (fs_->unlinkat(parent.fd, parent.leaf.c_str(), 0) == 0 || errno == ENOENT) return {};
  // POSIX says EPERM for a folder, Linux EISDIR.
  if (errno != EISDIR && errno != EPERM) return errno_status(full, "remove", errno);
  {
    LLMOPS_ASSIGN(Dir dir, open_dir(relative));
    LLMOPS_ASSIGN(auto names, dir.list());
    for (const std::string& name : names) LLMOPS_TRY(dir.remove_tree(name));
  }
  if (fs_->unlinkat(parent.fd, parent.leaf.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return {};
  return errno_status(full, "remove", errno);
}

Result<std::string> read_file(const std::string& path, int64_t bytes_max) {
  LLMOPS_ASSIGN(File file, File::open(path));
  LLMOPS_ASSIGN(const int64_t size, file.size());  // 0 for pipes and /proc: a hint only
  std::string content;
  size_t used = 0;
  for (;;) {
    if (used == content.size()) {
      const size_t next = used == 0 ? static_cast<size_t>(std::min(size, bytes_max)) + 1 : used * 2;
      content.resize(std::max<size_t>(next, 4096));
    }
    LLMOPS_ASSIGN(const size_t got, file.read_some(std::as_writable_bytes(std::span(content).subspan(used))));
    if (got == 0) break;
    used += got;
    if (used > static_cast<size_t>(bytes_max))
      return invalid_error(fmt::format("{}: longer than the {} bytes that are read at most", file.path(), bytes_max));
  }
  content.resize(used);
  return content;
}

Result<int64_t> free_bytes(const std::string& path) {
  std::string at = path.empty() ? "." : path;
  for (;;) {
    struct statvfs status;
    if (::statvfs(at.c_str(), &status) == 0) return static_cast<int64_t>(status.f_bavail * status.f_frsize);
    if (errno == EINTR) continue;
    if (errno != ENOENT || at == "." || at == "/") return errno_status(path, "ask for free space", errno);
    while (at.size() > 1 && at.back() == '/') at.pop_back();
    const size_t slash = at.rfind('/');
    at = slash == std::string::npos ? "." : at.substr(0, std::max<size_t>(slash, 1));
  }
}

}  // namespace llmops
