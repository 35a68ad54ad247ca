#include "train/persist.h"

#include "nn/fill.h"

namespace llmops {
namespace {

constexpr StateKind kKinds[] = {StateKind::weight, StateKind::m, StateKind::v};

// Of my slice of a group, on the device.
float* base_of(const TrainState& state, StateKind kind, int group) {
  const int64_t count = state.slice(group).size();
  const TensorView view =
      kind == StateKind::weight
          ? state.param(group, 0, count)
          : state.moment(kind == StateKind::m ? state.m_buffer() : state.v_buffer(), group, 0, count);
  return static_cast<float*>(view.data);
}

// The copies go through the device's compute stream: a save comes between two steps, and the next update must not overtake
// it.
class PinnedStaging final : public Staging {
 public:
  explicit PinnedStaging(Device& device) : device_(device) {}
  Result<char*> reserve(int64_t bytes) override {
    if (bytes > memory_.bytes()) {
      memory_ = Buffer();
      LLMOPS_ASSIGN(memory_, device_.alloc_host(bytes));
    }
    return memory_.as<char>();
  }
  void copy_rows(char* to, const void* from, int64_t from_pitch, int64_t row_bytes, int64_t rows) override {
    device_.compute().copy_rows(to, row_bytes, from, from_pitch, row_bytes, rows);
  }
  Status finish() override { return device_.compute().sync(); }
  int64_t bytes() const override { return memory_.bytes(); }

 private:
  Device& device_;
  Buffer memory_;
};

}  // namespace

std::unique_ptr<Staging> staging_of(Device& device) {
  if (device.kind() == DeviceKind::cpu) return std::make_unique<Staging>();
  return std::make_unique<PinnedStaging>(device);
}

std::vector<Chunk> chunks_of(const TrainState& state) {
  std::vector<Chunk> chunks;
  for (StateKind kind : kKinds)
    for (size_t g = 0; g < state.groups().size(); ++g) {
      const int group = static_cast<int>(g);
      const Group& params = state.groups()[g];
      // Without ZeRO every rank holds all of it; each writes its share.
      const int64_t share = params.elems / state.parallel().dp, begin = share * state.rank();
      const float* base = base_of(state, kind, group) - state.slice(group).begin;
      for (StoredBox& stored : stored_boxes(params, begin, begin + share)) {
        const LogicalTensor& tensor = state.tensors()[stored.logical];
        chunks.push_back({state_name(kind, tensor.name), tensor.shape, std::move(stored.box), DType::f32,
                          base + stored.offset, stored.row_stride});
      }
    }
  return chunks;
}

Status restore(TrainState& state, const TensorSource& source, bool with_moments, Device& device) {
  DeviceFill fill(device);
  for (StateKind kind : kKinds) {
    if (kind != StateKind::weight && !with_moments) continue;
    for (size_t g = 0; g < state.groups().size(); ++g) {
      const int group = static_cast<int>(g);
      const TrainState::Slice own = state.slice(group);
      std::vector<DeviceFill::Part> parts;
      for (StoredBox& stored : stored_boxes(state.groups()[g], own.begin, own.end)) {
        const int64_t at = (stored.offset - own.begin) * int64_t{sizeof(float)};
        parts.push_back({at, [&source, kind, stored = std::move(stored)](void* out) {
                           return source.read(kind, stored.logical, stored.box, DType::f32, out, stored.row_stride);
                         }});
      }
      LLMOPS_TRY(fill.add(base_of(state, kind, group), own.size() * int64_t{sizeof(float)}, std::move(parts)));
    }
  }
  LLMOPS_TRY(fill.flush());
  return state.publish_weights(device.compute());
}

}  // namespace llmops
