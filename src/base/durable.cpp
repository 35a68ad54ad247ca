// Writing files durably.
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>

#include "base/io.h"

namespace llmops {
namespace {

constexpr int kTempNamesMax = 1000;  // left by crashed processes that had our number

// A full disk is a matter of sizes: how much was to be written, how much is there.
Status write_status(const File& file, const std::string& path, int64_t bytes_done, int64_t bytes_wanted, int error) {
  Status status = errno_status(path, "write", error);
  if (error != ENOSPC && error != EDQUOT && error != EFBIG) return status;
  struct statvfs disk;
  const bool known = ::fstatvfs(file.fd(), &disk) == 0;
  return io_error(fmt::format("{}: {} bytes written, {} bytes needed{}", status.message(), bytes_done, bytes_wanted,
                              known ? fmt::format(", {} bytes free", disk.f_bavail * disk.f_frsize) : ""));
}

}  // namespace

DurableFile::DurableFile(Dir folder, std::string name, int64_t bytes_expected)
    : folder_(std::make_unique<Dir>(std::move(folder))),
      name_(std::move(name)),
      bytes_expected_(bytes_expected),
      hasher_(std::make_unique<Hasher>()) {}

DurableFile::DurableFile(DurableFile&&) noexcept = default;

DurableFile::~DurableFile() {
  if (temp_.fd() >= 0) [[maybe_unused]] const Status status = fail({});
}

std::string DurableFile::path() const {
  return folder_->path() + (folder_->path().ends_with('/') ? "" : "/") + name_;
}

Result<DurableFile> DurableFile::create(const Dir& dir, std::string_view name, int64_t bytes_expected) {
  const size_t slash = name.rfind('/');
  const std::string leaf(name.substr(slash == name.npos ? 0 : slash + 1));
  if (leaf.empty() || leaf == "." || leaf == ".." || leaf.find('\0') != leaf.npos)
    return invalid_error(fmt::format("{}/{}: not a name for a file", dir.path(), name));
  // A handle of our own, so that the file may outlive `dir`.
  LLMOPS_ASSIGN(Dir folder, slash == name.npos ? dir.reopen() : dir.open_dir(name.substr(0, slash)));
  DurableFile file(std::move(folder), leaf, bytes_expected);
  LLMOPS_TRY(file.open_temp());
  return file;
}

Status DurableFile::open_temp() {
  Fs& fs = folder_->fs();
  int fd = -1;
  for (int i = 0; i < kTempNamesMax && fd == -1; ++i) {
    temp_name_ = fmt::format(".llmops-{}-{}.tmp", ::getpid(), i);  // short whatever the name: NAME_MAX is 255
    fd = fs.openat(folder_->fd(), temp_name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd == -1 && errno != EEXIST) break;
  }
  if (fd == -1) return failure_ = errno_status(path(), "create", errno);
  temp_ = File(fs, fd, path());
  if (bytes_expected_ > 0 && fs.preallocate(fd, bytes_expected_) != 0)
    return fail(write_status(temp_, path(), 0, bytes_expected_, errno));
  return {};
}

Status DurableFile::fail(Status status) {
  temp_ = File();
  folder_->fs().unlinkat(folder_->fd(), temp_name_.c_str(), 0);
  return failure_ = std::move(status);
}

Status DurableFile::write(std::span<const std::byte> data) {
  if (!failure_.ok()) return failure_;
  hasher_->update(data);
  size_t done = 0;
  while (done < data.size()) {
    const ssize_t wrote = folder_->fs().write(temp_.fd(), data.data() + done, data.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      const int error = wrote < 0 ? errno : EIO;
      const int64_t bytes_wanted = std::max(bytes_expected_, bytes_ + static_cast<int64_t>(data.size() - done));
      return fail(write_status(temp_, path(), bytes_, bytes_wanted, error));
    }
    done += static_cast<size_t>(wrote);
    bytes_ += wrote;
  }
  return {};
}

Status DurableFile::write(std::string_view text) { return write(std::as_bytes(std::span(text))); }

Result<Hash128> DurableFile::commit(bool sync_dir) {
  if (!failure_.ok()) return failure_;
  if (temp_.fd() < 0) return usage_error(path() + ": committed twice");
  Fs& fs = folder_->fs();
  // Never retried: after a failed fsync the kernel drops the dirty pages, and a second one succeeds without them.
  if (fs.fsync(temp_.fd()) != 0) return fail(write_status(temp_, path(), bytes_, bytes_, errno));
  if (Status closed = temp_.close(); !closed.ok()) return fail(std::move(closed));
  if (fs.renameat(folder_->fd(), temp_name_.c_str(), folder_->fd(), name_.c_str()) != 0)
    return fail(errno_status(path(), "rename to its final name", errno));
  if (sync_dir) {
    if (Status synced = folder_->sync(); !synced.ok()) return failure_ = std::move(synced);
  }
  return hasher_->digest();
}

namespace {

// A device, a pipe, a terminal: no name to replace.
Status write_through(const std::string& path, std::string_view content) {
  Fs& fs = real_fs();
  File file(fs, fs.openat(AT_FDCWD, path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY, 0), path);
  if (file.fd() < 0) return errno_status(path, "open", errno);
  while (!content.empty()) {
    const ssize_t wrote = fs.write(file.fd(), content.data(), content.size());
    if (wrote <= 0) return errno_status(path, "write", wrote < 0 ? errno : EIO);
    content.remove_prefix(static_cast<size_t>(wrote));
  }
  return file.close();
}

}  // namespace

Status write_file_durable(const std::string& path, std::string_view content) {
  struct stat status;
  std::string target = path;
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) return errno_status(path, "write", EISDIR);
    if (!S_ISREG(status.st_mode)) return write_through(path, content);
    if (char* real = ::realpath(path.c_str(), nullptr)) {
      target = real;
      ::free(real);
    }
  }
  const size_t slash = target.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : target.substr(0, slash);
  LLMOPS_ASSIGN(Dir dir, Dir::open(folder));
  LLMOPS_ASSIGN(DurableFile file,
                DurableFile::create(dir, target.substr(slash + 1), static_cast<int64_t>(content.size())));
  LLMOPS_TRY(file.write(content));
  LLMOPS_ASSIGN([[maybe_unused]] const Hash128 hash, file.commit());
  return {};
}

}  // namespace llmops
