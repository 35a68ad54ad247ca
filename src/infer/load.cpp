#include "infer/load.h"

#include "base/io.h"
#include "ckpt/checkpoint.h"
#include "ckpt/source.h"

namespace llmops {
namespace {

Result<std::optional<Tokenizer>> stored_tokenizer(const Checkpoint& checkpoint) {
  const Json* json = checkpoint.meta().find("tokenizer");
  if (!json || json->is_null()) return std::optional<Tokenizer>();
  LLMOPS_ASSIGN(const std::vector<StoredFile> stored, checkpoint.files());
  std::vector<NamedFile> files;
  for (const StoredFile& file : stored) files.push_back({file.name, file.content});
  LLMOPS_ASSIGN(Tokenizer tokenizer, Tokenizer::from_json(*json, files));
  return std::optional<Tokenizer>(std::move(tokenizer));
}

Result<std::optional<Tokenizer>> folder_tokenizer(const std::string& path, std::vector<std::string>* notes) {
  LLMOPS_ASSIGN(const Dir dir, Dir::open(path));
  if (!dir.exists("tokenizer.json") && !dir.exists("vocab.json")) {
    if (dir.exists("tokenizer.model"))
      notes->push_back(path + ": its tokenizer is of another kind (SentencePiece, tokenizer.model), which is not read");
    return std::optional<Tokenizer>();
  }
  LLMOPS_ASSIGN(Tokenizer tokenizer, Tokenizer::load(path));
  return std::optional<Tokenizer>(std::move(tokenizer));
}

}  // namespace

Result<LoadedModel> load_model(Device& device, const std::string& path, const std::string& tokenizer, DType dtype) {
  LoadedModel loaded;
  std::string name = path;
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  loaded.name = name.substr(name.rfind('/') + 1);
  LLMOPS_ASSIGN(WeightsFolder weights, find_weights(path, device.pool()));
  loaded.notes = std::move(weights.notes);
  const std::string& folder = weights.path;
  std::unique_ptr<TensorSource> source;
  if (!weights.is_step) {
    LLMOPS_ASSIGN(source, open_hf(folder));
    if (tokenizer.empty()) {
      LLMOPS_ASSIGN(loaded.own_tokenizer, folder_tokenizer(folder, &loaded.notes));
    }
  } else {
    LLMOPS_ASSIGN(std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(folder));
    if (tokenizer.empty()) {
      LLMOPS_ASSIGN(loaded.own_tokenizer, stored_tokenizer(*checkpoint));
    }
    source = std::move(checkpoint);
  }
  if (!tokenizer.empty()) {
    LLMOPS_ASSIGN(loaded.own_tokenizer, Tokenizer::load(tokenizer));
  }
  LLMOPS_ASSIGN(loaded.model, InferModel::load(device, *source, dtype));
  return loaded;
}

}  // namespace llmops
