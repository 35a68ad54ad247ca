// A Hugging Face directory as a source of logical tensors: one safetensors file or several with an index, in any of the
// spellings that model hubs hold (base models without the "transformer." or "model." prefix, causal-mask buffers, a
// copy of a tied head).
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "base/text.h"
#include "ckpt/convert.h"
#include "ckpt/safetensors.h"
#include "ckpt/source.h"
#include "ckpt/text_file.h"

namespace llmops {
namespace {

constexpr const char* kConfig = "config.json";
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr int64_t kJsonBytesMax = 100'000'000;
constexpr int64_t kPieceBytes = 4 << 20;
constexpr size_t kNamesShown = 4;

// Model hubs' caches keep links to their files.
Result<std::string> read_linked_text(const Dir& dir, const char* name) {
  LLMOPS_ASSIGN(const File file, dir.open_linked(name));
  return read_text(file, kJsonBytesMax);
}

// Values that follow from the config, saved as buffers by older releases of transformers.
bool is_buffer(Family family, std::string_view name) {
  if (family == Family::gpt2) return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  return name.ends_with(".rotary_emb.inv_freq");
}

std::string some_of(const std::vector<std::string>& names) {
  std::vector<std::string> shown;
  for (const std::string& name : names)
    if (shown.size() < kNamesShown) shown.push_back(escape_control(name.substr(0, 200)));
  const std::string more = names.size() > kNamesShown ? fmt::format(" and {} more", names.size() - kNamesShown) : "";
  return fmt::format("{}{}", fmt::join(shown, ", "), more);
}

// A tensor as a file stores it.
struct Stored {
  int file = -1;  // -1: not found
  SafeTensor tensor;
};

class HfSource : public TensorSource {
 public:
  static Result<std::unique_ptr<TensorSource>> open(const std::string& path) {
    auto source = std::make_unique<HfSource>();
    LLMOPS_ASSIGN(const Dir dir, Dir::open(path));
    if (Status status = source->load(dir); !status.ok()) {
      const bool named = status.message().starts_with(path);
      return named ? status : status.in(path);
    }
    return std::unique_ptr<TensorSource>(std::move(source));
  }

  bool has(StateKind kind) const override { return kind == StateKind::weight; }

  Status read(StateKind kind, int logical, const Box& box, DType to, void* out, int64_t row_stride) const override {
    if (kind != StateKind::weight)
      return invalid_error("a Hugging Face directory holds weights only, no optimizer state");
    const Part& part = parts_[logical];
    const Stored& stored = stored_[part.hf];
    Box wanted = box;
    if (!wanted.offset.empty()) wanted.offset[part.axis] += part.begin;
    const StoredRegion region{&files_[stored.file], *stored.tensor.dtype, stored.tensor.begin,
                              whole(stored.tensor.shape)};
    return read_region(region, wanted, to, out, row_stride);
  }

 private:
  // Where a logical tensor lies in HF's, which may be fused along `axis`.
  struct Part {
    int hf = 0, axis = 0;
    int64_t begin = 0;
  };

  Status load(const Dir& dir) {
    LLMOPS_TRY(read_config(dir));
    hf_ = hf_tensors(config_);
    stored_.resize(hf_.size());
    parts_.resize(tensors_.size());
    for (size_t i = 0; i < hf_.size(); ++i) {
      int64_t begin = 0;
      for (int logical : hf_[i].pieces) {
        parts_[logical] = {static_cast<int>(i), hf_[i].axis, begin};
        if (hf_[i].pieces.size() > 1) begin += tensors_[logical].shape[hf_[i].axis];
      }
      index_[hf_[i].name] = static_cast<int>(i);
    }
    LLMOPS_TRY(open_files(dir));
    LLMOPS_TRY(check_complete());
    return check_tied_head();
  }

  Status read_config(const Dir& dir) {
    if (!dir.exists(kConfig))
      return invalid_error(fmt::format("has no {}: expected a Hugging Face model directory", kConfig));
    LLMOPS_ASSIGN(const std::string text, read_linked_text(dir, kConfig));
    auto json = json_parse(text);
    if (!json.ok()) return json.status().in(kConfig);
    LLMOPS_ASSIGN(config_, model_config_from_hf(*json));
    tensors_ = logical_tensors(config_);
    return {};
  }

  // model.safetensors is taken first, as transformers does; else the files that the index names.
  Status open_files(const Dir& dir) {
    if (dir.exists(kSingle)) return add_file(dir, kSingle, nullptr);
    if (!dir.exists(kIndex))
      return invalid_error(
          fmt::format("has neither {} nor {}; other formats (pytorch_model.bin) are not read: save it again with "
                      "transformers' save_pretrained",
                      kSingle, kIndex));
    LLMOPS_ASSIGN(const std::string text, read_linked_text(dir, kIndex));
    auto json = json_parse(text);
    if (!json.ok()) return json.status().in(kIndex);
    const Json* map = json->find("weight_map");
    if (!map || !map->is_object()) return invalid_error(fmt::format("{}: has no weight_map", kIndex));
    std::map<std::string, std::set<std::string>> names_of;  // by file
    for (const auto& [tensor, file] : map->as_object()) {
      if (!file.is_string())
        return invalid_error(fmt::format("{}: the file of {} is no string", kIndex, escape_control(tensor)));
      names_of[file.as_string()].insert(tensor);
    }
    for (const auto& [file, names] : names_of) LLMOPS_TRY(add_file(dir, file, &names));
    return {};
  }

  // `expected`: the names that the index gives to this file.
  Status add_file(const Dir& dir, const std::string& name, const std::set<std::string>* expected) {
    LLMOPS_ASSIGN(File file, dir.open_linked(name));
    LLMOPS_ASSIGN(const SafeTensors header, read_safetensors_header(file));
    files_.push_back(std::move(file));
    if (expected) {
      std::set<std::string> found;
      for (const SafeTensor& tensor : header.tensors) found.insert(tensor.name);
      std::vector<std::string> absent;
      std::ranges::set_difference(*expected, found, std::back_inserter(absent));
      if (!absent.empty())
        return invalid_error(fmt::format("{}: tensors are missing that {} places there: {}", escape_control(name),
                                         kIndex, some_of(absent)));
    }
    for (const SafeTensor& tensor : header.tensors) LLMOPS_TRY(add_tensor(tensor));
    return {};
  }

  Status add_tensor(const SafeTensor& tensor) {
    const char* prefix = config_.family == Family::gpt2 ? "transformer." : "model.";
    auto it = index_.find(tensor.name);
    if (it == index_.end()) it = index_.find(prefix + tensor.name);
    const int file = static_cast<int>(files_.size()) - 1;
    if (it == index_.end()) {
      if (config_.tied_head && tensor.name == "lm_head.weight")
        head_ = {file, tensor};
      else if (!is_buffer(config_.family, tensor.name))
        unexpected_.push_back(tensor.name);
      return {};
    }
    Stored& stored = stored_[it->second];
    const std::string shown = escape_control(tensor.name);
    if (stored.file >= 0)
      return invalid_error(
          fmt::format("tensor {} is there twice (also as {})", shown, escape_control(stored.tensor.name)));
    const Shape& shape = hf_[it->second].shape;
    if (tensor.shape != shape)
      return invalid_error(fmt::format("tensor {} has shape [{}], {} means [{}]", shown, fmt::join(tensor.shape, ","),
                                       kConfig, fmt::join(shape, ",")));
    if (tensor.dtype != DType::f32 && tensor.dtype != DType::bf16 && tensor.dtype != DType::f16)
      return invalid_error(
          fmt::format("tensor {} is {}, this release reads F32, BF16 and F16", shown, tensor.type_name));
    stored = {file, tensor};
    return {};
  }

  Status check_complete() const {
    std::vector<std::string> missing;
    for (size_t i = 0; i < hf_.size(); ++i)
      if (stored_[i].file < 0) missing.push_back(hf_[i].name);
    if (!missing.empty()) return invalid_error("tensors of the model are missing: " + some_of(missing));
    if (!unexpected_.empty())
      return invalid_error(fmt::format("tensors that {} does not mean: {}", kConfig, some_of(unexpected_)));
    return {};
  }

  // A tied head may be stored as well, as a copy of the embedding.
  Status check_tied_head() const {
    if (head_.file < 0) return {};
    const Stored& table = stored_[0];  // the embedding is the first tensor of every family
    const auto differ = [&] {
      return invalid_error(
          fmt::format("lm_head.weight differs from {}, though {} ties them; set tie_word_embeddings to false there",
                      hf_[0].name, kConfig));
    };
    if (head_.tensor.dtype != table.tensor.dtype || head_.tensor.shape != table.tensor.shape) return differ();
    std::vector<std::byte> a, b;
    for (int64_t at = 0, bytes = table.tensor.end - table.tensor.begin; at < bytes; at += kPieceBytes) {
      a.resize(static_cast<size_t>(std::min(kPieceBytes, bytes - at)));
      b.resize(a.size());
      LLMOPS_TRY(files_[table.file].read_at(table.tensor.begin + at, a));
      LLMOPS_TRY(files_[head_.file].read_at(head_.tensor.begin + at, b));
      if (a != b) return differ();
    }
    return {};
  }

  std::vector<HfTensor> hf_;
  std::unordered_map<std::string, int> index_;  // of hf_ by name
  std::vector<Stored> stored_;                  // of each hf_
  std::vector<Part> parts_;                     // of each logical tensor
  std::vector<std::string> unexpected_;
  Stored head_;  // the copy of a tied head
  std::vector<File> files_;
};

}  // namespace

Result<std::unique_ptr<TensorSource>> open_hf(const std::string& dir) { return HfSource::open(dir); }

}  // namespace llmops
