// What a rank stores: parameters in flat groups (one per block, plus embedding and head). Nobody else does shard
// arithmetic.
//
// Gradients, moments and master weights mirror the same flat layout, so a reduction bucket, a ZeRO slice, an AdamW
// range, a norm and a snapshot are each one range of a group. Within a group matrices (decayed) come first, then
// vectors, so AdamW needs two ranges.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layout/tensors.h"

namespace llmops {

// Degrees of parallelism. This release trains with dp and zero 0/1; a larger tp, pp, cp or ep is refused by check().
struct Parallel {
  int dp = 1, tp = 1, pp = 1, cp = 1, ep = 1, etp = 1, vpp = 1;
  int zero = 1;
  bool sp = false;
  int shards = 0;  // virtual shards of a batch's gradient; 0: dp
  friend bool operator==(const Parallel&, const Parallel&) = default;
};
Status check(const Parallel& parallel, int world);

// Where a rank stands; order fastest first: tp, cp, dp, pp.
struct MeshPlace {
  int tp = 0, cp = 0, dp = 0, pp = 0;
};
MeshPlace mesh_place(const Parallel& parallel, int rank);

// The part that a stored parameter plays in its block; nn looks parameters up by it.
enum class Role : uint8_t {
  token_table,
  position_table,  // embedding
  norm1,
  norm1_bias,
  qkv,
  qkv_bias,
  q_norm,
  k_norm,
  attn_out,
  attn_out_bias,  // block
  norm2,
  norm2_bias,
  mlp_up,
  mlp_up_bias,
  mlp_down,
  mlp_down_bias,
  final_norm,
  final_norm_bias,
  head,  // head
  kCount
};

struct Piece {
  int logical = 0;  // index into logical_tensors()
  Box box;          // the region of it that is stored
  Shape at;         // where in the parameter it is placed
};

struct Param {
  Role role;
  Shape shape;
  bool decay = false;
  int64_t offset = 0;  // elements from the start of the group; a multiple of 16
  std::vector<Piece> pieces;
};

struct Group {
  std::string name;  // "embed", "block 0", "head"
  std::vector<Param> params;
  int64_t elems = 0;                   // padded to a multiple of 4096 * dp
  int64_t decay_elems = 0;             // [0, decay_elems) is decayed, the rest is not
  const Param* find(Role role) const;  // nullptr when the model has no such parameter
};

constexpr int64_t kGroupBlock = 4096;

std::vector<Group> param_groups(const ModelConfig& config, const Parallel& parallel, int rank);
// Elements of one rank's ZeRO slice of a group: [slice * rank, slice * (rank + 1)).
int64_t slice_elems(const Group& group, const Parallel& parallel);

// What of a logical tensor lies in elements [begin, end) of a group: strided regions, for checkpoints.
struct StoredBox {
  int logical = 0;
  Box box;                 // region of the logical tensor
  int64_t offset = 0;      // first element, from the start of the group
  int64_t row_stride = 0;  // elements between rows of the box (its last axis is contiguous)
};
std::vector<StoredBox> stored_boxes(const Group& group, int64_t begin, int64_t end);

}  // namespace llmops
