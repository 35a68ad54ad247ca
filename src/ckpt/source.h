// Where weights come from: a native step folder or a Hugging Face directory, read by regions of logical tensors.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/pool.h"
#include "layout/tensors.h"

namespace llmops {

enum class StateKind : uint8_t { weight, m, v };  // m, v: AdamW's moments, "optim.m:<name>" and "optim.v:<name>"
std::string state_name(StateKind kind, const std::string& tensor);

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  const ModelConfig& config() const { return config_; }
  const std::vector<LogicalTensor>& tensors() const { return tensors_; }  // logical_tensors(config())
  virtual bool has(StateKind kind) const = 0;
  // The box of a logical tensor as `to` (f32 or bf16; rounded to nearest even), its rows row_stride elements apart (the
  // last axis is contiguous). Safe from several threads.
  virtual Status read(StateKind kind, int logical, const Box& box, DType to, void* out, int64_t row_stride) const = 0;

 protected:
  ModelConfig config_;
  std::vector<LogicalTensor> tensors_;
};

// A directory with config.json and model.safetensors, or shards with model.safetensors.index.json. Missing, unexpected
// and misshaped tensors are Code::invalid and named.
Result<std::unique_ptr<TensorSource>> open_hf(const std::string& dir);
// The folder that holds the weights a user means by `path`: a step folder or a Hugging Face directory as it is, of a
// run folder its newest valid step. Notes say which newer steps were skipped. Code::invalid when it is none of the
// three.
struct WeightsFolder {
  std::string path;
  bool is_step = false;
  std::vector<std::string> notes;
};
Result<WeightsFolder> find_weights(const std::string& path, Pool& pool);
// A step folder if manifest.json is in it, else a Hugging Face directory.
Result<std::unique_ptr<TensorSource>> open_weights(const std::string& dir);

}  // namespace llmops
