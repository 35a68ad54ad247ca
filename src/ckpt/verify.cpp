#include "ckpt/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <span>

#include "base/text.h"
#include "ckpt/manifest.h"
#include "ckpt/safetensors.h"
#include "ckpt/steps.h"
#include "ckpt/text_file.h"

namespace llmops {
namespace {

constexpr int64_t kPieceBytes = 4 << 20;

// Verifies one step folder. Tasks: one per file (its whole hash), one per chunk (its hash, its part of the logical digest).
class StepVerifier {
 public:
  StepVerifier(const Dir& dir, std::string prefix, Pool& pool, VerifyReport& report, const std::function<void(int64_t, int64_t)>& progress)
      : dir_(dir), prefix_(std::move(prefix)), pool_(pool), report_(report), progress_(progress) {}

  Status run() {
    if (!read_manifest()) return {};
    LLMOPS_TRY(check_names());
    open_files();
    hash_all();
    check_digests();
    report_.files += static_cast<int64_t>(manifest_.files.size()) + 1;
    report_.tensors += static_cast<int64_t>(manifest_.tensors.size());
    return {};
  }

 private:
  struct Task {
    int file;
    int64_t begin, end;
    const ManifestTensor* tensor = nullptr;  // null: the whole file
    const ManifestChunk* chunk = nullptr;
    size_t tensor_index = 0;
  };

  void find(const std::string& file, std::string what, const std::string& tensor = "", int64_t begin = 0, int64_t end = 0) {
    const std::lock_guard guard(mutex_);
    report_.findings.push_back({prefix_ + file, tensor, begin, end, std::move(what)});
  }

  bool read_manifest() {
    const auto text = read_text(dir_, kManifestName, kManifestBytesMax);
    if (!text.ok()) return find(kManifestName, text.status().message()), false;
    auto manifest = parse_manifest(*text);
    if (!manifest.ok()) return find(kManifestName, manifest.status().message(), "", 0, static_cast<int64_t>(text->size())), false;
    manifest_ = manifest.take();
    report_.bytes += static_cast<int64_t>(text->size());
    return true;
  }

  // Every name in the folder is listed, and every listed name is there.
  Status check_names() {
    LLMOPS_ASSIGN(const std::vector<std::string> names, dir_.list());
    std::set<std::string> listed = {kManifestName};
    for (const ManifestFile& file : manifest_.files) listed.insert(file.name);
    for (const std::string& name : names)
      if (!listed.contains(name)) find(escape_control(name), "is not part of the checkpoint");
    const Json* model = manifest_.meta.find("model");
    const auto config = model ? model_config_from_json(*model) : Result<ModelConfig>(invalid_error("manifest: has no model"));
    if (!config.ok()) return find(kManifestName, config.status().message()), Status();
    for (const LogicalTensor& tensor : logical_tensors(*config)) {
      const auto it = std::ranges::find(manifest_.tensors, tensor.name, &ManifestTensor::name);
      if (it == manifest_.tensors.end()) find(kManifestName, "a tensor of the model is missing", tensor.name);
      else if (it->shape != tensor.shape) find(kManifestName, "the shape differs from the model's", tensor.name);
    }
    return {};
  }

  void open_files() {
    for (const ManifestFile& entry : manifest_.files) {
      auto file = dir_.open_file(entry.name);
      const auto bytes = file.ok() ? file->size() : Result<int64_t>(file.status());
      if (!bytes.ok()) find(entry.name, bytes.status().message());
      else if (*bytes != entry.bytes) find(entry.name, fmt::format("has {} bytes, expected {}", *bytes, entry.bytes), "", std::min(*bytes, entry.bytes), std::max(*bytes, entry.bytes));
      const bool usable = bytes.ok() && *bytes == entry.bytes;
      files_.push_back(usable ? file.take() : File());
      usable_.push_back(usable);
      if (usable) report_.bytes += entry.bytes;
      if (usable && entry.name.ends_with(".safetensors")) check_header(static_cast<int>(files_.size()) - 1);
    }
  }

  // The safetensors header must describe the same chunks as the manifest.
  void check_header(int index) {
    const auto header = read_safetensors_header(files_[index]);
    if (!header.ok()) return find(manifest_.files[index].name, header.status().message());
    size_t chunks = 0;
    for (const ManifestTensor& tensor : manifest_.tensors)
      for (const ManifestChunk& chunk : tensor.chunks) {
        if (chunk.file != index) continue;
        ++chunks;
        const SafeTensor* stored = header->find(chunk_key(tensor.name, chunk.box));
        if (!stored || stored->begin != chunk.begin || stored->end != chunk.end || stored->dtype != tensor.dtype || stored->shape != chunk.box.extent)
          find(manifest_.files[index].name, "the header does not describe this chunk as the manifest does", tensor.name, chunk.begin, chunk.end);
      }
    if (chunks != header->tensors.size()) find(manifest_.files[index].name, fmt::format("the header has {} tensors, the manifest {}", header->tensors.size(), chunks));
  }

  void hash_all() {
    std::vector<Task> tasks;
    for (size_t i = 0; i < manifest_.files.size(); ++i)
      if (usable_[i]) tasks.push_back({static_cast<int>(i), 0, manifest_.files[i].bytes});
    for (size_t t = 0; t < manifest_.tensors.size(); ++t)
      for (const ManifestChunk& chunk : manifest_.tensors[t].chunks)
        if (usable_[chunk.file]) tasks.push_back({chunk.file, chunk.begin, chunk.end, &manifest_.tensors[t], &chunk, t});
    sums_.resize(manifest_.tensors.size());
    for (const Task& task : tasks) total_ += task.end - task.begin;
    bad_chunk_ = std::vector<std::atomic<bool>>(manifest_.files.size());
    bad_file_ = std::vector<std::atomic<bool>>(manifest_.files.size());
    pool_.parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t i, int worker) {
      check(tasks[i]);
      done_ += tasks[i].end - tasks[i].begin;
      if (worker == 0 && progress_) progress_(done_, total_);
    });
    for (size_t i = 0; i < bad_file_.size(); ++i)  // the data is right, so it is the header that is not
      if (bad_file_[i] && !bad_chunk_[i]) find(manifest_.files[i].name, "its hash does not match outside of the tensors' data", "", 0, data_begin(static_cast<int>(i)));
  }

  int64_t data_begin(int file) const {
    int64_t begin = manifest_.files[file].bytes;
    for (const ManifestTensor& tensor : manifest_.tensors)
      for (const ManifestChunk& chunk : tensor.chunks)
        if (chunk.file == file) begin = std::min(begin, chunk.begin);
    return begin;
  }

  void check(const Task& task) {
    Hasher hasher;
    DigestSum sum;
    const int size = task.tensor ? info(task.tensor->dtype).block_bytes : 1;
    std::vector<std::byte> piece;
    for (int64_t at = task.begin; at < task.end; at += kPieceBytes) {
      piece.resize(static_cast<size_t>(std::min(kPieceBytes, task.end - at)));
      if (Status status = files_[task.file].read_at(at, piece); !status.ok()) return find(manifest_.files[task.file].name, status.message());
      hasher.update(piece);
      if (task.tensor) sum.add(digest_piece(task, (at - task.begin) / size, piece, size));
    }
    if (!task.tensor) {
      if (hasher.digest() != manifest_.files[task.file].hash) bad_file_[task.file] = true;
      return;
    }
    if (hasher.digest() != task.chunk->hash) {
      bad_chunk_[task.file] = true;
      find(manifest_.files[task.file].name, "its bytes changed: the hash does not match", task.tensor->name, task.begin, task.end);
    }
    const std::lock_guard guard(mutex_);
    sums_[task.tensor_index].add(sum);
  }

  // The digest of elements [first, first + n) of a chunk, in runs that are contiguous in the tensor.
  static DigestSum digest_piece(const Task& task, int64_t first, std::span<const std::byte> piece, int size) {
    const Box& box = task.chunk->box;
    const Shape& shape = task.tensor->shape;
    const int64_t count = static_cast<int64_t>(piece.size()) / size, width = box.extent.empty() ? 1 : box.extent.back();
    DigestSum sum;
    for (int64_t i = 0; i < count;) {
      const int64_t row = (first + i) / width, column = (first + i) % width, run = std::min(width - column, count - i);
      const int64_t flat = shape.size() < 2 ? (shape.empty() ? 0 : box.offset[0] + column) : (box.offset[0] + row) * shape[1] + box.offset[1] + column;
      sum.add(digest_run(piece.data() + i * size, size, static_cast<uint64_t>(flat), run));
      i += run;
    }
    return sum;
  }

  void check_digests() {
    for (size_t t = 0; t < manifest_.tensors.size(); ++t) {
      const ManifestTensor& tensor = manifest_.tensors[t];
      const bool whole = std::ranges::all_of(tensor.chunks, [&](const ManifestChunk& chunk) { return usable_[chunk.file] && !bad_chunk_[chunk.file]; });
      if (whole && finish_digest(sums_[t], tensor.dtype, tensor.shape) != tensor.digest)
        find(kManifestName, "the logical digest does not match the data", tensor.name);
    }
  }

  const Dir& dir_;
  std::string prefix_;
  Pool& pool_;
  VerifyReport& report_;
  const std::function<void(int64_t, int64_t)>& progress_;
  Manifest manifest_;
  std::vector<File> files_;
  std::vector<bool> usable_;
  std::vector<DigestSum> sums_;
  std::vector<std::atomic<bool>> bad_chunk_, bad_file_;
  std::atomic<int64_t> done_{0};
  int64_t total_ = 0;
  std::mutex mutex_;
};

}  // namespace

Result<VerifyReport> verify(const std::string& path, Pool& pool, const std::function<void(int64_t, int64_t)>& progress) {
  LLMOPS_ASSIGN(const Dir dir, Dir::open(path));
  VerifyReport report;
  if (dir.exists(kManifestName)) {
    LLMOPS_TRY(StepVerifier(dir, "", pool, report, progress).run());
    report.steps.push_back(path);
    return report;
  }
  LLMOPS_ASSIGN(const std::vector<StepDir> steps, list_steps(path));
  if (steps.empty()) return invalid_error(fmt::format("{}: is no checkpoint: neither {} nor step-%08d folders are in it", path, kManifestName));
  for (const StepDir& step : steps) {
    LLMOPS_ASSIGN(const Dir step_dir, Dir::open(step.path));
    LLMOPS_TRY(StepVerifier(step_dir, step.path.substr(path.size() + 1) + "/", pool, report, progress).run());
    report.steps.push_back(step.path);
  }
  return report;
}

}  // namespace llmops
