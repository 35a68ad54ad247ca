// What a rank holds of a model in training: weights, gradients, optimizer state, in the flat layout.
#pragma once

#include <memory>
#include <vector>

#include "comm/comm.h"
#include "kernels/runtime.h"
#include "layout/params.h"
#include "nn/flat.h"

namespace llmops {

class TrainState {
 public:
  // dtype: that of weights and activations, f32 or bf16. Zero-filled; `passes` (train/step.h) > 1 add the buffers of the
  // fold tree.
  static Result<std::unique_ptr<TrainState>> make(Device& device, Communicator& comm, const ModelConfig& config,
                                                  const Parallel& parallel, DType dtype, int passes);

  const ModelConfig& config() const { return config_; }
  const Parallel& parallel() const { return parallel_; }
  const std::vector<Group>& groups() const { return groups_; }
  const std::vector<LogicalTensor>& tensors() const { return tensors_; }
  DType dtype() const { return dtype_; }
  int rank() const { return rank_; }

  FlatView weights() const { return weights_; }  // compute dtype; one memory for all ranks with ZeRO
  // Level i of the fold tree over my passes; the last one is the gradient that is reduced over ranks.
  FlatView grads(int level) const { return grads_[level]; }
  int levels() const { return static_cast<int>(grads_.size()); }
  const SharedBuffer& grad_buffer() const { return grad_buffer_; }
  const SharedBuffer& weight_buffer() const { return weight_buffer_; }

  // My slice of a group: elements [begin, end) of it; moments and master weights exist for it alone.
  struct Slice {
    int64_t begin, end;
    int64_t at;  // where it starts in the slice-sized buffers
    int64_t size() const { return end - begin; }
  };
  Slice slice(int group) const { return slices_[group]; }
  int64_t slice_total() const { return slice_total_; }
  float* master()
      const;  // f32 weights of my slices; with f32 compute the weights themselves are the master: see param()
  float* m() const { return m_.as<float>(); }
  float* v() const { return v_.as<float>(); }
  // f32 parameters of elements [begin, begin + count) of my slice of a group.
  TensorView param(int group, int64_t begin, int64_t count) const;
  TensorView moment(const Buffer& buffer, int group, int64_t begin, int64_t count) const;
  const Buffer& m_buffer() const { return m_; }
  const Buffer& v_buffer() const { return v_; }

  // Fills my part of the weights; all ranks call it, then barrier. Pure in (seed, tensor, element).
  Status init_weights(uint64_t seed);
  // bf16: rounds my slices of the master weights into the weights that everybody reads.
  Status publish_weights(Stream& stream) const;

 private:
  Device* device_ = nullptr;
  ModelConfig config_;
  Parallel parallel_;
  DType dtype_ = DType::f32;
  int rank_ = 0;
  std::vector<LogicalTensor> tensors_;
  std::vector<Group> groups_;
  std::vector<Slice> slices_;
  int64_t slice_total_ = 0;
  SharedBuffer weight_buffer_, grad_buffer_;
  std::vector<Buffer> level_buffers_;
  FlatView weights_;
  std::vector<FlatView> grads_;
  Buffer m_, v_, master_;
};

}  // namespace llmops
