#include "train/state.h"

#include <algorithm>
#include <bit>

#include "base/checked.h"
#include "kernels/ops.h"
#include "nn/fill.h"
#include "train/init.h"

namespace llmops {

Result<std::unique_ptr<TrainState>> TrainState::make(Device& device, Communicator& comm, const ModelConfig& config,
                                                     const Parallel& parallel, DType dtype, int passes) {
  auto state = std::make_unique<TrainState>();
  TrainState& s = *state;
  s.device_ = &device;
  s.config_ = config;
  s.parallel_ = parallel;
  s.dtype_ = dtype;
  s.rank_ = comm.rank();
  s.tensors_ = logical_tensors(config);
  s.groups_ = param_groups(config, parallel, comm.rank());
  for (const Group& group : s.groups_) {
    const int64_t size = slice_elems(group, parallel), begin = parallel.zero == 0 ? 0 : size * comm.rank();
    s.slices_.push_back({begin, begin + size, s.slice_total_});
    s.slice_total_ += size;
  }
  const int64_t elems = flat_elems(s.groups_), weight_bytes = elems * info(dtype).block_bytes;
  LLMOPS_ASSIGN(s.weight_buffer_, parallel.zero == 0 ? comm.alloc(weight_bytes, Category::weights)
                                                     : comm.alloc_common(weight_bytes, Category::weights));
  s.weights_ = FlatView(s.groups_, s.weight_buffer_.data(), dtype, device.id());
  const int levels = std::bit_width(static_cast<unsigned>(passes));  // log2 + 1
  for (int level = 0; level + 1 < levels; ++level) {
    LLMOPS_ASSIGN(Buffer buffer, device.alloc(elems * 4, Category::grads));
    s.grads_.push_back(FlatView(s.groups_, buffer.data(), DType::f32, device.id()));
    s.level_buffers_.push_back(std::move(buffer));
  }
  LLMOPS_ASSIGN(s.grad_buffer_, comm.alloc(elems * 4, Category::grads));
  s.grads_.push_back(FlatView(s.groups_, s.grad_buffer_.data(), DType::f32, device.id()));
  LLMOPS_ASSIGN(s.m_, device.alloc(s.slice_total_ * 4, Category::optim));
  LLMOPS_ASSIGN(s.v_, device.alloc(s.slice_total_ * 4, Category::optim));
  if (dtype != DType::f32) {
    LLMOPS_ASSIGN(s.master_, device.alloc(s.slice_total_ * 4, Category::optim));
  }
  return state;
}

float* TrainState::master() const { return master_.as<float>(); }

TensorView TrainState::moment(const Buffer& buffer, int group, int64_t begin, int64_t count) const {
  return dense_view(static_cast<void*>(buffer.as<float>() + slices_[group].at + begin), DType::f32, {count},
                    device_->id());
}

TensorView TrainState::param(int group, int64_t begin, int64_t count) const {
  return dtype_ == DType::f32 ? weights_.range(group, slices_[group].begin + begin, count)
                              : moment(master_, group, begin, count);
}

Status TrainState::init_weights(uint64_t seed) {
  constexpr int64_t kGrain = 1 << 15;
  DeviceFill fill(*device_);
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int group = static_cast<int>(g);
    const Slice own = slices_[group];
    std::vector<DeviceFill::Part> parts;
    for (const StoredBox& stored : stored_boxes(groups_[g], own.begin, own.end)) {
      const LogicalTensor& tensor = tensors_[stored.logical];
      const int64_t width = tensor.shape.back(), count = stored.box.extent.back(), stride = stored.row_stride;
      const int64_t row_count = elems_of(stored.box.extent) / count;
      const int64_t first_row = stored.box.offset.size() > 1 ? stored.box.offset[0] : 0,
                    column = stored.box.offset.back();
      const int64_t rows_per_part = std::max<int64_t>(1, kGrain / count);
      for (int64_t begin = 0; begin < row_count; begin += rows_per_part) {
        const int64_t rows = std::min(rows_per_part, row_count - begin);
        const int64_t at = stored.offset - own.begin + begin * stride;
        const int64_t first = (first_row + begin) * width + column;
        parts.push_back({at * int64_t{sizeof(float)}, [=, &tensor](void* out) {
                           for (int64_t row = 0; row < rows; ++row)
                             initial_values(tensor, seed, first + row * width, count,
                                            static_cast<float*>(out) + row * stride);
                           return Status();
                         }});
      }
    }
    LLMOPS_TRY(fill.add(param(group, 0, own.size()).data, own.size() * int64_t{sizeof(float)}, std::move(parts)));
  }
  LLMOPS_TRY(fill.flush());
  return publish_weights(device_->compute());
}

Status TrainState::publish_weights(Stream& stream) const {
  if (dtype_ == DType::f32) return {};
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int group = static_cast<int>(g);
    const Slice own = slices_[group];
    LLMOPS_TRY(cast(stream, {.x = param(group, 0, own.size()), .out = weights_.range(group, own.begin, own.size())}));
  }
  return stream.sync();
}

}  // namespace llmops
