// Views of the flat groups: the same layout serves weights, gradients, moments and master weights.
#pragma once

#include <vector>

#include "kernels/tensor.h"
#include "layout/params.h"

namespace llmops {

class FlatView {
 public:
  FlatView() = default;
  FlatView(const std::vector<Group>& groups, void* data, DType dtype, DeviceId device);

  // The parameter of a group as a dense tensor; absent when the model has none in that role.
  TensorView at(int group, Role role) const;
  // Elements [begin, begin + count) of a group as a vector.
  TensorView range(int group, int64_t begin, int64_t count) const;
  TensorView all() const;  // every group, padding included
  int64_t group_offset(int group) const { return offset_[group]; }  // elements
  DType dtype() const { return dtype_; }
  bool present() const { return data_ != nullptr; }

 private:
  void* at_element(int64_t element) const;
  const std::vector<Group>* groups_ = nullptr;
  std::vector<int64_t> offset_;  // elements, one more than groups
  void* data_ = nullptr;
  DType dtype_ = DType::f32;
  DeviceId device_;
};

int64_t flat_elems(const std::vector<Group>& groups);

}  // namespace llmops
