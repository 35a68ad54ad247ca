#include "nn/flat.h"

namespace llmops {

int64_t flat_elems(const std::vector<Group>& groups) {
  int64_t n = 0;
  for (const Group& group : groups) n += group.elems;
  return n;
}

FlatView::FlatView(const std::vector<Group>& groups, void* data, DType dtype, DeviceId device)
    : groups_(&groups), data_(data), dtype_(dtype), device_(device) {
  offset_.push_back(0);
  for (const Group& group : groups) offset_.push_back(offset_.back() + group.elems);
}

void* FlatView::at_element(int64_t element) const {
  return static_cast<char*>(data_) + element * info(dtype_).block_bytes;
}

TensorView FlatView::at(int group, Role role) const {
  const Param* param = (*groups_)[group].find(role);
  if (!param) return {};
  void* data = at_element(offset_[group] + param->offset);
  return param->shape.size() == 1 ? dense_view(data, dtype_, {param->shape[0]}, device_)
                                  : dense_view(data, dtype_, {param->shape[0], param->shape[1]}, device_);
}

TensorView FlatView::range(int group, int64_t begin, int64_t count) const {
  return dense_view(at_element(offset_[group] + begin), dtype_, {count}, device_);
}

TensorView FlatView::all() const { return dense_view(data_, dtype_, {offset_.back()}, device_); }

}  // namespace llmops
