// A native step folder: shard-%05d.safetensors, the tokenizer's files, and manifest.json, which names and hashes them
// all.
#pragma once

#include "base/hash.h"
#include "base/json.h"
#include "ckpt/source.h"

namespace llmops {

struct StoredFile {
  std::string name;  // a plain file name
  std::string content;
};

struct TensorSummary {
  std::string name;  // "transformer.wte.weight", "optim.m:transformer.wte.weight"
  DType dtype;
  Shape shape;
  Hash128 digest;  // does not depend on how the tensor is cut
  int64_t chunks = 0, bytes = 0;
};

class Checkpoint : public TensorSource {
 public:
  // Checks the manifest (its own hash, structure) and the sizes of the files, not their content: that is verify(). A
  // folder without a manifest is Code::invalid.
  static Result<std::unique_ptr<Checkpoint>> open(const std::string& step_dir);
  virtual int64_t step() const = 0;
  virtual const Json& meta() const = 0;  // what train gave when it saved
  virtual Result<std::vector<StoredFile>> files() const = 0;
  virtual std::vector<TensorSummary> summaries() const = 0;
  virtual int64_t bytes() const = 0;  // of all shards
};

}  // namespace llmops
