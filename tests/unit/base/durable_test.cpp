// The promise of DurableFile: under the final name there is the old content or the whole new one, whichever call fails.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "base/io.h"
#include "support/fault_fs.h"
#include "support/scratch.h"

using namespace llmops;
using llmops::testing::FaultFs;
using llmops::testing::Scratch;

namespace {

const std::string kNew(5000, 'n');

// One life of a DurableFile: two writes and a commit.
Status replace(Fs& fs, const std::string& folder) {
  LLMOPS_ASSIGN(Dir dir, Dir::open(folder, fs));
  LLMOPS_ASSIGN(DurableFile file, DurableFile::create(dir, "f", static_cast<int64_t>(kNew.size())));
  LLMOPS_TRY(file.write(std::string_view(kNew).substr(0, 3000)));
  LLMOPS_TRY(file.write(std::string_view(kNew).substr(3000)));
  LLMOPS_ASSIGN(const Hash128 hash, file.commit());
  return hash == hash128(std::as_bytes(std::span(kNew))) ? Status() : invalid_error("wrong digest");
}

std::vector<std::string> names(const std::string& folder) { return *Dir::open(folder)->list(); }

}  // namespace

TEST_CASE("a commit replaces the file, keeps the exact size and leaves nothing else") {
  Scratch scratch;
  scratch.put("f", "old");
  FaultFs fs;
  CHECK(replace(fs, scratch.path()).ok());
  CHECK(scratch.get("f") == kNew);
  CHECK(names(scratch.path()) == std::vector<std::string>{"f"});
  // Data is synced before the rename, the folder after it.
  const auto at = [&](const char* call, int from) {
    return std::find(fs.calls.begin() + from, fs.calls.end(), call) - fs.calls.begin();
  };
  const auto synced = at("fsync", 0), renamed = at("renameat", 0), folder = at("fsync", static_cast<int>(synced) + 1);
  CHECK(synced < renamed);
  CHECK(renamed < folder);
  CHECK(folder < static_cast<long>(fs.calls.size()));
}

TEST_CASE("whichever call fails, and with whatever error: old or new, and no temporary file is left") {
  for (const bool had_old : {true, false}) {
    for (const int error : {EIO, ENOSPC, EDQUOT, EROFS}) {
      int failures = 0;
      for (int n = 1;; ++n) {
        CAPTURE(n);
        CAPTURE(error);
        Scratch scratch;
        if (had_old) scratch.put("f", "old");
        FaultFs fs;
        fs.bytes_per_call_max = 700;  // short writes on the way
        fs.reset(n, error);
        const Status status = replace(fs, scratch.path());
        if (!fs.fired()) {
          CHECK(status.ok());
          break;
        }
        const std::string content = scratch.get("f");
        const bool is_new = content == kNew, is_old = had_old ? content == "old" : !std::filesystem::exists(scratch.path("f"));
        CHECK((is_new || is_old));
        if (status.ok()) CHECK(is_new);
        if (!status.ok()) {
          ++failures;
          CHECK(status.code() == Code::io);
          for (const std::string& name : names(scratch.path())) CHECK(name == "f");
        }
      }
      CHECK(failures >= 12);  // open, reopen, create, preallocate, eight writes, fsync, close, rename, fsync
    }
  }
}

TEST_CASE("killed at any call: old or new, and the next writer is not in the way of the remains") {
  for (int n = 1;; ++n) {
    CAPTURE(n);
    Scratch scratch;
    scratch.put("f", "old");
    FaultFs fs;
    fs.stays_broken = true;
    fs.reset(n, EIO);
    const Status status = replace(fs, scratch.path());
    const std::string content = scratch.get("f");
    CHECK((content == "old" || content == kNew));
    CHECK(replace(real_fs(), scratch.path()).ok());
    CHECK(scratch.get("f") == kNew);
    if (!fs.fired()) break;
  }
}

TEST_CASE("interrupted calls: writes go on, nothing is lost") {
  for (int n = 1;; ++n) {
    CAPTURE(n);
    Scratch scratch;
    scratch.put("f", "old");
    FaultFs fs;
    fs.bytes_per_call_max = 999;
    fs.reset(n, EINTR);
    const Status status = replace(fs, scratch.path());
    if (!fs.fired()) break;
    if (fs.calls[static_cast<size_t>(n - 1)] == "write" || fs.calls[static_cast<size_t>(n - 1)] == "close") CHECK(status.ok());
    if (status.ok()) CHECK(scratch.get("f") == kNew);
    for (const std::string& name : names(scratch.path())) CHECK(name == "f");
  }
}

TEST_CASE("a failure is final: no later call succeeds") {
  Scratch scratch;
  FaultFs fs;
  auto dir = Dir::open(scratch.path(), fs);
  auto file = DurableFile::create(*dir, "f");
  CHECK(file->write("abc").ok());
  fs.reset(1, EIO);
  CHECK_FALSE(file->commit().ok());  // the fsync
  CHECK(fs.calls == std::vector<std::string>{"fsync", "close", "unlinkat"});
  CHECK_FALSE(file->commit().ok());
  CHECK_FALSE(file->write("abc").ok());
  CHECK(names(scratch.path()).empty());
}

TEST_CASE("without commit nothing appears; a move carries the duty to clean up") {
  Scratch scratch;
  scratch.put("f", "old");
  {
    auto dir = Dir::open(scratch.path());
    auto file = DurableFile::create(*dir, "f", 100);
    CHECK(file->write("new").ok());
    CHECK(file->bytes() == 3);
    const DurableFile moved = file.take();
    CHECK(names(scratch.path()).size() == 2);
  }
  CHECK(names(scratch.path()) == std::vector<std::string>{"f"});
  CHECK(scratch.get("f") == "old");
}

TEST_CASE("two writers of one name do not meet; the last commit wins") {
  Scratch scratch;
  auto dir = Dir::open(scratch.path());
  auto one = DurableFile::create(*dir, "f"), two = DurableFile::create(*dir, "f");
  CHECK(one->write("one").ok());
  CHECK(two->write("two").ok());
  CHECK(two->commit(false).ok());
  CHECK(one->commit(false).ok());
  CHECK(scratch.get("f") == "one");
  CHECK(one->commit().status().code() == Code::usage);
  CHECK(names(scratch.path()).size() == 1);
}

TEST_CASE("reserved space does not change the size; names are checked; long names and subfolders work") {
  Scratch scratch;
  auto dir = Dir::open(scratch.path());
  auto file = DurableFile::create(*dir, "f", 1 << 20);
  CHECK(file->write("abc").ok());
  CHECK(file->commit().ok());
  CHECK(std::filesystem::file_size(scratch.path("f")) == 3);
  for (const char* bad : {"", ".", "..", "a/", "../f", "/tmp/f"})
    CHECK_MESSAGE(DurableFile::create(*dir, bad).status().code() == Code::invalid, bad);
  CHECK(DurableFile::create(*dir, "none/f").status().code() == Code::io);
  CHECK(dir->make_dir("sub").ok());
  for (const std::string& name : {std::string(255, 'x'), std::string("sub/f")}) {
    auto other = DurableFile::create(*dir, name);
    CHECK(other->write("abc").ok());
    CHECK(other->commit().ok());
    CHECK(scratch.get(name) == "abc");
  }
}

TEST_CASE("a full disk is named with its sizes") {
  FaultFs fs;
  Scratch scratch;
  auto dir = Dir::open(scratch.path(), fs);
  auto file = DurableFile::create(*dir, "f");
  CHECK(file->write(std::string(100, 'x')).ok());
  fs.reset(1, ENOSPC);
  const Status status = file->write(std::string(400, 'x'));
  CHECK(status.code() == Code::io);
  const std::string& text = status.message();
  CHECK(text.starts_with(scratch.path("f") + ": cannot write: No space left on device: 100 bytes written, 500 bytes needed, "));
  CHECK(text.ends_with(" bytes free"));

  fs.reset(3, ENOSPC);
  const Status reserved = DurableFile::create(*dir, "g", 12345).status();
  CHECK(reserved.message().find("g: cannot write: No space left on device: 0 bytes written, 12345 bytes needed") !=
        std::string::npos);
  CHECK(names(scratch.path()).empty());
}

TEST_CASE("write_file_durable: plain, new, through a symlink, into a pipe, into a folder") {
  Scratch scratch;
  CHECK(write_file_durable(scratch.path("a"), "one").ok());
  CHECK(write_file_durable(scratch.path("a"), "two").ok());
  CHECK(scratch.get("a") == "two");
  std::filesystem::create_symlink("a", scratch.path("link"));
  CHECK(write_file_durable(scratch.path("link"), "three").ok());
  CHECK(scratch.get("a") == "three");
  CHECK(std::filesystem::is_symlink(scratch.path("link")));
  CHECK(write_file_durable("/dev/null", "x").ok());
  CHECK(std::filesystem::is_character_file("/dev/null"));
  CHECK(write_file_durable("/dev/full", "x").message() == "/dev/full: cannot write: No space left on device");
  CHECK(write_file_durable(scratch.path(), "x").code() == Code::io);
  CHECK(write_file_durable(scratch.path("none/a"), "x").code() == Code::io);
  CHECK(write_file_durable("", "x").code() != Code::ok);
}

TEST_CASE("a real limit on file size is reported, and the old file stays") {
  Scratch scratch;
  scratch.put("f", "old");
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    _exit(replace(real_fs(), scratch.path()).code() == Code::io ? 7 : 8);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WEXITSTATUS(status) == 7);
  CHECK(scratch.get("f") == "old");
  CHECK(names(scratch.path()) == std::vector<std::string>{"f"});
}
