#include "train/batch.h"

namespace llmops {
namespace {

// i32, of all batches one after the other: tokens, positions, targets of a row; length and position of a sequence;
// and where a sequence begins in its batch, with the end of the last: a batch has at least one.
struct Places {
  int64_t tokens, positions, targets, len, pos0, begin, end;
};
Places places_of(int64_t sequences, int64_t seq) {
  const int64_t rows = sequences * seq;
  return {0, rows, 2 * rows, 3 * rows, 3 * rows + sequences, 3 * rows + 2 * sequences, 3 * rows + 4 * sequences};
}

}  // namespace

int64_t BatchFeed::bytes_of(int64_t sequences, int64_t seq) {
  return places_of(sequences, seq).end * int64_t{sizeof(int32_t)};
}

Result<BatchFeed> BatchFeed::make(Device& device, int64_t sequences, int64_t seq) {
  BatchFeed feed;
  feed.sequences_ = sequences;
  feed.seq_ = seq;
  feed.device_ = device.id();
  LLMOPS_ASSIGN(feed.memory_, device.alloc(bytes_of(sequences, seq), Category::staging));
  LLMOPS_ASSIGN(feed.host_, HostSide::of(device, feed.memory_));
  return feed;
}

ConstTensorView BatchFeed::view(int64_t begin, int64_t count) const {
  return dense_view(static_cast<const void*>(memory_.as<int32_t>() + begin), DType::i32, {count}, device_);
}

void BatchFeed::clear() {
  entries_.clear();
  rows_before_ = sequences_before_ = 0;
}

void BatchFeed::begin_batch() {
  if (!entries_.empty()) {
    rows_before_ += entries_.back().batch.n;
    sequences_before_ += entries_.back().batch.s;
  }
  entries_.emplace_back();
}

void BatchFeed::add(const Windows& windows, int64_t first, int64_t count) {
  Entry& entry = entries_.back();
  Batch& batch = entry.batch;
  const int64_t rows = rows_before_, sequences = sequences_before_;
  const Places at = places_of(sequences_, seq_);
  auto* const out = host_.as<int32_t>();
  int32_t* const begin = out + at.begin + sequences + std::ssize(entries_) - 1;
  begin[0] = 0;
  for (int64_t i = first; i < first + count; ++i) {
    const std::span<const int32_t> window = windows[i];
    const auto len = static_cast<int32_t>(window.size()) - 1;
    out[at.len + sequences + batch.s] = len;
    out[at.pos0 + sequences + batch.s] = 0;
    for (int32_t t = 0; t < len; ++t, ++batch.n) {
      const int64_t row = rows + batch.n;
      out[at.tokens + row] = window[t];
      out[at.targets + row] = window[t + 1];
      out[at.positions + row] = t;
    }
    begin[++batch.s] = static_cast<int32_t>(batch.n);
  }
  entry.part_begin.push_back(batch.n);
  batch = {.n = batch.n,
           .s = batch.s,
           .tokens = view(at.tokens + rows, batch.n),
           .positions = view(at.positions + rows, batch.n),
           .targets = view(at.targets + rows, batch.n),
           .q_begin = view(begin - out, batch.s + 1),
           .kv_begin = view(begin - out, batch.s),
           .kv_len = view(at.len + sequences, batch.s),
           .q_pos0 = view(at.pos0 + sequences, batch.s),
           .kv_pos0 = view(at.pos0 + sequences, batch.s),
           .kv_max = seq_};
}

void BatchFeed::push(Stream& stream) { host_.push(stream); }

}  // namespace llmops
