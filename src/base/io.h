// Files. Every system call that can fail goes through Fs, so a test can fail any of them by number; paths of untrusted
// origin are opened beneath a directory; writes are durable (temporary name, fsync, rename, fsync of the directory).
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/status.h"

namespace llmops {

// The system calls we use, with their names and meaning: -1 and errno on failure.
class Fs {
 public:
  virtual ~Fs() = default;
  virtual int openat(int dir, const char* path, int flags, mode_t mode);
  virtual int openat_beneath(int dir, const char* path, int flags);  // openat2(BENEATH|NO_SYMLINKS|NO_MAGICLINKS) or a walk
  virtual ssize_t read(int fd, void* data, size_t bytes);
  virtual ssize_t pread(int fd, void* data, size_t bytes, off_t offset);
  virtual ssize_t write(int fd, const void* data, size_t bytes);
  virtual ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset);
  virtual int preallocate(int fd, off_t bytes);  // EOPNOTSUPP counts as success
  virtual int fsync(int fd);
  virtual int close(int fd);
  virtual int renameat(int from_dir, const char* from, int to_dir, const char* to);
  virtual int mkdirat(int dir, const char* path, mode_t mode);
  virtual int unlinkat(int dir, const char* path, int flags);
  virtual int fstat(int fd, struct stat* out);
  virtual int list(int dir, std::vector<std::string>* names);  // all entries but . and .., in no order

 protected:
  // openat_beneath where the kernel has no openat2 (or a seccomp filter hides it): each component by itself, O_NOFOLLOW.
  int walk_beneath(int dir, const char* path, int flags);
};
Fs& real_fs();

// Owns a descriptor. close() reports; the destructor closes quietly.
class File {
 public:
  File() = default;
  File(Fs& fs, int fd, std::string path) : fs_(&fs), fd_(fd), path_(std::move(path)) {}
  File(File&& other) noexcept { *this = std::move(other); }
  File& operator=(File&& other) noexcept;
  ~File();
  static Result<File> open(const std::string& path, Fs& fs = real_fs());  // for reading; "-" is stdin

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  Result<int64_t> size() const;
  // Exactly `out.size()` bytes at `offset`: a short file is Code::invalid ("truncated").
  Status read_at(int64_t offset, std::span<std::byte> out) const;
  // Up to out.size() bytes from the current position; 0 at the end. Code::interrupted when a signal asked us to stop.
  Result<size_t> read_some(std::span<std::byte> out) const;
  Status close();

 private:
  Fs* fs_ = nullptr;
  int fd_ = -1;
  std::string path_;
};

// A directory that stays the same folder however names change around it.
class Dir {
 public:
  static Result<Dir> open(const std::string& path, Fs& fs = real_fs());
  static Result<Dir> create(const std::string& path, Fs& fs = real_fs());  // with parents; an existing one is fine
  Dir(Dir&&) = default;
  Dir& operator=(Dir&&) = default;

  int fd() const { return file_.fd(); }
  const std::string& path() const { return file_.path(); }
  Fs& fs() const { return *fs_; }
  // Opens a plain relative path for reading that cannot leave the folder: "..", absolute paths, symlinks and devices are
  // Code::invalid; a missing file is Code::io.
  Result<File> open_file(std::string_view relative) const;
  // The same, but the file itself may be a symlink to a regular file anywhere. For folders of users, never for names that
  // decide what is verified: model hubs' caches keep links to their files.
  Result<File> open_linked(std::string_view relative) const;
  Result<Dir> open_dir(std::string_view relative) const;
  Result<Dir> reopen() const;                    // a second handle on the same folder
  bool exists(std::string_view relative) const;  // of any kind, a symlink too
  Result<std::vector<std::string>> list() const;  // sorted names, without . and ..
  Status sync() const;
  Status rename(std::string_view from, std::string_view to) const;
  Status make_dir(std::string_view relative) const;
  Status remove_tree(std::string_view relative) const;  // does not follow symlinks; missing is fine

 private:
  Dir(Fs& fs, File file) : fs_(&fs), file_(std::move(file)) {}
  Fs* fs_;
  File file_;
};

// Writes a file so that under its final name there is either the old content or the whole new one. Hashes while writing.
// Any failure is final: the temporary file is removed at once, and later calls return the same error. Destruction without
// commit() removes it too. Only a failed fsync of the directory, the last step, leaves the new content in place: it is
// whole, but a crash of the machine may bring the old one back.
class DurableFile {
 public:
  // bytes_expected > 0 reserves the space, so that a full disk is found before the work is done.
  static Result<DurableFile> create(const Dir& dir, std::string_view name, int64_t bytes_expected = 0);
  DurableFile(DurableFile&&) noexcept;
  ~DurableFile();

  Status write(std::span<const std::byte> data);
  Status write(std::string_view text);
  int64_t bytes() const { return bytes_; }
  // fsync, rename to the final name; with `sync_dir` also fsync of the directory. The digest of all bytes written.
  Result<Hash128> commit(bool sync_dir = true);

 private:
  DurableFile(Dir folder, std::string name, int64_t bytes_expected);
  Status open_temp();
  Status fail(Status status);  // removes the temporary file and remembers the status
  std::string path() const;

  std::unique_ptr<Dir> folder_;
  std::string name_, temp_name_;
  File temp_;
  int64_t bytes_expected_ = 0;
  int64_t bytes_ = 0;
  std::unique_ptr<Hasher> hasher_;
  Status failure_;
};

// The whole file; "-" reads stdin. Code::invalid when it is longer than bytes_max.
Result<std::string> read_file(const std::string& path, int64_t bytes_max = int64_t{1} << 30);
// Through a DurableFile; a symlink keeps pointing to the file it names, and a device or pipe is simply written to.
Status write_file_durable(const std::string& path, std::string_view content);
// Free bytes of the file system that holds `path` (or its nearest existing parent).
Result<int64_t> free_bytes(const std::string& path);
// errno_status("FILE", "open", ENOENT) is "FILE: cannot open: No such file or directory", Code::io.
Status errno_status(const std::string& object, const char* what, int error);

}  // namespace llmops
