#include "train/persist.h"

namespace llmops {
namespace {

constexpr StateKind kKinds[] = {StateKind::weight, StateKind::m, StateKind::v};

float* base_of(const TrainState& state, StateKind kind, int group) {
  const int64_t count = state.slice(group).size();
  const TensorView view =
      kind == StateKind::weight
          ? state.param(group, 0, count)
          : state.moment(kind == StateKind::m ? state.m_buffer() : state.v_buffer(), group, 0, count);
  return static_cast<float*>(view.data);
}

}  // namespace

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
  struct Read {
    StateKind kind;
    StoredBox stored;
    float* out;
  };
  std::vector<Read> reads;
  for (StateKind kind : kKinds) {
    if (kind != StateKind::weight && !with_moments) continue;
    for (size_t g = 0; g < state.groups().size(); ++g) {
      const int group = static_cast<int>(g);
      const TrainState::Slice own = state.slice(group);
      for (StoredBox& stored : stored_boxes(state.groups()[g], own.begin, own.end)) {
        float* out = base_of(state, kind, group) + stored.offset - own.begin;
        reads.push_back({kind, std::move(stored), out});
      }
    }
  }
  std::vector<Status> results(reads.size());
  device.pool().parallel_for(static_cast<int64_t>(reads.size()), [&](int64_t i, int) {
    const Read& r = reads[i];
    results[i] = source.read(r.kind, r.stored.logical, r.stored.box, DType::f32, r.out, r.stored.row_stride);
  });
  for (const Status& status : results) LLMOPS_TRY(status);
  return state.publish_weights(device.compute());
}

}  // namespace llmops
