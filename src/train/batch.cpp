#include "train/batch.h"

namespace llmops {

Result<BatchBuffer> BatchBuffer::make(Device& device, int64_t sequences, int64_t seq) {
  BatchBuffer batch;
  batch.sequences_ = sequences;
  batch.seq_ = seq;
  batch.device_ = device.id();
  // tokens, positions, targets [n]; q_begin [s+1]; kv_len, q_pos0, kv_pos0 [s]
  LLMOPS_ASSIGN(batch.memory_, device.alloc((3 * sequences * seq + 4 * sequences + 1) * 4, Category::staging));
  LLMOPS_ASSIGN(batch.host_, HostSide::of(device, batch.memory_));
  return batch;
}

void BatchBuffer::fill(Stream& stream, const Windows& windows, int64_t first, int64_t s) {
  const int64_t room = sequences_ * seq_;
  auto* tokens = host_.as<int32_t>();
  int32_t *positions = tokens + room, *targets = positions + room, *begin = targets + room,
          *len = begin + sequences_ + 1;
  int32_t *q_pos0 = len + sequences_, *kv_pos0 = q_pos0 + sequences_;
  int64_t n = 0;
  for (int64_t i = 0; i < s; ++i) {
    const std::span<const int32_t> window = windows[first + i];
    begin[i] = static_cast<int32_t>(n);
    len[i] = static_cast<int32_t>(window.size()) - 1;
    q_pos0[i] = kv_pos0[i] = 0;
    for (int32_t t = 0; t < len[i]; ++t, ++n) {
      tokens[n] = window[t];
      targets[n] = window[t + 1];
      positions[n] = t;
    }
  }
  begin[s] = static_cast<int32_t>(n);
  host_.push(stream);
  const auto view = [&](const int32_t* data, int64_t count) {
    const void* on_device = memory_.as<int32_t>() + (data - host_.as<int32_t>());
    return dense_view(on_device, DType::i32, {count}, device_);
  };
  batch_ = {.n = n,
            .s = s,
            .tokens = view(tokens, n),
            .positions = view(positions, n),
            .targets = view(targets, n),
            .q_begin = view(begin, s + 1),
            .kv_begin = view(begin, s),
            .kv_len = view(len, s),
            .q_pos0 = view(q_pos0, s),
            .kv_pos0 = view(kv_pos0, s),
            .kv_max = seq_};
}

}  // namespace llmops
