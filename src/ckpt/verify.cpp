#include "ckpt/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>

#include "base/run.h"
#include "base/text.h"
#include "ckpt/manifest.h"
#include "ckpt/safetensors.h"
#include "ckpt/steps.h"
#include "ckpt/text_file.h"

namespace llmops {
namespace {

constexpr int64_t kPieceBytes = 4 << 20;  // read at a time by each thread

struct ChunkRef {
  size_t tensor;
  const ManifestChunk* chunk;
};

// A listed file, its chunks in the order of their bytes.
struct CheckedFile {
  const ManifestFile* entry;
  std::vector<ChunkRef> chunks;
  bool usable = false;                     // there, and of the right size
  std::vector<const ManifestTensor*> bad;  // tensors whose bytes changed
};

// Verifies one step folder: what is listed against what is there, then every byte once, a task per file.
class StepVerifier {
 public:
  StepVerifier(const Dir& dir, std::string prefix, Pool& pool, VerifyReport& report)
      : dir_(dir), prefix_(std::move(prefix)), pool_(pool), report_(report) {}

  // Bytes of the files that are listed; 0 without a valid manifest.
  int64_t open() {
    is_open_ = read_manifest();
    int64_t bytes = 0;
    for (const ManifestFile& file : manifest_.files) bytes += file.bytes;
    return bytes;
  }

  Status run(const std::function<void(int64_t)>& on_bytes) {
    if (!is_open_) return {};
    LLMOPS_TRY(check_names());
    check_model();
    sums_.resize(manifest_.tensors.size());
    list_chunks();
    pool_.parallel_for(static_cast<int64_t>(files_.size()),
                       [&](int64_t i, int worker) { check_file(files_[i], worker, on_bytes); });
    if (cancel_signal() != 0) return {Code::interrupted, "stopped by a signal"};
    check_digests();
    report_.files += static_cast<int64_t>(manifest_.files.size()) + 1;
    report_.tensors += static_cast<int64_t>(manifest_.tensors.size());
    return {};
  }

 private:
  void find(const std::string& file, std::string what, const std::string& tensor = "", int64_t begin = 0,
            int64_t end = 0) {
    const std::lock_guard guard(mutex_);
    report_.findings.push_back({prefix_ + escape_control(file), escape_control(tensor), begin, end, std::move(what)});
  }

  bool read_manifest() {
    const auto text = read_text(dir_, kManifestName, kManifestBytesMax);
    if (!text.ok()) return find(kManifestName, text.status().message()), false;
    auto manifest = parse_manifest(*text);
    if (!manifest.ok())
      return find(kManifestName, manifest.status().message(), "", 0, static_cast<int64_t>(text->size())), false;
    manifest_ = manifest.take();
    const std::string folder = std::filesystem::path(dir_.path() + "/").parent_path().filename();
    if (const auto named = step_of(folder); named && *named != manifest_.step)
      find(kManifestName, fmt::format("is of step {}, its folder's name says {}", manifest_.step, *named));
    report_.bytes += static_cast<int64_t>(text->size());
    return true;
  }

  Status check_names() {
    LLMOPS_ASSIGN(const std::vector<std::string> names, dir_.list());
    std::set<std::string> listed = {kManifestName};
    for (const ManifestFile& file : manifest_.files) listed.insert(file.name);
    for (const std::string& name : names)
      if (!listed.contains(name)) find(name, "is not part of the checkpoint");
    return {};
  }

  void check_model() {
    const Json* model = manifest_.meta.find("model");
    const auto config =
        model ? model_config_from_json(*model) : Result<ModelConfig>(invalid_error("manifest: has no model"));
    if (!config.ok()) return find(kManifestName, config.status().message());
    std::unordered_map<std::string_view, const ManifestTensor*> by_name;
    for (const ManifestTensor& tensor : manifest_.tensors) by_name[tensor.name] = &tensor;
    for (const LogicalTensor& tensor : logical_tensors(*config)) {
      const auto it = by_name.find(tensor.name);
      if (it == by_name.end())
        find(kManifestName, "a tensor of the model is missing", tensor.name);
      else if (it->second->shape != tensor.shape)
        find(kManifestName, "the shape differs from the model's", tensor.name);
    }
  }

  void list_chunks() {
    for (const ManifestFile& entry : manifest_.files) files_.push_back({&entry, {}, false, {}});
    for (size_t t = 0; t < manifest_.tensors.size(); ++t)
      for (const ManifestChunk& chunk : manifest_.tensors[t].chunks) files_[chunk.file].chunks.push_back({t, &chunk});
    for (CheckedFile& file : files_)
      std::ranges::sort(file.chunks, {}, [](const ChunkRef& ref) { return ref.chunk->begin; });
  }

  void check_file(CheckedFile& file, int worker, const std::function<void(int64_t)>& on_bytes) {
    const std::string& name = file.entry->name;
    const auto opened = dir_.open_file(name);
    const auto bytes = opened.ok() ? opened->size() : Result<int64_t>(opened.status());
    if (!bytes.ok()) return find(name, bytes.status().message());
    if (*bytes != file.entry->bytes)
      return find(name, fmt::format("has {} bytes, expected {}", *bytes, file.entry->bytes), "",
                  std::min(*bytes, file.entry->bytes), std::max(*bytes, file.entry->bytes));
    file.usable = true;
    if (!file.chunks.empty()) check_header(file, *opened);
    check_bytes(file, *opened, worker, on_bytes);
  }

  // The safetensors header must describe the same chunks as the manifest.
  void check_header(const CheckedFile& file, const File& opened) {
    const auto header = read_safetensors_header(opened);
    if (!header.ok()) return find(file.entry->name, header.status().message(), "", 0, file.chunks.front().chunk->begin);
    if (header->tensors.size() != file.chunks.size())
      return find(file.entry->name, fmt::format("the header has {} tensors, the manifest {}", header->tensors.size(),
                                                file.chunks.size()));
    for (size_t i = 0; i < file.chunks.size(); ++i) {  // both are in the order of their bytes
      const ManifestTensor& tensor = manifest_.tensors[file.chunks[i].tensor];
      const ManifestChunk& chunk = *file.chunks[i].chunk;
      const SafeTensor& stored = header->tensors[i];
      if (stored.name != chunk_key(tensor.name, chunk.box) || stored.begin != chunk.begin || stored.end != chunk.end ||
          stored.dtype != tensor.dtype || stored.shape != chunk.box.extent)
        find(file.entry->name, "the header does not describe this chunk as the manifest does", tensor.name, chunk.begin,
             chunk.end);
    }
  }

  // One pass: the hash of the file, of each chunk, and each chunk's part of its tensor's digest.
  void check_bytes(CheckedFile& file, const File& opened, int worker, const std::function<void(int64_t)>& on_bytes) {
    Hasher whole_file;
    std::vector<std::byte> piece;
    const auto read = [&](int64_t begin, int64_t end, const auto& use) {
      for (int64_t at = begin; at < end; at += kPieceBytes) {
        if (cancel_signal() != 0) return false;
        piece.resize(static_cast<size_t>(std::min(kPieceBytes, end - at)));
        if (Status status = opened.read_at(at, piece); !status.ok())
          return find(file.entry->name, status.message(), "", at, at + static_cast<int64_t>(piece.size())), false;
        whole_file.update(piece);
        use(at - begin);
        done_ += static_cast<int64_t>(piece.size());
        if (worker == 0) on_bytes(done_);
      }
      return true;
    };
    const int64_t data_begin = file.chunks.empty() ? file.entry->bytes : file.chunks.front().chunk->begin;
    if (!read(0, data_begin, [](int64_t) {})) return;
    for (const auto& [t, chunk] : file.chunks) {
      const ManifestTensor& tensor = manifest_.tensors[t];
      const int size = info(tensor.dtype).block_bytes;
      Hasher hasher;
      DigestSum sum;
      if (!read(chunk->begin, chunk->end, [&](int64_t at) {
            hasher.update(piece);
            sum.add(digest_part(tensor.shape, chunk->box, at / size, piece, size));
          }))
        return;
      if (hasher.digest() != chunk->hash) {
        file.bad.push_back(&tensor);
        find(file.entry->name, "its bytes changed: the hash does not match", tensor.name, chunk->begin, chunk->end);
      }
      const std::lock_guard guard(mutex_);
      sums_[t].add(sum);
    }
    if (whole_file.digest() != file.entry->hash && file.bad.empty())
      find(file.entry->name,
           file.chunks.empty() ? "its bytes changed: the hash does not match"
                               : "its header changed: the hash does not match",
           "", 0, data_begin);
    const std::lock_guard guard(mutex_);
    report_.bytes += file.entry->bytes;
  }

  // Only of tensors whose chunks are all there and unchanged: others have their finding already.
  void check_digests() {
    std::vector<bool> skip(manifest_.tensors.size());
    for (const CheckedFile& file : files_) {
      for (const auto& [t, chunk] : file.chunks) skip[t] = skip[t] || !file.usable;
      for (const ManifestTensor* tensor : file.bad) skip[static_cast<size_t>(tensor - manifest_.tensors.data())] = true;
    }
    for (size_t t = 0; t < manifest_.tensors.size(); ++t) {
      const ManifestTensor& tensor = manifest_.tensors[t];
      if (!skip[t] && finish_digest(sums_[t], tensor.dtype, tensor.shape) != tensor.digest)
        find(kManifestName, "the logical digest does not match the data", tensor.name);
    }
  }

  const Dir& dir_;
  std::string prefix_;
  Pool& pool_;
  VerifyReport& report_;
  Manifest manifest_;
  bool is_open_ = false;
  std::vector<CheckedFile> files_;
  std::vector<DigestSum> sums_;  // of each tensor
  std::atomic<int64_t> done_{0};
  std::mutex mutex_;
};

}  // namespace

Result<VerifyReport> verify(const std::string& path, Pool& pool,
                            const std::function<void(int64_t, int64_t)>& progress) {
  LLMOPS_TRY(check_folder(path));
  VerifyReport report;
  std::vector<std::pair<Dir, std::string>> folders;  // and what stands before their files' names
  {
    LLMOPS_ASSIGN(Dir dir, Dir::open(path));
    if (dir.exists(kManifestName)) {
      report.steps.push_back(path);
      folders.emplace_back(std::move(dir), "");
    }
  }
  if (report.steps.empty()) {
    LLMOPS_ASSIGN(const std::vector<StepDir> steps, list_steps(path));
    if (steps.empty()) return no_checkpoint(path);
    for (const StepDir& step : steps) {
      auto dir = Dir::open(step.path);
      report.steps.push_back(step.path);
      if (dir.ok())
        folders.emplace_back(dir.take(), step_name(step.step) + "/");
      else
        report.findings.push_back({step_name(step.step), "", 0, 0, dir.status().message()});
    }
  }
  std::vector<std::unique_ptr<StepVerifier>> verifiers;
  std::vector<int64_t> bytes;
  for (const auto& [dir, prefix] : folders) {
    verifiers.push_back(std::make_unique<StepVerifier>(dir, prefix, pool, report));
    bytes.push_back(verifiers.back()->open());
  }
  int64_t before = 0, total = 0;
  for (int64_t n : bytes) total += n;
  for (size_t i = 0; i < verifiers.size(); ++i) {
    LLMOPS_TRY(verifiers[i]->run([&](int64_t done) {
      if (progress) progress(before + done, total);
    }));
    before += bytes[i];
    verifiers[i].reset();
  }
  std::ranges::stable_sort(report.findings, {}, [](const Finding& f) { return std::tie(f.file, f.begin); });
  // Workers find in any order; people and scripts read by file and place.
  std::ranges::stable_sort(report.findings, [](const Finding& a, const Finding& b) {
    return std::tie(a.file, a.begin, a.tensor) < std::tie(b.file, b.begin, b.tensor);
  });
  return report;
}

}  // namespace llmops
