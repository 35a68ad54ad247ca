// A model and its tokenizer from whatever --ckpt names.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "infer/model.h"

namespace llmops {

struct LoadedModel {
  std::unique_ptr<InferModel> model;
  std::optional<Tokenizer> own_tokenizer;
  std::string name;                // for records: the last part of the path
  std::vector<std::string> notes;  // steps that were skipped and why
  const Tokenizer* tokenizer() const { return own_tokenizer ? &*own_tokenizer : nullptr; }
};

// path: a step folder, a run folder (newest valid step) or a Hugging Face directory. tokenizer: "" takes the model's
// own: of the manifest, or vocab.json + merges.txt or tokenizer.json of a Hugging Face directory (none there: only
// token ids work).
Result<LoadedModel> load_model(Device& device, const std::string& path, const std::string& tokenizer, DType dtype);

}  // namespace llmops
