#include "infer/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernels/ops.h"
#include "nn/fill.h"

namespace llmops {
namespace {

// Offsets into the one buffer of i32 that describes a batch.
struct IntLayout {
  int64_t rows, slots;
  int64_t tokens() const { return 0; }
  int64_t positions() const { return rows; }
  int64_t kv_rows() const { return 2 * rows; }
  int64_t q_begin() const { return 3 * rows; }
  int64_t kv_begin() const { return q_begin() + slots + 1; }
  int64_t kv_len() const { return kv_begin() + slots; }
  int64_t q_pos0() const { return kv_len() + slots; }
  int64_t kv_pos0() const { return q_pos0() + slots; }
  int64_t wanted() const { return kv_pos0() + slots; }
  int64_t total() const { return wanted() + slots; }
};

}  // namespace

Result<std::unique_ptr<InferModel>> InferModel::load(Device& device, const TensorSource& source, DType dtype) {
  std::unique_ptr<InferModel> model(new InferModel(device, source.config(), dtype));
  InferModel& m = *model;
  m.groups_ = param_groups(m.config_, Parallel{}, 0);
  const int64_t size = info(dtype).block_bytes;
  LLMOPS_ASSIGN(m.weights_, device.alloc(flat_elems(m.groups_) * size, Category::weights));
  const FlatView view(m.groups_, m.weights_.data(), dtype, device.id());
  DeviceFill fill(device);
  for (size_t g = 0; g < m.groups_.size(); ++g) {
    std::vector<DeviceFill::Part> parts;
    for (StoredBox& stored : stored_boxes(m.groups_[g], 0, m.groups_[g].elems)) {
      const int64_t at = stored.offset * size;
      parts.push_back({at, [&source, dtype, stored = std::move(stored)](void* out) {
                         return source.read(StateKind::weight, stored.logical, stored.box, dtype, out, stored.row_stride);
                       }});
    }
    const int64_t elems = m.groups_[g].elems;
    LLMOPS_TRY(fill.add(view.range(static_cast<int>(g), 0, elems).data, elems * size, std::move(parts)));
  }
  LLMOPS_TRY(fill.flush());
  return model;
}

Status InferModel::reserve(int slots, int64_t capacity, int64_t rows) {
  if (slots <= slots_ && capacity <= capacity_ && rows <= rows_max_) return {};
  slots_ = std::max(slots, slots_);
  capacity_ = std::max(capacity, capacity_);
  rows_max_ = std::max<int64_t>({rows, rows_max_, slots_});
  decodings_.clear();
  cache_ = Buffer();
  const auto cache_bytes = bytes_of(dtype_, config_.layers * 2 * slots_ * capacity_ * config_.kv_dim());
  if (!cache_bytes) return io_error("KV cache: its size overflows");
  LLMOPS_ASSIGN(cache_, device_.alloc(*cache_bytes, Category::kv));
  LLMOPS_ASSIGN(slot_, Slot::make(device_, inference_activations(config_, rows_max_), dtype_, Category::transient));
  LLMOPS_ASSIGN(ints_, device_.alloc(IntLayout{rows_max_, slots_}.total() * 4, Category::staging));
  LLMOPS_ASSIGN(host_ints_, HostSide::of(device_, ints_));
  LLMOPS_ASSIGN(wanted_, device_.alloc(2 * slots_ * config_.d_model * info(dtype_).block_bytes, Category::transient));
  LLMOPS_ASSIGN(logits_, device_.alloc(slots_ * config_.vocab * 4, Category::transient));
  if (!config_.learned_positions) {
    const std::vector<float> table = rope_table(config_, capacity_);
    LLMOPS_ASSIGN(cos_sin_, device_.alloc(static_cast<int64_t>(table.size()) * 4, Category::transient));
    LLMOPS_TRY(fill_from(device_, cos_sin_, table));
  }
  return {};
}

Batch InferModel::fill_batch(std::span<const SequenceRows> sequences) {
  const IntLayout at{rows_max_, slots_};
  auto* ints = host_ints_.as<int32_t>();
  int64_t n = 0, wanted = 0;
  const int64_t s = static_cast<int64_t>(sequences.size());
  for (int64_t i = 0; i < s; ++i) {
    const SequenceRows& rows = sequences[i];
    const int64_t cache_row = rows.slot * capacity_;
    ints[at.q_begin() + i] = static_cast<int32_t>(n);
    ints[at.kv_begin() + i] = static_cast<int32_t>(cache_row);
    ints[at.kv_len() + i] = static_cast<int32_t>(rows.position + static_cast<int64_t>(rows.tokens.size()));
    ints[at.q_pos0() + i] = static_cast<int32_t>(rows.position);
    ints[at.kv_pos0() + i] = 0;
    for (size_t t = 0; t < rows.tokens.size(); ++t, ++n) {
      const int64_t position = rows.position + static_cast<int64_t>(t);
      ints[at.tokens() + n] = rows.tokens[t];
      ints[at.positions() + n] = static_cast<int32_t>(position);
      ints[at.kv_rows() + n] = static_cast<int32_t>(cache_row + position);
    }
    if (rows.want_logits) ints[at.wanted() + wanted++] = static_cast<int32_t>(n - 1);
  }
  ints[at.q_begin() + s] = static_cast<int32_t>(n);
  host_ints_.push(device_.compute());
  const auto view = [&](int64_t offset, int64_t count) {
    return ConstTensorView(ints_.view(DType::i32, {count}, offset * 4));
  };
  return {.n = n,
          .s = s,
          .tokens = view(at.tokens(), n),
          .positions = view(at.positions(), n),
          .targets = {},
          .q_begin = view(at.q_begin(), s + 1),
          .kv_begin = view(at.kv_begin(), s),
          .kv_len = view(at.kv_len(), s),
          .q_pos0 = view(at.q_pos0(), s),
          .kv_pos0 = view(at.kv_pos0(), s),
          .kv_max = capacity_};
}

Result<TensorView> InferModel::forward(std::span<const SequenceRows> sequences) {
  Stream& stream = device_.compute();
  const Batch batch = fill_batch(sequences);
  const int64_t wanted = std::ranges::count_if(sequences, [](const SequenceRows& rows) { return rows.want_logits; });
  const bool decodes = batch.n == batch.s && wanted == batch.n;
  LLMOPS_TRY(decodes && stream.captures() ? decode(batch) : enqueue_forward(batch, wanted));
  LLMOPS_TRY(stream.sync());
  return logits_.view(DType::f32, {wanted, config_.vocab});
}

// A pass of one row per sequence has hundreds of small kernels and the same arguments as the last one of as many rows:
// what changes (ids, positions, lengths) lies in device memory. So it is recorded once and started by one call. The first
// pass runs as it is, and makes the workspace.
Status InferModel::decode(const Batch& batch) {
  Stream& stream = device_.compute();
  Decoding& decoding = decodings_[batch.n];
  if (decoding.workspace_moves != stream.workspace_moves()) {
    decoding.graph.reset();
    LLMOPS_TRY(enqueue_forward(batch, batch.n));
    decoding.workspace_moves = stream.workspace_moves();
    return {};
  }
  if (!decoding.graph) {
    LLMOPS_ASSIGN(Graph graph, stream.capture([&] { return enqueue_forward(batch, batch.n); }));
    decoding.graph = std::move(graph);
  }
  stream.replay(*decoding.graph);
  return {};
}

Status InferModel::enqueue_forward(const Batch& batch, int64_t wanted) {
  Stream& stream = device_.compute();
  const IntLayout at{rows_max_, slots_};
  BlockCtx ctx{.stream = stream,
               .config = config_,
               .weights = FlatView(groups_, weights_.data(), dtype_, device_.id()),
               .grads = {},
               .cos_sin = {},
               .accumulate = false,
               .grad_ready = {}};
  if (!config_.learned_positions) ctx.cos_sin = cos_sin_.view(DType::f32, {capacity_, config_.head_dim / 2, 2});
  const TensorView residual = slot_(Act::residual, batch.n);
  LLMOPS_TRY(embed_forward(ctx, batch, residual));
  const int64_t cache_elems = slots_ * capacity_ * config_.kv_dim(), size = info(dtype_).block_bytes;
  for (int layer = 0; layer < static_cast<int>(config_.layers); ++layer) {
    const auto cache = [&](int64_t which) {
      return cache_.view(dtype_, {slots_ * capacity_, config_.kv_heads, config_.head_dim},
                         (layer * 2 + which) * cache_elems * size);
    };
    const KvCache kv{cache(0), cache(1), ints_.view(DType::i32, {batch.n}, at.kv_rows() * 4)};
    LLMOPS_TRY(block_forward(ctx, layer, batch, slot_, kv, residual));
  }
  const TensorView logits = logits_.view(DType::f32, {wanted, config_.vocab});
  if (wanted > 0) {
    const TensorView last = wanted_.view(dtype_, {wanted, config_.d_model}),
                     normed = wanted_.view(dtype_, {wanted, config_.d_model}, slots_ * config_.d_model * size);
    LLMOPS_TRY(embedding(stream, {.ids = ints_.view(DType::i32, {wanted}, at.wanted() * 4),
                                  .positions = {},
                                  .table = residual,
                                  .pos_table = {},
                                  .out = last}));
    LLMOPS_TRY(head_logits(ctx, last, normed, logits));
  }
  return {};
}

}  // namespace llmops
