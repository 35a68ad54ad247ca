#include "ckpt/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/io.h"
#include "base/run.h"
#include "ckpt/safetensors.h"

namespace llmops {
namespace {

constexpr int64_t kPieceBytes = 4 << 20;

// The same model as Hugging Face sees it: its GPT-2 always has biases, and zeros change nothing.
ModelConfig hf_form(ModelConfig config) {
  if (config.family == Family::gpt2) config.norm_bias = config.qkv_bias = config.out_bias = config.mlp_bias = true;
  return config;
}

class Exporter {
 public:
  Exporter(const Checkpoint& checkpoint, Dir dir, DType dtype, const std::function<void(int64_t, int64_t)>& progress,
           int64_t shard_bytes_max)
      : checkpoint_(checkpoint),
        config_(hf_form(checkpoint.config())),
        dir_(std::move(dir)),
        dtype_(dtype),
        progress_(progress),
        shard_bytes_max_(shard_bytes_max) {}

  Result<ExportReport> run() {
    const Status status = write_all();
    if (status.ok()) return report_;
    for (const std::string& name : written_) (void)dir_.remove_tree(name);
    return status;
  }

 private:
  Status write_all() {
    // Writing and reading a config must give the same model, else the format cannot express it.
    const Json config_json = model_config_to_hf(config_, dtype_);
    const auto again = model_config_from_hf(config_json);
    if (!again.ok()) return again.status().in("the model has no Hugging Face form");
    if (!(*again == config_))
      return invalid_error(fmt::format("the model has no Hugging Face form: a {} config.json cannot say all of it",
                                       name_of(config_.family)));
    list_tensors();
    cut_shards();
    for (size_t i = 0; i + 1 < shard_begin_.size(); ++i) LLMOPS_TRY(write_shard(i));
    if (shard_count() > 1) LLMOPS_TRY(write_text("model.safetensors.index.json", index_json().dump(2) + "\n"));
    LLMOPS_TRY(write_tokenizer());
    LLMOPS_TRY(write_text("generation_config.json", generation_json(config_json).dump(2) + "\n"));
    LLMOPS_TRY(write_text("config.json", config_json.dump(2) + "\n"));  // last: without it the folder is no model
    report_.files = static_cast<int64_t>(written_.size());
    report_.tensors = static_cast<int64_t>(hf_.size());
    report_.bytes = total_;
    return {};
  }

  size_t shard_count() const { return shard_begin_.size() - 1; }

  void list_tensors() {
    hf_ = hf_tensors(config_);
    logical_ = logical_tensors(config_);
    for (size_t i = 0; i < checkpoint_.tensors().size(); ++i)
      stored_[checkpoint_.tensors()[i].name] = static_cast<int>(i);
  }

  int64_t bytes_of_tensor(const HfTensor& tensor) const { return elems_of(tensor.shape) * info(dtype_).block_bytes; }

  // In the order of the model; a tensor that is larger than a shard may be gets one of its own.
  void cut_shards() {
    shard_begin_ = {0};
    int64_t bytes = 0;
    for (size_t i = 0; i < hf_.size(); ++i) {
      const int64_t next = bytes_of_tensor(hf_[i]);
      if (bytes > 0 && bytes + next > shard_bytes_max_) {
        shard_begin_.push_back(i);
        bytes = 0;
      }
      bytes += next;
      total_ += next;
    }
    shard_begin_.push_back(hf_.size());
  }

  std::string shard_name(size_t shard) const {
    return shard_count() == 1 ? "model.safetensors"
                              : fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shard_count());
  }

  Status write_shard(size_t shard) {
    std::vector<SafeTensor> tensors;
    for (size_t i = shard_begin_[shard]; i < shard_begin_[shard + 1]; ++i)
      tensors.push_back({hf_[i].name, dtype_, hf_[i].shape});
    Json metadata(Json::Object{});
    metadata["format"] = "pt";  // transformers refuses files without it
    const std::string header = safetensors_header(tensors, metadata);
    LLMOPS_ASSIGN(DurableFile file, DurableFile::create(dir_, shard_name(shard), tensors.back().end));
    LLMOPS_TRY(file.write(header));
    for (size_t i = shard_begin_[shard]; i < shard_begin_[shard + 1]; ++i) LLMOPS_TRY(write_tensor(hf_[i], file));
    LLMOPS_TRY(file.commit().status());
    written_.push_back(shard_name(shard));
    return {};
  }

  // In runs of rows; a vector is one row.
  Status write_tensor(const HfTensor& tensor, DurableFile& file) {
    const bool matrix = tensor.shape.size() == 2;
    const int64_t rows = matrix ? tensor.shape[0] : 1, columns = tensor.shape.back(), size = info(dtype_).block_bytes;
    const int64_t rows_per_piece = std::max<int64_t>(1, kPieceBytes / (columns * size));
    for (int64_t row = 0; row < rows; row += rows_per_piece) {
      if (cancel_signal() != 0) return {Code::interrupted, "stopped by a signal; what was written is removed"};
      const int64_t count = std::min(rows_per_piece, rows - row);
      piece_.assign(static_cast<size_t>(count * columns * size), std::byte{0});
      LLMOPS_TRY(read_rows(tensor, row, count));
      LLMOPS_TRY(file.write(std::span<const std::byte>(piece_)));
      done_ += static_cast<int64_t>(piece_.size());
      if (progress_) progress_(done_, total_);
    }
    return {};
  }

  // Rows [row, row + count) of all pieces of a tensor; a piece that the checkpoint lacks (a bias) stays zero.
  Status read_rows(const HfTensor& tensor, int64_t row, int64_t count) {
    const int64_t columns = tensor.shape.back(), last_axis = static_cast<int64_t>(tensor.shape.size()) - 1;
    int64_t begin = 0;  // of the piece along the axis of fusion
    for (int logical : tensor.pieces) {
      const LogicalTensor& piece = logical_[logical];
      const auto stored = stored_.find(piece.name);
      const int64_t first_column = tensor.axis == last_axis ? begin : 0;
      begin += piece.shape[tensor.axis];
      if (stored == stored_.end()) continue;
      Box box = whole(piece.shape);
      if (tensor.shape.size() == 2) box.offset[0] = row, box.extent[0] = count;
      std::byte* out = piece_.data() + first_column * info(dtype_).block_bytes;
      LLMOPS_TRY(checkpoint_.read(StateKind::weight, stored->second, box, dtype_, out, columns));
    }
    return {};
  }

  Json index_json() const {
    Json metadata(Json::Object{}), map(Json::Object{}), json(Json::Object{});
    metadata["total_parameters"] = total_ / info(dtype_).block_bytes;
    metadata["total_size"] = total_;
    for (size_t shard = 0; shard < shard_count(); ++shard)
      for (size_t i = shard_begin_[shard]; i < shard_begin_[shard + 1]; ++i) map.append(hf_[i].name, shard_name(shard));
    json["metadata"] = std::move(metadata);
    json["weight_map"] = std::move(map);
    return json;
  }

  static Json generation_json(const Json& config) {
    Json json(Json::Object{});
    json["_from_model_config"] = true;
    for (const char* key : {"bos_token_id", "eos_token_id"})
      if (const Json* id = config.find(key); id && !id->is_null()) json[key] = *id;
    return json;
  }

  // GPT-2's BPE is stored under the names that Hugging Face gives its files.
  Status write_tokenizer() {
    LLMOPS_ASSIGN(const std::vector<StoredFile> files, checkpoint_.files());
    std::string kind;
    for (const StoredFile& file : files) {
      if (file.name == "tokenizer.json")
        kind = "PreTrainedTokenizerFast";
      else if (file.name == "vocab.json")
        kind = "GPT2Tokenizer";
      else if (file.name != "merges.txt")
        continue;
      LLMOPS_TRY(write_text(file.name, file.content));
    }
    if (kind.empty()) return {};
    report_.has_tokenizer = true;
    Json json(Json::Object{});
    json["tokenizer_class"] = kind;  // else transformers would choose one by the model's type
    json["add_prefix_space"] = false;
    json["model_max_length"] = config_.positions;
    return write_text("tokenizer_config.json", json.dump(2) + "\n");
  }

  Status write_text(const std::string& name, const std::string& text) {
    LLMOPS_ASSIGN(DurableFile file, DurableFile::create(dir_, name, static_cast<int64_t>(text.size())));
    LLMOPS_TRY(file.write(text));
    LLMOPS_TRY(file.commit().status());
    written_.push_back(name);
    return {};
  }

  const Checkpoint& checkpoint_;
  ModelConfig config_;
  Dir dir_;
  DType dtype_;
  const std::function<void(int64_t, int64_t)>& progress_;
  int64_t shard_bytes_max_;
  std::vector<HfTensor> hf_;
  std::vector<LogicalTensor> logical_;           // of hf_form()
  std::unordered_map<std::string, int> stored_;  // the checkpoint's tensors by name
  std::vector<size_t> shard_begin_;              // shard i holds hf_[shard_begin_[i], shard_begin_[i + 1])
  std::vector<std::byte> piece_;
  std::vector<std::string> written_;
  int64_t total_ = 0, done_ = 0;
  ExportReport report_;
};

}  // namespace

Result<ExportReport> export_hf(const Checkpoint& checkpoint, const std::string& out, DType dtype,
                               const std::function<void(int64_t, int64_t)>& progress, int64_t shard_bytes_max) {
  if (dtype != DType::f32 && dtype != DType::bf16)
    return usage_error(fmt::format("dtype {}: expected f32 or bf16", info(dtype).name));
  LLMOPS_ASSIGN(Dir dir, Dir::create(out));
  LLMOPS_ASSIGN(const std::vector<std::string> names, dir.list());
  if (!names.empty())
    return usage_error(fmt::format("{}: holds {} already; give a new or empty folder", out,
                                   names.size() == 1 ? "a file" : fmt::format("{} files", names.size())));
  return Exporter(checkpoint, std::move(dir), dtype, progress, shard_bytes_max).run();
}

}  // namespace llmops
