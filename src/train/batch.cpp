#include "train/batch.h"

namespace llmops {

Result<BatchBuffer> BatchBuffer::make(Device& device, int64_t sequences, int64_t seq) {
  BatchBuffer batch;
  batch.sequences_ = sequences;
  batch.seq_ = seq;
  batch.device_ = device.id();
  LLMOPS_ASSIGN(batch.memory_, device.alloc((3 * sequences * seq + 4 * sequences + 1) * 4, Category::staging));
  LLMOPS_ASSIGN(batch.host_, HostSide::of(device, batch.memory_));
  return batch;
}

BatchBuffer::Columns BatchBuffer::columns() const {
  const int64_t room = sequences_ * seq_;
  auto* tokens = host_.as<int32_t>();
  int32_t *begin = tokens + 3 * room, *len = begin + sequences_ + 1;
  return {tokens, tokens + room, tokens + 2 * room, begin, len, len + sequences_, len + 2 * sequences_};
}

void BatchBuffer::add(const Windows& windows, int64_t first, int64_t count) {
  const Columns to = columns();
  int64_t &n = batch_.n, &s = batch_.s;
  for (int64_t i = first; i < first + count; ++i, ++s) {
    const std::span<const int32_t> window = windows[i];
    to.begin[s] = static_cast<int32_t>(n);
    to.len[s] = static_cast<int32_t>(window.size()) - 1;
    to.q_pos0[s] = to.kv_pos0[s] = 0;
    for (int32_t t = 0; t < to.len[s]; ++t, ++n) {
      to.tokens[n] = window[t];
      to.targets[n] = window[t + 1];
      to.positions[n] = t;
    }
  }
  to.begin[s] = static_cast<int32_t>(n);
}

void BatchBuffer::push(Stream& stream) {
  host_.push(stream);
  const Columns at = columns();
  const auto view = [&](const int32_t* data, int64_t count) {
    const void* on_device = memory_.as<int32_t>() + (data - host_.as<int32_t>());
    return dense_view(on_device, DType::i32, {count}, device_);
  };
  const int64_t n = batch_.n, s = batch_.s;
  batch_ = {.n = n,
            .s = s,
            .tokens = view(at.tokens, n),
            .positions = view(at.positions, n),
            .targets = view(at.targets, n),
            .q_begin = view(at.begin, s + 1),
            .kv_begin = view(at.begin, s),
            .kv_len = view(at.len, s),
            .q_pos0 = view(at.q_pos0, s),
            .kv_pos0 = view(at.kv_pos0, s),
            .kv_max = seq_};
}

}  // namespace llmops
