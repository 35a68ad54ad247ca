#include "base/io.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "base/run.h"
#include "support/fault_fs.h"
#include "support/scratch.h"

using namespace llmops;
using llmops::testing::FaultFs;
using llmops::testing::Scratch;

namespace {

// As on a kernel without openat2.
struct WalkFs : Fs {
  int openat_beneath(int dir, const char* path, int flags) override { return walk_beneath(dir, path, flags); }
};

std::string content_of(const File& file) {
  std::string text(static_cast<size_t>(*file.size()), '\0');
  REQUIRE(file.read_at(0, std::as_writable_bytes(std::span(text))).ok());
  return text;
}

int open_descriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

}  // namespace

TEST_CASE("reading: exact, truncated, missing, a folder") {
  Scratch scratch;
  const std::string path = scratch.put("a", "hello");
  auto opened = File::open(path);
  REQUIRE(opened.ok());
  CHECK(*opened->size() == 5);
  CHECK(content_of(*opened) == "hello");
  std::byte buffer[4];
  const Status status = opened->read_at(3, buffer);
  CHECK(status.code() == Code::invalid);
  CHECK(status.message() == path + ": truncated: 4 bytes at offset 3 expected, the file ends at 5");
  CHECK(opened->read_at(100, std::span<std::byte>()).ok());
  CHECK(opened->close().ok());
  CHECK(opened->close().ok());  // twice is fine

  CHECK(File::open(scratch.path("no")).status().code() == Code::io);
  CHECK(File::open(scratch.path("no")).status().message() ==
        scratch.path("no") + ": cannot open: No such file or directory");
  CHECK(File::open(scratch.path()).status().message() == scratch.path() + ": cannot read: Is a directory");
}

TEST_CASE("reads that the kernel cuts short are continued") {
  Scratch scratch;
  const std::string path = scratch.put("a", "0123456789");
  FaultFs fs;
  fs.bytes_per_call_max = 3;
  auto file = File::open(path, fs);
  CHECK(content_of(*file) == "0123456789");
  std::byte buffer[10];
  CHECK(*file->read_some(buffer) == 3);
}

TEST_CASE("an interrupted read goes on, unless we were asked to stop") {
  Scratch scratch;
  FaultFs fs;
  auto file = File::open(scratch.put("a", "x"), fs);
  std::byte buffer[1];
  fs.reset(1, EINTR);
  CHECK(*file->read_some(buffer) == 1);
  fs.reset(1, EINTR);
  CHECK(file->read_at(0, buffer).ok());
  request_cancel(SIGINT);
  fs.reset(1, EINTR);
  CHECK(file->read_some(buffer).status().code() == Code::interrupted);
  fs.reset(1, EINTR);
  CHECK(file->read_at(0, buffer).ok());  // a read in the middle of work: the work itself looks at the flag
  request_cancel(0);
}

TEST_CASE("read_file: whole, bounded, and of files that tell no size") {
  Scratch scratch;
  CHECK(*read_file(scratch.put("a", "")) == "");
  CHECK(*read_file(scratch.put("a", "abc")) == "abc");
  CHECK(read_file(scratch.path("a"), 3).ok());
  CHECK(read_file(scratch.path("a"), 2).status().code() == Code::invalid);
  const std::string large(100000, 'x');
  CHECK(*read_file(scratch.put("b", large)) == large);
  CHECK(read_file(scratch.path("b"), 99999).status().code() == Code::invalid);
  CHECK(read_file("/proc/self/status")->find("Pid:") != std::string::npos);
  CHECK(read_file(scratch.path("none")).status().code() == Code::io);

  const std::string fifo = scratch.path("fifo");
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  std::thread writer([&] {
    const int fd = ::open(fifo.c_str(), O_WRONLY);
    for (int i = 0; i < 1000; ++i) CHECK(::write(fd, "0123456789", 10) == 10);
    ::close(fd);
  });
  const auto piped = read_file(fifo);
  writer.join();
  CHECK(piped->size() == 10000);
}

TEST_CASE("nothing leads out of a folder, with openat2 and without") {
  Scratch scratch;
  scratch.put("outside", "secret");
  scratch.put("d/a", "A");
  scratch.put("d/sub/b", "B");
  std::filesystem::create_symlink("../outside", scratch.path("d/link_out"));
  std::filesystem::create_symlink("a", scratch.path("d/link_in"));
  std::filesystem::create_symlink("sub", scratch.path("d/link_dir"));
  std::filesystem::create_symlink("nowhere", scratch.path("d/dangling"));
  REQUIRE(mkfifo(scratch.path("d/fifo").c_str(), 0600) == 0);
  Fs real;
  WalkFs walk;
  for (Fs* fs : {&real, static_cast<Fs*>(&walk)}) {
    const int before = open_descriptors();
    {
      auto dir = Dir::open(scratch.path("d"), *fs);
      REQUIRE(dir.ok());
      const auto code = [&](std::string_view path) { return dir->open_file(path).status().code(); };
      CHECK(content_of(*dir->open_file("a")) == "A");
      CHECK(content_of(*dir->open_file("sub/b")) == "B");
      CHECK(dir->open_dir("sub")->exists("b"));
      for (const char* bad : {"", ".", "..", "../outside", "sub/../../outside", "sub/../a", "./a", "a/", "sub//b", "/etc/passwd",
                              "link_out", "link_in", "dangling", "link_dir/b", "fifo", "sub"})
        CHECK_MESSAGE(code(bad) == Code::invalid, bad);
      CHECK(code(std::string_view("a\0b", 3)) == Code::invalid);
      CHECK(code("none") == Code::io);
      CHECK(code("none/b") == Code::io);
      CHECK(code("a/b") == Code::io);
      const auto linked = [&](std::string_view path) { return dir->open_linked(path).status().code(); };
      CHECK(content_of(*dir->open_linked("a")) == "A");
      CHECK(content_of(*dir->open_linked("link_in")) == "A");
      CHECK(content_of(*dir->open_linked("link_out")) == "secret");
      CHECK(content_of(*dir->open_linked("sub/b")) == "B");
      for (const char* bad : {"", "..", "../outside", "sub/../a", "/etc/passwd", "link_dir/b", "link_dir", "fifo", "sub"})
        CHECK_MESSAGE(linked(bad) == Code::invalid, bad);
      CHECK(linked("dangling") == Code::io);
      CHECK(linked("none") == Code::io);
      CHECK(dir->open_dir("link_dir").status().code() == Code::invalid);
      CHECK(dir->open_dir("a").status().code() == Code::io);
      CHECK(dir->exists("a"));
      CHECK(dir->exists("sub/b"));
      CHECK(dir->exists("dangling"));
      CHECK_FALSE(dir->exists("none"));
      CHECK_FALSE(dir->exists("../outside"));
    }
    CHECK(open_descriptors() == before);  // nothing leaks on any of these ways
  }
}

TEST_CASE("a folder handle stays with the folder when its name changes") {
  Scratch scratch;
  scratch.put("d/a", "A");
  auto dir = Dir::open(scratch.path("d"));
  std::filesystem::rename(scratch.path("d"), scratch.path("e"));
  CHECK(content_of(*dir->open_file("a")) == "A");
}

TEST_CASE("folders: create with parents, list, rename, make, remove") {
  Scratch scratch;
  auto dir = Dir::create(scratch.path("x/y/z"));
  REQUIRE(dir.ok());
  CHECK(Dir::create(scratch.path("x/y/z/")).ok());
  CHECK(Dir::create("/tmp").ok());
  CHECK(Dir::create("/").ok());
  scratch.put("file", "");
  CHECK(Dir::create(scratch.path("file/y")).status().code() == Code::io);

  CHECK(dir->make_dir("sub").ok());
  CHECK(dir->make_dir("sub").code() == Code::io);
  CHECK(dir->make_dir("sub/deep").ok());
  CHECK(dir->make_dir("../up").code() == Code::invalid);
  scratch.put("x/y/z/sub/deep/f", "F");
  scratch.put("x/y/z/b", "");
  scratch.put("x/y/z/a", "");
  CHECK(*dir->list() == std::vector<std::string>{"a", "b", "sub"});
  CHECK(*dir->list() == std::vector<std::string>{"a", "b", "sub"});  // a second time from the start
  CHECK(dir->rename("sub/deep", "moved").ok());
  CHECK(dir->exists("moved/f"));
  CHECK(dir->rename("none", "x").code() == Code::io);
  CHECK(dir->rename("a", "../a").code() == Code::invalid);
  CHECK(dir->sync().ok());

  std::filesystem::create_symlink(scratch.path("file"), scratch.path("x/y/z/moved/link"));
  std::filesystem::create_directory_symlink(scratch.path("x"), scratch.path("x/y/z/moved/up"));
  CHECK(dir->remove_tree("moved").ok());
  CHECK_FALSE(dir->exists("moved"));
  CHECK(std::filesystem::exists(scratch.path("file")));  // symlinks are removed, not followed
  CHECK(dir->remove_tree("moved").ok());
  CHECK(dir->remove_tree("a").ok());
  CHECK(dir->remove_tree("..").code() == Code::invalid);
}

TEST_CASE("removing a tree: every failing call is reported or harmless") {
  for (int n = 1;; ++n) {
    Scratch scratch;
    scratch.put("d/t/a/b", "");
    scratch.put("d/t/c", "");
    FaultFs fs;
    auto dir = Dir::open(scratch.path("d"), fs);
    fs.reset(n, EIO);
    const Status status = dir->remove_tree("t");
    if (!fs.fired()) {
      CHECK(status.ok());
      break;
    }
    if (status.ok()) CHECK_FALSE(std::filesystem::exists(scratch.path("d/t")));
    if (!status.ok()) CHECK(status.code() == Code::io);
  }
}

TEST_CASE("free space of a path, existing or not") {
  CHECK(*free_bytes("/tmp") > 0);
  CHECK(*free_bytes("/tmp/no/such/folder") == doctest::Approx(static_cast<double>(*free_bytes("/tmp"))).epsilon(0.5));
  CHECK(*free_bytes("no_such_file") > 0);
  CHECK(*free_bytes("") > 0);
}
