// Saving by any number of ranks, reading by any other; what may fail while saving, and what is left then.
#include "ckpt/save.h"

#include <doctest/doctest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <thread>

#include "ckpt/digest.h"
#include "ckpt/verify.h"
#include "support/fault_fs.h"
#include "support/scratch.h"
#include "unit/ckpt/tiny_run.h"

using namespace llmops;
using namespace llmops::testing;

namespace {

// In memory where possible: thousands of fsyncs of a disk would take minutes.
[[maybe_unused]] const bool kInMemory =
    ::getenv("TMPDIR") || ::access("/dev/shm", W_OK) != 0 || ::setenv("TMPDIR", "/dev/shm", 1) == 0;

std::vector<std::string> digests_of(const std::string& step) {
  const auto checkpoint = Checkpoint::open(step);
  REQUIRE_MESSAGE(checkpoint.ok(), checkpoint.status().message());
  std::vector<std::string> digests;
  for (const TensorSummary& t : (*checkpoint)->summaries()) digests.push_back(t.name + " " + to_hex(t.digest));
  std::ranges::sort(digests);
  return digests;
}

// The first finding; "" when there is none.
std::string damage_of(const std::string& path) {
  Pool pool(1);
  const auto report = verify(path, pool);
  if (!report.ok()) return report.status().message();
  return report->findings.empty() ? "" : report->findings[0].file + ": " + report->findings[0].what;
}

int64_t newest_step_of(const std::string& run) {
  Pool pool(1);
  const auto newest = newest_valid(run, pool);
  REQUIRE_MESSAGE(newest.ok(), newest.status().message());
  return newest->step ? newest->step->step : -1;
}

}  // namespace

TEST_CASE("saved by 1 to 4 ranks, read whole and by the slices of 1 to 4 ranks: the same elements, the same digests") {
  for (Family family : {Family::gpt2, Family::llama, Family::qwen3}) {
    const ModelConfig config = tiny_config(family, 32, 2);
    Scratch run;
    std::vector<std::string> first;
    for (int world = 1; world <= 4; ++world) {
      save_ok(run.path(), config, world, world);
      const std::string step = run.path(step_name(world));
      CHECK(damage_of(step) == "");
      const auto checkpoint = Checkpoint::open(step);
      REQUIRE_MESSAGE(checkpoint.ok(), checkpoint.status().message());
      CHECK((*checkpoint)->step() == world);
      CHECK((*checkpoint)->config() == config);
      CHECK((*checkpoint)->has(StateKind::v));
      CHECK(wrong_elements(**checkpoint, 0) == 0);
      if (world == 1)
        first = digests_of(step);
      else
        CHECK(digests_of(step) == first);

      for (int readers = 1; readers <= 4; ++readers)
        for (int rank = 0; rank < readers; ++rank) {
          const RankState expected(config, rank, readers, 0);
          const SaveRequest wanted = expected.request(1);
          for (const Chunk& chunk : wanted.chunks) {
            int logical = -1;
            StateKind kind = StateKind::weight;
            for (StateKind k : kKinds)
              for (size_t t = 0; t < (*checkpoint)->tensors().size(); ++t)
                if (state_name(k, (*checkpoint)->tensors()[t].name) == chunk.name)
                  logical = static_cast<int>(t), kind = k;
            REQUIRE(logical >= 0);
            const int64_t width = chunk.box.extent.back(), rows = elems_of(chunk.box.extent) / width;
            std::vector<float> got(static_cast<size_t>(rows * (width + 3)), -1.0f);  // rows apart
            REQUIRE((*checkpoint)->read(kind, logical, chunk.box, DType::f32, got.data(), width + 3).ok());
            bool same = true;
            for (int64_t i = 0; i < rows; ++i)
              for (int64_t j = 0; j < width + 3; ++j)
                same =
                    same && got[i * (width + 3) + j] ==
                                (j < width ? static_cast<const float*>(chunk.data)[i * chunk.row_stride + j] : -1.0f);
            CHECK_MESSAGE(same, chunk.name);
          }
        }
    }
    CHECK(run.get("latest") == "step-00000004\n");
    CHECK(list_steps(run.path())->size() == 4);
    save_ok(run.path(), config, 2, 9, 1);
    CHECK(digests_of(run.path(step_name(9))) != first);
  }
}

TEST_CASE("the digest does not depend on how a tensor is cut, and tells places, values, types and shapes apart") {
  const Shape shape = {6, 7};
  std::vector<float> data(42);
  for (size_t i = 0; i < data.size(); ++i) data[i] = value_of("x", static_cast<int64_t>(i), 0);
  const auto part = [&](const Box& box) {
    std::vector<float> dense;
    for (int64_t i = 0; i < box.extent[0]; ++i)
      for (int64_t j = 0; j < box.extent[1]; ++j) dense.push_back(data[(box.offset[0] + i) * 7 + box.offset[1] + j]);
    return digest_part(shape, box, 0, std::as_bytes(std::span(dense)), 4);
  };
  const Hash128 once = finish_digest(part(whole(shape)), DType::f32, shape);
  DigestSum pieces;
  for (const Box& box : {Box{{0, 0}, {6, 3}}, Box{{0, 3}, {2, 4}}, Box{{2, 3}, {4, 1}}, Box{{2, 4}, {4, 3}}})
    pieces.add(part(box));
  CHECK(finish_digest(pieces, DType::f32, shape) == once);
  CHECK(finish_digest(pieces, DType::f32, {7, 6}) != once);
  CHECK(finish_digest(pieces, DType::i32, shape) != once);
  std::swap(data[3], data[4]);
  CHECK(finish_digest(part(whole(shape)), DType::f32, shape) != once);
  // Every size of element, in one run and in two.
  for (int size : {1, 2, 4, 8}) {
    const auto bytes = std::as_bytes(std::span(data));
    DigestSum whole_run = digest_run(bytes.data(), size, 10, 20), two = digest_run(bytes.data(), size, 10, 7);
    two.add(digest_run(bytes.data() + 7 * size, size, 17, 13));
    CHECK(whole_run.lo == two.lo);
    CHECK(whole_run.hi == two.hi);
  }
}

TEST_CASE("every system call of a save fails in turn: the last good step stays, nothing bad is published") {
  const ModelConfig config = tiny_config(Family::gpt2, 4, 1);
  const std::vector<StoredFile> files = {{"vocab.json", "{\"a\":0}"}};
  Scratch run;
  save_ok(run.path(), config, 1, 1, 1, files);
  for (bool existing : {false, true}) {
    FaultFs fs;
    if (existing) save_ok(run.path(), config, 1, 2, 2, files);
    REQUIRE(save_all(run.path(), config, 1, 2, 2, files, fs)[0].status.ok());
    const int calls = static_cast<int>(fs.calls.size());
    REQUIRE(calls > 20);
    int failures = 0;
    for (bool broken : {false, true})  // that call alone, or every call from it on
      for (int n = 1; n <= calls; ++n) {
        CAPTURE(existing);
        CAPTURE(n);
        CAPTURE(broken);
        std::filesystem::remove_all(run.path(step_name(2)));
        REQUIRE(remove_leftovers(*Dir::open(run.path())).ok());
        if (existing) save_ok(run.path(), config, 1, 2, 2, files);
        fs.reset(n, broken ? ENOSPC : EIO);
        fs.stays_broken = broken;
        const Status status = save_all(run.path(), config, 1, 2, 2, files, fs)[0].status;
        fs.reset(0, 0);
        CHECK(damage_of(run.path()) == "");  // of every step that is there
        const int64_t newest = newest_step_of(run.path());
        CHECK(newest >= (status.ok() ? 2 : 1));
        if (!status.ok()) CHECK_MESSAGE(status.message().starts_with("checkpoint of step 2: "), status.message());
        failures += !status.ok();
      }
    CHECK(failures > calls);  // few calls may fail unseen: a close, the removal of a temporary name
  }
}

TEST_CASE("a full disk is told with the file and the sizes") {
  const ModelConfig config = tiny_config(Family::gpt2, 4, 1);
  Scratch run;
  FaultFs fs;
  REQUIRE(save_all(run.path(), config, 1, 1, 0, {}, fs)[0].status.ok());
  const int at = static_cast<int>(std::ranges::find(fs.calls, "write") - fs.calls.begin()) + 1;
  fs.reset(at, ENOSPC);
  const Status status = save_all(run.path(), config, 1, 2, 0, {}, fs)[0].status;
  CHECK(status.code() == Code::io);
  for (const char* part :
       {"checkpoint of step 2", "shard-00000.safetensors", "No space left", "bytes needed", "bytes free"})
    CHECK_MESSAGE(status.message().find(part) != std::string::npos, status.message());
  CHECK_FALSE(std::filesystem::exists(run.path(".step-00000002.tmp")));  // the space is given back
}

TEST_CASE("short reads and writes change nothing") {
  const ModelConfig config = tiny_config(Family::llama, 4, 1);
  Scratch run;
  FaultFs fs;
  fs.bytes_per_call_max = 100;
  REQUIRE(save_all(run.path(), config, 1, 1, 0, {}, fs)[0].status.ok());
  CHECK(damage_of(run.path()) == "");
}

TEST_CASE("when one rank cannot write, all give up soon, and the space is given back") {
  const ModelConfig config = tiny_config(Family::gpt2, 4, 1);
  Scratch run;
  save_ok(run.path(), config, 2, 1);
  FaultFs broken;
  broken.stays_broken = true;
  ShardSaver good(run.path(), real_fs(), 60), bad(run.path(), broken, 60);
  RankState first(config, 0, 2, 0), second(config, 1, 2, 0);
  REQUIRE(bad.start(second.request(2)).ok());
  REQUIRE(bad.wait()->status.ok());
  // The disk of rank 1 is full from its first write on.
  const int write = static_cast<int>(std::ranges::find(broken.calls, "write") - broken.calls.begin()) + 1;
  std::filesystem::remove_all(run.path(".step-00000002.tmp"));
  broken.reset(write, ENOSPC);
  broken.stays_broken = false;
  REQUIRE(good.start(first.request(2)).ok());
  REQUIRE(bad.start(second.request(2)).ok());
  const auto told = bad.wait();
  CHECK_MESSAGE(told->status.message().find("No space left") != std::string::npos, told->status.message());
  const auto other = good.wait();
  CHECK(other->status.code() == Code::io);
  CHECK_MESSAGE(other->status.message().find("another rank") != std::string::npos, other->status.message());
  CHECK(other->drain_s < 30);
  CHECK(newest_step_of(run.path()) == 1);
  for (const auto& entry : std::filesystem::directory_iterator(run.path()))
    CHECK_FALSE(entry.path().filename().string().starts_with(".step-"));
}

TEST_CASE("a rank that never comes is named after the deadline; cancel ends the wait") {
  const ModelConfig config = tiny_config(Family::gpt2, 4, 1);
  Scratch run;
  RankState first(config, 0, 2, 0);
  ShardSaver alone(run.path(), real_fs(), 0.05);
  REQUIRE(alone.start(first.request(1)).ok());
  CHECK(alone.start(first.request(2)).code() == Code::usage);  // its result was not taken
  const auto report = alone.wait();
  CHECK(report->status.code() == Code::peer);
  CHECK(report->status.message().find("rank 1") != std::string::npos);
  CHECK_FALSE(alone.wait().has_value());
  ShardSaver cancelled(run.path(), real_fs(), 600);
  REQUIRE(cancelled.start(first.request(1)).ok());
  cancelled.cancel();
  CHECK_FALSE(cancelled.wait()->status.ok());
  CHECK(newest_step_of(run.path()) == -1);
}

TEST_CASE("a process killed while saving always leaves a valid newest step") {
  const ModelConfig config = tiny_config(Family::gpt2, 16, 1);
  Scratch run;
  save_ok(run.path(), config, 1, 1, 1);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr unsigned kKillWithin_us = 400'000;  // saves are that much slower
#else
  constexpr unsigned kKillWithin_us = 20'000;
#endif
  std::mt19937 random(7);
  int64_t last = 1, leftovers = 0;
  for (int round = 0; round < 30; ++round) {
    int begun[2];
    REQUIRE(::pipe(begun) == 0);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      for (int64_t step = last + 1;; ++step) {
        if (::write(begun[1], "", 1) != 1) ::_exit(1);
        ShardSaver saver(run.path());
        RankState state(config, 0, 1, static_cast<int>(step));
        if (!saver.start(state.request(step)).ok() || !saver.wait()->status.ok()) ::_exit(1);
        if (!prune_steps(*Dir::open(run.path()), step, 2).ok()) ::_exit(1);
      }
    }
    // Within the first save or, every other time, after it: the machine may be too slow for two saves in the time to wait.
    for (int saves = 0; saves <= round % 2; ++saves) {
      char byte = 0;
      REQUIRE(::read(begun[0], &byte, 1) == 1);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % kKillWithin_us));
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));  // it had not failed before
    ::close(begun[0]);
    ::close(begun[1]);
    const int64_t newest = newest_step_of(run.path());
    REQUIRE(newest >= last);
    const auto checkpoint = Checkpoint::open(run.path(step_name(newest)));
    REQUIRE(checkpoint.ok());
    CHECK(wrong_elements(**checkpoint, static_cast<int>(newest)) == 0);
    last = newest;
    const auto names = Dir::open(run.path())->list();
    leftovers += std::ranges::any_of(*names, [](const std::string& name) { return name.starts_with(".step-"); });
    REQUIRE(remove_leftovers(*Dir::open(run.path())).ok());
  }
  CHECK(last > 1);
  CHECK(leftovers > 0);  // some kill did come within a save
}

TEST_CASE("one run owns a folder; the kernel releases the lock of a dead one") {
  Scratch run;
  {
    auto mine = RunLock::acquire(run.path());
    REQUIRE(mine.ok());
    const auto other = RunLock::acquire(run.path());
    CHECK(other.status().code() == Code::usage);
    CHECK_MESSAGE(other.status().message().find(fmt::format("pid {}", ::getpid())) != std::string::npos,
                  other.status().message());
    // A program that the owner starts, as it starts its ranks, holds the lock as long as it lives.
    const pid_t child = ::fork();
    if (child == 0) {
      ::execlp("sleep", "sleep", "5", nullptr);
      ::_exit(127);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    { const RunLock released = mine.take(); }
    CHECK(RunLock::acquire(run.path()).status().code() == Code::usage);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    CHECK(RunLock::acquire(run.path()).ok());
  }
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto lock = RunLock::acquire(run.path());
    const char told = lock.ok() ? 'y' : 'n';
    if (::write(ready[1], &told, 1) == 1) ::pause();
    ::_exit(1);
  }
  char told = 0;
  REQUIRE(::read(ready[0], &told, 1) == 1);
  CHECK(told == 'y');
  CHECK(RunLock::acquire(run.path()).status().code() == Code::usage);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK(RunLock::acquire(run.path()).ok());
  CHECK(RunLock::acquire(run.path("nowhere")).status().code() == Code::io);
}

TEST_CASE("old steps go, the newest stays; unfinished saves are removed") {
  const ModelConfig config = tiny_config(Family::gpt2, 4, 1);
  Scratch run;
  for (int64_t step : {1, 2, 3, 4}) save_ok(run.path(), config, 1, step);
  run.put(".step-00000005.tmp/shard-00000.safetensors", "half");
  run.put("step-5", "no step: too few digits");
  run.put("notes/a.txt", "no run");
  const auto dir = Dir::open(run.path());
  REQUIRE(remove_leftovers(*dir).ok());
  CHECK_FALSE(std::filesystem::exists(run.path(".step-00000005.tmp")));
  REQUIRE(prune_steps(*dir, 4, 0).ok());
  CHECK(list_steps(run.path())->size() == 4);
  REQUIRE(prune_steps(*dir, 3, 2).ok());  // 4 is one that a resume went back behind
  CHECK(list_steps(run.path())->size() == 3);
  CHECK(std::filesystem::exists(run.path(step_name(2))));
  REQUIRE(prune_steps(*dir, 4, 1).ok());
  CHECK(newest_step_of(run.path()) == 4);
  CHECK(*newest_step(run.path()) == run.path(step_name(4)));
  CHECK(*newest_step(run.path(step_name(4))) == run.path(step_name(4)));
  CHECK(newest_step(run.path("notes")).status().code() == Code::invalid);
  CHECK(newest_step(run.path("nowhere")).status().code() == Code::io);
  CHECK(newest_step(run.path("latest")).status().code() == Code::invalid);
}
