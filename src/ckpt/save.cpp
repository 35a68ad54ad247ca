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
#include "ckpt/steps.h"
#include "ckpt/text_file.h"

namespace llmops {
namespace {

constexpr int kNice = 10;

std::string shard_name(int rank) { return fmt::format("shard-{:05}.safetensors", rank); }
std::string sidecar_name(int rank) { return fmt::format("shard-{:05}.json", rank); }

// A request whose data is in staging memory.
struct Job {
  SaveRequest request;
  std::vector<size_t> at;  // where each chunk lies in staging
};

std::string hex64(uint64_t x) { return fmt::format("{:016x}", x); }

// What this rank tells rank 0 about its shard.
Json sidecar_json(const Job& job, const std::vector<SafeTensor>& tensors, const std::vector<Hash128>& hashes, const std::vector<DigestSum>& digests,
                  int64_t bytes, const Hash128& file_hash) {
  Json file(Json::Object{}), chunks(Json::Array{}), json(Json::Object{});
  file["name"] = shard_name(job.request.rank);
  file["bytes"] = bytes;
  file["xxh3"] = to_hex(file_hash);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Chunk& chunk = job.request.chunks[i];
    Json item(Json::Object{});
    item["name"] = chunk.name;
    item["dtype"] = info(chunk.dtype).name;
    item["shape"] = shape_json(chunk.shape);
    item["offset"] = shape_json(chunk.box.offset);
    item["extent"] = shape_json(chunk.box.extent);
    item["begin"] = tensors[i].begin;
    item["end"] = tensors[i].end;
    item["xxh3"] = to_hex(hashes[i]);
    item["digest_lo"] = hex64(digests[i].lo);
    item["digest_hi"] = hex64(digests[i].hi);
    chunks.push_back(std::move(item));
  }
  json["file"] = std::move(file);
  json["chunks"] = std::move(chunks);
  return json;
}

uint64_t from_hex64(const Json* json) {
  const Hash128 both = [&] {
    auto hash = hash_from_hex(std::string(16, '0') + (json ? json->as_string() : ""));
    return hash.ok() ? *hash : Hash128{};
  }();
  return both.lo;
}

// Tensors in the order of first appearance, chunks in rank order.
class Merger {
 public:
  Status add(const Json& sidecar) {
    const Json* file = sidecar.find("file");
    const Json* chunks = sidecar.find("chunks");
    auto hash = hash_from_hex(file && file->find("xxh3") ? file->find("xxh3")->as_string() : "");
    if (!file || !chunks || !hash.ok()) return invalid_error("a rank's shard description is malformed");
    manifest_.files.push_back({file->find("name")->as_string(), file->find("bytes")->as_int(), *hash});
    for (const Json& item : chunks->as_array()) LLMOPS_TRY(add_chunk(item));
    return {};
  }
  Manifest finish(const Job& job) {
    for (size_t i = 0; i < manifest_.tensors.size(); ++i)
      manifest_.tensors[i].digest = finish_digest(sums_[i], manifest_.tensors[i].dtype, manifest_.tensors[i].shape);
    for (const StoredFile& file : job.request.files)
      manifest_.files.push_back({file.name, static_cast<int64_t>(file.content.size()), hash128(std::as_bytes(std::span(file.content)))});
    manifest_.step = job.request.step;
    manifest_.meta = job.request.meta;
    return std::move(manifest_);
  }

 private:
  Status add_chunk(const Json& item) {
    const std::string name = item.find("name")->as_string();
    size_t i = 0;
    while (i < manifest_.tensors.size() && manifest_.tensors[i].name != name) ++i;
    if (i == manifest_.tensors.size()) {
      ManifestTensor tensor;
      tensor.name = name;
      tensor.dtype = *dtype_from_name(item.find("dtype")->as_string());
      LLMOPS_ASSIGN(tensor.shape, shape_from(item.find("shape"), "shape"));
      manifest_.tensors.push_back(std::move(tensor));
      sums_.push_back({});
    }
    ManifestChunk chunk;
    chunk.file = static_cast<int>(manifest_.files.size()) - 1;
    LLMOPS_ASSIGN(chunk.box.offset, shape_from(item.find("offset"), "offset"));
    LLMOPS_ASSIGN(chunk.box.extent, shape_from(item.find("extent"), "extent"));
    chunk.begin = item.find("begin")->as_int();
    chunk.end = item.find("end")->as_int();
    LLMOPS_ASSIGN(chunk.hash, hash_from_hex(item.find("xxh3")->as_string()));
    manifest_.tensors[i].chunks.push_back(std::move(chunk));
    sums_[i].add({from_hex64(item.find("digest_lo")), from_hex64(item.find("digest_hi"))});
    return {};
  }

  Manifest manifest_;
  std::vector<DigestSum> sums_;
};

}  // namespace

struct ShardSaver::State {
  std::string dir;
  Fs& fs;
  double deadline_s;
  std::vector<char> staging;
  Job job;
  std::thread thread;
  std::atomic<bool> cancelled{false};
  std::atomic<bool> running{false};
  std::optional<SaveReport> report;  // written by the thread before running turns false
  double copied_s = 0;

  State(std::string d, Fs& f, double deadline) : dir(std::move(d)), fs(f), deadline_s(deadline) {}

  std::string temp_path() const { return fmt::format("{}/.{}.tmp", dir, step_name(job.request.step)); }

  Status write_shard(const Dir& temp) {
    const std::vector<Chunk>& chunks = job.request.chunks;
    std::vector<SafeTensor> tensors;
    for (const Chunk& chunk : chunks) tensors.push_back({chunk_key(chunk.name, chunk.box), chunk.dtype, chunk.box.extent, 0, 0});
    const std::string header = safetensors_header(tensors);
    const int64_t bytes = tensors.empty() ? static_cast<int64_t>(header.size()) : tensors.back().end;
    LLMOPS_ASSIGN(DurableFile file, DurableFile::create(temp, shard_name(job.request.rank), bytes));
    LLMOPS_TRY(file.write(header));
    std::vector<Hash128> hashes;
    std::vector<DigestSum> digests;
    for (size_t i = 0; i < chunks.size(); ++i) {
      if (cancelled) return io_error("the save was given up");
      const auto data = std::as_bytes(std::span(staging.data() + job.at[i], static_cast<size_t>(tensors[i].end - tensors[i].begin)));
      LLMOPS_TRY(file.write(data));
      hashes.push_back(hash128(data));
      digests.push_back(digest_box(data.data(), info(chunks[i].dtype).block_bytes, chunks[i].shape, chunks[i].box));
    }
    LLMOPS_ASSIGN(const Hash128 hash, file.commit(false));
    LLMOPS_ASSIGN(DurableFile sidecar, DurableFile::create(temp, sidecar_name(job.request.rank)));
    LLMOPS_TRY(sidecar.write(sidecar_json(job, tensors, hashes, digests, bytes, hash).dump()));
    return sidecar.commit(true).status();
  }

  Status wait_for_sidecars(const Dir& temp) {
    const double stop_s = monotonic_s() + deadline_s;
    for (int rank = 0; rank < job.request.world;) {
      if (temp.exists(sidecar_name(rank))) {
        ++rank;
        continue;
      }
      if (cancelled) return io_error("the save was given up");
      if (monotonic_s() > stop_s) return peer_error(fmt::format("rank {} did not write its shard within {} s", rank, deadline_s));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return {};
  }

  Status commit(const Dir& run, const Dir& temp) {
    LLMOPS_TRY(wait_for_sidecars(temp));
    Merger merger;
    for (int rank = 0; rank < job.request.world; ++rank) {
      LLMOPS_ASSIGN(const std::string text, read_text(temp, sidecar_name(rank), kManifestBytesMax));
      LLMOPS_ASSIGN(const Json sidecar, json_parse(text));
      LLMOPS_TRY(merger.add(sidecar));
      LLMOPS_TRY(temp.remove_tree(sidecar_name(rank)));
    }
    for (const StoredFile& stored : job.request.files) {
      LLMOPS_ASSIGN(DurableFile file, DurableFile::create(temp, stored.name));
      LLMOPS_TRY(file.write(stored.content));
      LLMOPS_TRY(file.commit(false).status());
    }
    LLMOPS_ASSIGN(DurableFile manifest, DurableFile::create(temp, kManifestName));
    LLMOPS_TRY(manifest.write(to_text(merger.finish(job))));
    LLMOPS_TRY(manifest.commit(true).status());
    const std::string name = step_name(job.request.step);
    // A step of this number is there only when it was found damaged and the run went on from an older one.
    if (run.exists(name)) LLMOPS_TRY(run.remove_tree(name));
    LLMOPS_TRY(run.rename(fmt::format(".{}.tmp", name), name));
    LLMOPS_TRY(run.sync());
    LLMOPS_ASSIGN(DurableFile latest, DurableFile::create(run, "latest"));
    LLMOPS_TRY(latest.write(name + "\n"));
    return latest.commit(true).status();
  }

  Status save() {
    LLMOPS_ASSIGN(const Dir run, Dir::open(dir, fs));
    LLMOPS_ASSIGN(const Dir temp, Dir::create(temp_path(), fs));
    const Status status = write_shard(temp);
    if (status.ok() && job.request.rank == 0) {
      const Status committed = commit(run, temp);
      if (!committed.ok()) (void)run.remove_tree(fmt::format(".{}.tmp", step_name(job.request.step)));
      return committed;
    }
    if (!status.ok()) (void)temp.remove_tree(shard_name(job.request.rank));
    return status;
  }

  void work() {
    pthread_setname_np(pthread_self(), "llmops-save");
    setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice);
    SaveReport done;
    done.step = job.request.step;
    done.status = save();
    done.bytes = static_cast<int64_t>(staging.size());
    done.stall_s = report ? report->stall_s : 0;
    done.drain_s = monotonic_s() - copied_s;
    if (!done.status.ok()) done.status = Status(done.status.code(), fmt::format("checkpoint of step {}: {}", done.step, done.status.message()));
    report = std::move(done);
    running.store(false, std::memory_order_release);
  }
};

ShardSaver::ShardSaver(std::string run_dir, Fs& fs, double deadline_s) : state_(std::make_unique<State>(std::move(run_dir), fs, deadline_s)) {}

ShardSaver::~ShardSaver() {
  cancel();
  if (state_->thread.joinable()) state_->thread.join();
}

bool ShardSaver::busy() const { return state_->running.load(std::memory_order_acquire); }
void ShardSaver::cancel() { state_->cancelled = true; }
int64_t ShardSaver::staging_bytes() const { return static_cast<int64_t>(state_->staging.capacity()); }

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
  s.staging.resize(bytes);
  for (size_t i = 0; i < request.chunks.size(); ++i) {
    const Chunk& chunk = request.chunks[i];
    const int64_t size = info(chunk.dtype).block_bytes, width = chunk.box.extent.empty() ? 1 : chunk.box.extent.back();
    const int64_t row_count = elems_of(chunk.box.extent) / std::max<int64_t>(1, width);
    for (int64_t row = 0; row < row_count; ++row)
      std::memcpy(s.staging.data() + s.job.at[i] + row * width * size, static_cast<const char*>(chunk.data) + row * chunk.row_stride * size,
                  static_cast<size_t>(width * size));
  }
  s.cancelled = false;
  s.copied_s = monotonic_s();
  s.report = SaveReport{};
  s.report->stall_s = s.copied_s - start_s;
  s.running = true;
  s.thread = std::thread([this] { state_->work(); });
  return {};
}

}  // namespace llmops
