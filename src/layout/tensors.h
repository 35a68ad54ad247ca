// Logical tensors: what a model consists of whatever the parallel layout. Names and orientation are those of HF files, unfused
// and unpadded; where HF fuses, a piece is "<hf name>#q", "#k", "#v" (GPT-2's c_attn).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layout/model_config.h"

namespace llmops {

using Shape = std::vector<int64_t>;
int64_t elems_of(const Shape& shape);

enum class Init : uint8_t { zeros, ones, normal };

struct LogicalTensor {
  std::string name;
  Shape shape;
  Init init = Init::normal;
  double std = 0;      // Init::normal only
  bool decay = false;  // weight decay applies: matrices, embeddings included
};

// In the order of the model: embeddings, blocks, final norm, head. A tied head has no tensor of its own.
std::vector<LogicalTensor> logical_tensors(const ModelConfig& config);
int64_t parameter_count(const ModelConfig& config);

// The HF file's tensors, with the pieces each is made of along `axis` (one piece: the same tensor).
struct HfTensor {
  std::string name;
  Shape shape;
  int axis = 0;
  std::vector<int> pieces;  // indexes into logical_tensors()
};
std::vector<HfTensor> hf_tensors(const ModelConfig& config);

// A region of a logical tensor.
struct Box {
  Shape offset, extent;
  friend bool operator==(const Box&, const Box&) = default;
};
Box whole(const Shape& shape);
// The boxes that cover elements [begin, end) of a dense row-major tensor, in order; at most 2 * rank - 1 of them.
std::vector<Box> boxes_of_range(const Shape& shape, int64_t begin, int64_t end);

}  // namespace llmops
