#include "ckpt/checkpoint.h"

#include <fmt/format.h>

#include <optional>
#include <unordered_map>

#include "base/io.h"
#include "base/text.h"
#include "ckpt/convert.h"
#include "ckpt/manifest.h"
#include "ckpt/steps.h"
#include "ckpt/text_file.h"

namespace llmops {

std::string state_name(StateKind kind, const std::string& tensor) {
  return kind == StateKind::weight ? tensor : (kind == StateKind::m ? "optim.m:" : "optim.v:") + tensor;
}

namespace {

class NativeCheckpoint : public Checkpoint {
 public:
  static Result<std::unique_ptr<Checkpoint>> open(const std::string& path) {
    auto c = std::make_unique<NativeCheckpoint>();
    LLMOPS_ASSIGN(Dir dir, Dir::open(path));
    if (!dir.exists(kManifestName)) return no_checkpoint(path);
    LLMOPS_ASSIGN(const std::string text, read_text(dir, kManifestName, kManifestBytesMax));
    auto manifest = parse_manifest(text);
    if (!manifest.ok()) return manifest.status().in(path);
    c->manifest_ = manifest.take();
    const Json* model = c->manifest_.meta.find("model");
    if (!model) return invalid_error(path + ": manifest: has no model");
    auto config = model_config_from_json(*model);
    if (!config.ok()) return config.status().in(path);
    c->config_ = config.take();
    c->tensors_ = logical_tensors(c->config_);
    LLMOPS_TRY(c->open_files(dir));
    LLMOPS_TRY(c->index(path));
    c->dir_.emplace(std::move(dir));
    return std::unique_ptr<Checkpoint>(std::move(c));
  }

  int64_t step() const override { return manifest_.step; }
  const Json& meta() const override { return manifest_.meta; }
  bool has(StateKind kind) const override {
    return !tensors_.empty() && by_name_.contains(state_name(kind, tensors_[0].name));
  }

  Result<std::vector<StoredFile>> files() const override {
    std::vector<StoredFile> stored;
    for (size_t i = 0; i < manifest_.files.size(); ++i) {
      const ManifestFile& file = manifest_.files[i];
      if (file.name.ends_with(".safetensors")) continue;
      StoredFile out{file.name, std::string(static_cast<size_t>(file.bytes), '\0')};
      LLMOPS_TRY(files_[i].read_at(0, std::as_writable_bytes(std::span(out.content))));
      stored.push_back(std::move(out));
    }
    return stored;
  }

  std::vector<TensorSummary> summaries() const override {
    std::vector<TensorSummary> all;
    for (const ManifestTensor& t : manifest_.tensors)
      all.push_back({t.name, t.dtype, t.shape, t.digest, static_cast<int64_t>(t.chunks.size()),
                     *bytes_of(t.dtype, elems_of(t.shape))});
    return all;
  }

  int64_t bytes() const override {
    int64_t bytes = 0;
    for (const ManifestFile& file : manifest_.files) bytes += file.bytes;
    return bytes;
  }

  Status read(StateKind kind, int logical, const Box& box, DType to, void* out, int64_t row_stride) const override {
    const auto it = by_name_.find(state_name(kind, tensors_[logical].name));
    if (it == by_name_.end())
      return invalid_error(fmt::format("{}: is not in the checkpoint", state_name(kind, tensors_[logical].name)));
    const ManifestTensor& tensor = manifest_.tensors[it->second];
    for (const ManifestChunk& chunk : tensor.chunks) {
      const StoredRegion region{&files_[chunk.file], tensor.dtype, chunk.begin, chunk.box};
      LLMOPS_TRY(read_region(region, box, to, out, row_stride));
    }
    return {};
  }

 private:
  Status open_files(const Dir& dir) {
    for (const ManifestFile& entry : manifest_.files) {
      LLMOPS_ASSIGN(File file, dir.open_file(entry.name));
      LLMOPS_ASSIGN(const int64_t bytes, file.size());
      if (bytes != entry.bytes)
        return invalid_error(fmt::format("{}: has {} bytes, the manifest says {}", file.path(), bytes, entry.bytes));
      files_.push_back(std::move(file));
    }
    return {};
  }
  Status index(const std::string& path) {
    for (size_t i = 0; i < manifest_.tensors.size(); ++i) by_name_[manifest_.tensors[i].name] = i;
    for (const LogicalTensor& tensor : tensors_) {
      const auto it = by_name_.find(tensor.name);
      if (it == by_name_.end())
        return invalid_error(fmt::format("{}: tensor {} of the model is missing", path, tensor.name));
      if (manifest_.tensors[it->second].shape != tensor.shape)
        return invalid_error(fmt::format("{}: tensor {} has shape [{}], the model needs [{}]", path, tensor.name,
                                         fmt::join(manifest_.tensors[it->second].shape, ","),
                                         fmt::join(tensor.shape, ",")));
    }
    return {};
  }

  Manifest manifest_;
  std::optional<Dir> dir_;
  std::vector<File> files_;
  std::unordered_map<std::string, size_t> by_name_;
};

}  // namespace

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const std::string& step_dir) {
  return NativeCheckpoint::open(step_dir);
}

}  // namespace llmops
