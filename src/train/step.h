// One optimizer step: forward and backward of my shards of the batch, reduction, norm, finite check, AdamW on my
// slices.
//
// The gradient of a batch is a balanced binary tree over S virtual shards: a rank folds the subtree of its own shards,
// the ranks fold the rest, so bits depend on S and not on how many ranks share the work. A pass is one shard, in one or
// more micro-batches, or several small shards in one batch, whose gradients nn/parts.h folds. The norm is the square root of
// the sums of the groups' blocks of 4096 elements, ascending in f64. Nothing is changed when a loss or a gradient is
// not finite.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "comm/comm.h"
#include "train/batch.h"
#include "train/state.h"

namespace llmops {

struct AdamwOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  double clip = 1.0;  // <= 0: none
};

// What every rank tells the others with the scalars of a step; the largest value of any rank counts.
enum class Flag : uint8_t { cancel_signal, time_up, save_failed, report_failed, kCount };
using Flags = std::array<double, static_cast<size_t>(Flag::kCount)>;

struct StepResult {
  double loss = 0;       // mean over the batch's tokens
  double grad_norm = 0;  // before clipping
  bool finite = true;
  int bad_shard = -1;      // first virtual shard whose loss is not finite
  int64_t bad_block = -1;  // first block of 4096 gradient elements that is not finite, over all groups
  Flags flags{};
  double comm_s = 0;  // exposed: waiting for peers, copying and folding
};

class Trainer {
 public:
  struct Shape {
    int64_t micro_batch;      // windows per forward and backward
    int64_t seq;              // tokens of a window
    int64_t windows;          // of my shards in a step
    int shards_at_once = 1;   // of a pass, a power of two; more than 1 only where a micro-batch holds them all, in at
                              // most kHeadRows tokens
  };
  static Result<std::unique_ptr<Trainer>> make(Device& device, Communicator& comm, TrainState& state,
                                               const Shape& shape);
  ~Trainer();

  // windows[i]: the windows of my i-th shard, each of at most seq + 1 tokens. valid_tokens: targets of the whole batch,
  // all ranks. step counts from 1 (AdamW's bias correction).
  Result<StepResult> step(const std::vector<Windows>& windows, int64_t valid_tokens, int64_t step, double lr,
                          const AdamwOptions& options, const Flags& flags);
  // All ranks' slices of the weights into everybody's own; after initial or restored weights, of which a rank has its part.
  Status gather_weights();
  // Sum of token losses of my windows (validation), all ranks together; tokens: of all ranks.
  Result<double> loss_sum(const Windows& windows);
  // The name of the tensor that holds a block of gradient elements (StepResult::bad_block).
  std::string tensor_of_block(int64_t block) const;
  // The first rank whose own gradient, before the reduction, has an element that is not finite; -1: none found.
  Result<int> rank_of_bad_gradient();

 private:
  Trainer(Device& device, Communicator& comm, TrainState& state, const Shape& shape)
      : device_(device), comm_(comm), state_(state), shape_(shape) {}
  Status forward(const BlockCtx& ctx, const Batch& batch);
  Status backward(const BlockCtx& ctx, const Batch& batch, float scale);
  Status batch_loss(const BlockCtx& ctx, const Batch& batch);
  void clear_scalars(const Flags& flags);
  Status make_parts(int count);
  void feed_step(const std::vector<Windows>& windows);
  Status pass_gradient(int pass, int passes, float scale);
  Status micro_batch_gradient(const BlockCtx& ctx, const BatchFeed::Entry& entry, int first_shard, float scale);
  Status group_ready(int group, int level, bool last);
  Status reduce_rest();
  Status reduce_scalars();
  Status gather_slices();
  Status update(int64_t step, double lr, const AdamwOptions& options);
  BlockCtx context(FlatView grads, bool accumulate) const;

  Device& device_;
  Communicator& comm_;
  TrainState& state_;
  Shape shape_;
  GradParts parts_;  // of a pass of several shards
  std::vector<Buffer> part_buffers_;
  std::vector<Slot> slots_;  // one per block
  Slot head_, scratch_;
  BatchFeed feed_;
  std::vector<int64_t> pass_begin_;  // in feed_; one more than passes
  Buffer cos_sin_, control_, loss_sum_;
  SharedBuffer scalars_;  // f64: losses of all shards, square sums of all blocks, flags
  HostSide host_control_, host_loss_sum_, host_scalars_;
  int shards_ = 1;
  int64_t blocks_ = 0;
  std::unique_ptr<GradientExchange> exchange_;  // null with one rank or zero = 0
  std::vector<int> posted_;                     // groups posted and not yet folded
};

}  // namespace llmops
