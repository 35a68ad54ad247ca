#include "ckpt/save.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/run.h"
#include "ckpt/manifest.h"
#include "ckpt/safetensors.h"
#include "ckpt/sidecar.h"
#include "ckpt/steps.h"
#include "ckpt/text_file.h"

namespace llmops {
namespace {

constexpr int kNice = 10;
constexpr size_t kPieceBytes = 1 << 20;  // a multiple of every element's size

std::string shard_name(int rank) { return fmt::format("shard-{:05}.safetensors", rank); }
std::string sidecar_name(int rank) { return fmt::format("shard-{:05}.json", rank); }

// A request whose data is in staging memory.
struct Job {
  SaveRequest request;
  std::vector<size_t> at;  // where each chunk lies in staging
};

}  // namespace

Result<char*> Staging::reserve(int64_t bytes) {
  memory_.resize(static_cast<size_t>(bytes));
  return memory_.data();
}

void Staging::copy_rows(char* to, const void* from, int64_t from_pitch, int64_t row_bytes, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row)
    std::memcpy(to + row * row_bytes, static_cast<const char*>(from) + row * from_pitch, static_cast<size_t>(row_bytes));
}

struct ShardSaver::State {
  std::string dir;
  Fs& fs;
  double deadline_s;
  std::unique_ptr<Staging> staging;
  const char* staged = nullptr;
  int64_t staged_bytes = 0;
  Job job;
  std::thread thread;
  std::atomic<bool> cancelled{false};
  std::atomic<bool> running{false};
  std::optional<SaveReport> report;  // written by the thread before running turns false
  double copied_s = 0;
  bool follows = false;  // of the save in progress, see SaveReport

  State(std::string d, Fs& f, double deadline, std::unique_ptr<Staging> memory)
      : dir(std::move(d)), fs(f), deadline_s(deadline), staging(std::move(memory)) {}

  // Both begin with ".step-", so that remove_leftovers() knows them.
  std::string temp_name() const { return fmt::format(".{}.tmp", step_name(job.request.step)); }
  std::string aside_name(const char* why) const { return fmt::format(".{}.{}", step_name(job.request.step), why); }

  // One pass over the data, in pieces that stay in the cache: written, hashed by file and by chunk, and digested.
  Status write_chunk(size_t i, DurableFile& file, ShardChunk* described) {
    const Chunk& chunk = job.request.chunks[i];
    const int size = info(chunk.dtype).block_bytes;
    const auto data = std::as_bytes(
        std::span(staged + job.at[i], static_cast<size_t>(described->place.end - described->place.begin)));
    Hasher hasher;
    for (size_t at = 0; at < data.size(); at += kPieceBytes) {
      if (cancelled) return io_error("the save was given up");
      const auto piece = data.subspan(at, std::min(kPieceBytes, data.size() - at));
      LLMOPS_TRY(file.write(piece));
      hasher.update(piece);
      described->digest.add(digest_part(chunk.shape, chunk.box, static_cast<int64_t>(at) / size, piece, size));
    }
    described->place.hash = hasher.digest();
    return {};
  }

  Result<Sidecar> write_shard(const Dir& temp) {
    const std::vector<Chunk>& chunks = job.request.chunks;
    std::vector<SafeTensor> tensors;
    for (const Chunk& chunk : chunks)
      tensors.push_back({chunk_key(chunk.name, chunk.box), chunk.dtype, chunk.box.extent, 0, 0});
    const std::string header = safetensors_header(tensors);
    Sidecar sidecar;
    sidecar.file.name = shard_name(job.request.rank);
    sidecar.file.bytes = tensors.empty() ? static_cast<int64_t>(header.size()) : tensors.back().end;
    LLMOPS_ASSIGN(DurableFile file, DurableFile::create(temp, sidecar.file.name, sidecar.file.bytes));
    LLMOPS_TRY(file.write(header));
    for (size_t i = 0; i < chunks.size(); ++i) {
      sidecar.chunks.push_back({chunks[i].name,
                                chunks[i].dtype,
                                chunks[i].shape,
                                {0, chunks[i].box, tensors[i].begin, tensors[i].end, {}},
                                {}});
      LLMOPS_TRY(write_chunk(i, file, &sidecar.chunks.back()));
    }
    LLMOPS_ASSIGN(sidecar.file.hash, file.commit(false));
    return sidecar;
  }

  static Status write_text(const Dir& dir, const std::string& name, const std::string& text, bool sync_dir) {
    LLMOPS_ASSIGN(DurableFile file, DurableFile::create(dir, name, static_cast<int64_t>(text.size())));
    LLMOPS_TRY(file.write(text));
    return file.commit(sync_dir).status();
  }

  Status wait_for_sidecars(const Dir& run, const Dir& temp) {
    const double stop_s = monotonic_s() + deadline_s;
    for (int rank = 1; rank < job.request.world;) {
      if (temp.exists(sidecar_name(rank))) {
        ++rank;
        continue;
      }
      if (cancelled) return io_error("the save was given up");
      if (run.exists(aside_name("failed"))) {
        follows = true;
        return io_error("another rank could not write its shard");
      }
      if (monotonic_s() > stop_s)
        return peer_error(fmt::format("rank {} did not write its shard within {} s", rank, deadline_s));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return {};
  }

  Status commit(const Dir& run, const Dir& temp, const Sidecar& own) {
    LLMOPS_TRY(wait_for_sidecars(run, temp));
    ManifestMerger merger;
    merger.add(own);
    for (int rank = 1; rank < job.request.world; ++rank) {
      LLMOPS_ASSIGN(const std::string text, read_text(temp, sidecar_name(rank), kManifestBytesMax));
      LLMOPS_ASSIGN(const Sidecar sidecar, parse_sidecar(text));
      merger.add(sidecar);
      LLMOPS_TRY(temp.remove_tree(sidecar_name(rank)));
    }
    for (const StoredFile& stored : job.request.files) LLMOPS_TRY(write_text(temp, stored.name, stored.content, false));
    const std::string manifest = to_text(merger.finish(job.request.step, job.request.meta, job.request.files));
    // What the ranks gave must fit together: a manifest that we would refuse to read is not published.
    LLMOPS_TRY(parse_manifest(manifest).status());
    LLMOPS_TRY(write_text(temp, kManifestName, manifest, true));
    return publish(run);
  }

  // A step of this number is there only when it was found damaged and the run went on from an older one.
  Status publish(const Dir& run) {
    const std::string name = step_name(job.request.step), old = aside_name("old");
    const bool replaces = run.exists(name);
    if (replaces) LLMOPS_TRY(run.rename(name, old));
    if (Status status = run.rename(temp_name(), name); !status.ok()) {
      if (replaces) (void)run.rename(old, name);
      return status;
    }
    LLMOPS_TRY(run.sync());
    if (replaces) LLMOPS_TRY(run.remove_tree(old));
    Status latest = write_text(run, "latest", name + "\n", true);
    return latest.ok() ? latest
                       : Status(latest.code(), "the step is saved, but not named as the latest: " + latest.message());
  }

  Status save() {
    LLMOPS_ASSIGN(const Dir run, Dir::open(dir, fs));
    Status status = write_and_commit(run);
    if (status.ok()) return status;
    if (job.request.rank == 0) {
      (void)run.remove_tree(temp_name());
      (void)run.remove_tree(aside_name("failed"));
    } else if (!run.rename(temp_name(), aside_name("failed")).ok()) {
      // Rank 0 sees the new name. When the folder is gone already, it was not we who failed first.
      follows = true;
      return io_error("another rank gave the save up");
    }
    return status;
  }

  Status write_and_commit(const Dir& run) {
    LLMOPS_ASSIGN(const Dir temp, Dir::create(fmt::format("{}/{}", dir, temp_name()), fs));
    LLMOPS_ASSIGN(const Sidecar own, write_shard(temp));
    if (job.request.rank == 0) return commit(run, temp, own);
    return write_text(temp, sidecar_name(job.request.rank), to_text(own), true);
  }

  void work() {
    pthread_setname_np(pthread_self(), "llmops-save");
    setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice);
    SaveReport done;
    done.step = job.request.step;
    follows = false;
    done.status = save();
    done.follows = follows;
    done.bytes = staged_bytes;
    done.stall_s = report ? report->stall_s : 0;
    done.drain_s = monotonic_s() - copied_s;
    if (!done.status.ok())
      done.status =
          Status(done.status.code(), fmt::format("checkpoint of step {}: {}", done.step, done.status.message()));
    report = std::move(done);
    running.store(false, std::memory_order_release);
  }
};

ShardSaver::ShardSaver(std::string run_dir, Fs& fs, double deadline_s, std::unique_ptr<Staging> staging)
    : state_(std::make_unique<State>(std::move(run_dir), fs, deadline_s, std::move(staging))) {}

ShardSaver::~ShardSaver() {
  cancel();
  if (state_->thread.joinable()) state_->thread.join();
}

bool ShardSaver::busy() const { return state_->running.load(std::memory_order_acquire); }
void ShardSaver::cancel() { state_->cancelled = true; }
int64_t ShardSaver::staging_bytes() const { return state_->staging->bytes(); }

std::optional<SaveReport> ShardSaver::poll() {
  if (busy() || !state_->thread.joinable()) return std::nullopt;
  return wait();
}

std::optional<SaveReport> ShardSaver::wait() {
  if (!state_->thread.joinable()) return std::nullopt;
  state_->thread.join();
  return std::exchange(state_->report, std::nullopt);
}

Status ShardSaver::start(const SaveRequest& request) {
  State& s = *state_;
  if (s.thread.joinable()) return usage_error("a save is in progress: wait() first");
  const double start_s = monotonic_s();
  s.job.request = request;
  s.job.at.clear();
  size_t bytes = 0;
  for (const Chunk& chunk : request.chunks) {
    s.job.at.push_back(bytes);
    bytes += static_cast<size_t>(elems_of(chunk.box.extent) * info(chunk.dtype).block_bytes);
  }
  LLMOPS_ASSIGN(char* const memory, s.staging->reserve(static_cast<int64_t>(bytes)));
  s.staged = memory;
  s.staged_bytes = static_cast<int64_t>(bytes);
  for (size_t i = 0; i < request.chunks.size(); ++i) {
    const Chunk& chunk = request.chunks[i];
    const int64_t size = info(chunk.dtype).block_bytes, width = chunk.box.extent.empty() ? 1 : chunk.box.extent.back();
    const int64_t row_count = elems_of(chunk.box.extent) / std::max<int64_t>(1, width);
    s.staging->copy_rows(memory + s.job.at[i], chunk.data, chunk.row_stride * size, width * size, row_count);
  }
  LLMOPS_TRY(s.staging->finish());
  s.cancelled = false;
  s.copied_s = monotonic_s();
  s.report = SaveReport{};
  s.report->stall_s = s.copied_s - start_s;
  s.running = true;
  s.thread = std::thread([this] { state_->work(); });
  return {};
}

}  // namespace llmops
