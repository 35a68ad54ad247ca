#include "infer/load.h"

#include <fmt/format.h>

#include "ckpt/checkpoint.h"
#include "ckpt/steps.h"

namespace llmops {
namespace {

enum class Kind : uint8_t { step, run, hugging_face };

Result<Kind> kind_of(const std::string& path) {
  LLMOPS_ASSIGN(const Dir dir, Dir::open(path));
  if (dir.exists("manifest.json")) return Kind::step;
  if (dir.exists("config.json")) return Kind::hugging_face;
  LLMOPS_ASSIGN(const std::vector<StepDir> steps, list_steps(path));
  if (!steps.empty()) return Kind::run;
  return invalid_error(path +
                       ": is no model: neither manifest.json (a step), step-%08d folders (a run) nor config.json "
                       "(Hugging Face) are in it");
}

Result<std::optional<Tokenizer>> stored_tokenizer(const Checkpoint& checkpoint) {
  const Json* json = checkpoint.meta().find("tokenizer");
  if (!json || json->is_null()) return std::optional<Tokenizer>();
  LLMOPS_ASSIGN(const std::vector<StoredFile> stored, checkpoint.files());
  std::vector<NamedFile> files;
  for (const StoredFile& file : stored) files.push_back({file.name, file.content});
  LLMOPS_ASSIGN(Tokenizer tokenizer, Tokenizer::from_json(*json, files));
  return std::optional<Tokenizer>(std::move(tokenizer));
}

Result<std::optional<Tokenizer>> folder_tokenizer(const std::string& path) {
  LLMOPS_ASSIGN(const Dir dir, Dir::open(path));
  if (!dir.exists("tokenizer.json") && !dir.exists("vocab.json")) return std::optional<Tokenizer>();
  LLMOPS_ASSIGN(Tokenizer tokenizer, Tokenizer::load(path));
  return std::optional<Tokenizer>(std::move(tokenizer));
}

}  // namespace

Result<LoadedModel> load_model(Device& device, const std::string& path, const std::string& tokenizer, DType dtype) {
  LoadedModel loaded;
  LLMOPS_ASSIGN(const Kind kind, kind_of(path));
  std::string folder = path;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  loaded.name = folder.substr(folder.rfind('/') + 1);
  if (kind == Kind::run) {
    LLMOPS_ASSIGN(NewestValid newest, newest_valid(folder, device.pool()));
    for (std::string& why : newest.skipped) loaded.notes.push_back("skipped " + std::move(why));
    if (!newest.step)
      return invalid_error(
          fmt::format("{}: none of its steps is valid: {}", path, loaded.notes.empty() ? "" : loaded.notes.front()));
    folder = newest.step->path;
  }
  std::unique_ptr<TensorSource> source;
  if (kind == Kind::hugging_face) {
    LLMOPS_ASSIGN(source, open_hf(folder));
    if (tokenizer.empty()) {
      LLMOPS_ASSIGN(loaded.own_tokenizer, folder_tokenizer(folder));
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
