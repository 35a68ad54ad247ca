#include "train/step.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <tuple>

#include "layout/schedule.h"
#include "nn/fill.h"

namespace llmops {
namespace {

int64_t blocks_of(const Group& group) { return group.elems / kGroupBlock; }

// Balanced binary tree over [begin, end): left half is the largest power of two below the count.
double tree_sum(const double* x, int64_t count) {
  if (count == 1) return x[0];
  int64_t half = 1;
  while (half * 2 < count) half *= 2;
  return tree_sum(x, half) + tree_sum(x + half, count - half);
}

}  // namespace

Result<std::unique_ptr<Trainer>> Trainer::make(Device& device, Communicator& comm, TrainState& state,
                                               const Shape& shape) {
  std::unique_ptr<Trainer> trainer(new Trainer(device, comm, state, shape));
  Trainer& t = *trainer;
  const ModelConfig& config = state.config();
  const int64_t tokens = shape.micro_batch * shape.seq;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    LLMOPS_ASSIGN(Slot slot, Slot::make(device, block_activations(config, tokens), state.dtype(), Category::saved));
    t.slots_.push_back(std::move(slot));
  }
  LLMOPS_ASSIGN(t.head_, Slot::make(device, head_activations(config, tokens), state.dtype(), Category::saved));
  LLMOPS_ASSIGN(t.scratch_,
                Slot::make(device, transient_activations(config, tokens), state.dtype(), Category::transient));
  LLMOPS_ASSIGN(t.feed_, BatchFeed::make(device, shape.windows, shape.seq));
  LLMOPS_ASSIGN(t.control_, device.alloc(4 * sizeof(float), Category::transient));
  LLMOPS_ASSIGN(t.loss_sum_, device.alloc(sizeof(double), Category::transient));
  LLMOPS_ASSIGN(t.host_control_, HostSide::of(device, t.control_));
  LLMOPS_ASSIGN(t.host_loss_sum_, HostSide::of(device, t.loss_sum_));
  if (!config.learned_positions) {
    const std::vector<float> table = rope_table(config, shape.seq);
    LLMOPS_ASSIGN(t.cos_sin_, device.alloc(static_cast<int64_t>(table.size()) * 4, Category::transient));
    LLMOPS_TRY(fill_from(device, t.cos_sin_, table));
  }
  for (const Group& group : state.groups()) t.blocks_ += blocks_of(group);
  t.shards_ = std::max(state.parallel().shards, state.parallel().dp);
  const int64_t scalars = t.shards_ + t.blocks_ + static_cast<int64_t>(Flag::kCount) * comm.world();
  LLMOPS_ASSIGN(t.scalars_, comm.alloc(scalars * 8, Category::comm));
  LLMOPS_ASSIGN(t.host_scalars_, HostSide::of(device, t.scalars_.data(), t.scalars_.bytes()));
  if (shape.shards_at_once > 1) LLMOPS_TRY(t.make_parts(shape.shards_at_once));
  if (comm.world() > 1 && state.parallel().zero == 1) {
    std::vector<Bucket> buckets;
    int64_t offset = 0;
    for (const Group& group : state.groups()) {
      buckets.push_back(even_bucket(offset, group.elems, comm.world(), group.elems / comm.world()));
      offset += group.elems;
    }
    LLMOPS_ASSIGN(t.exchange_, comm.new_exchange(state.grad_buffer(), std::move(buckets)));
  }
  return trainer;
}

// The embeddings' gradients of the first part go straight to their place; those of the others need one.
Status Trainer::make_parts(int count) {
  const std::vector<Group>& groups = state_.groups();
  parts_.embed.resize(1);
  for (int i = 1; i < count; ++i) {
    LLMOPS_ASSIGN(Buffer buffer, device_.alloc(groups[0].elems * 4, Category::grads));
    parts_.embed.push_back(FlatView(groups, buffer.data(), DType::f32, device_.id()));
    part_buffers_.push_back(std::move(buffer));
  }
  const int64_t elems = part_sum_elems(groups);
  for (int i = 2; i < count; i *= 2) {
    LLMOPS_ASSIGN(Buffer buffer, device_.alloc(elems * 4, Category::grads));
    parts_.sums.push_back(buffer.view(DType::f32, {elems}));
    part_buffers_.push_back(std::move(buffer));
  }
  return {};
}

Trainer::~Trainer() = default;

BlockCtx Trainer::context(FlatView grads, bool accumulate) const {
  const ModelConfig& config = state_.config();
  ConstTensorView table;
  if (!config.learned_positions)
    table =
        dense_view(static_cast<const void*>(cos_sin_.data()), DType::f32, {shape_.seq, config.head_dim / 2, 2}, device_.id());
  return {.stream = device_.compute(),
          .config = config,
          .weights = state_.weights(),
          .grads = grads,
          .cos_sin = table,
          .accumulate = accumulate,
          .grad_ready = {}};
}

Status Trainer::forward(const BlockCtx& ctx, const Batch& batch) {
  const int layers = static_cast<int>(state_.config().layers);
  LLMOPS_TRY(embed_forward(ctx, batch, slots_[0](Act::residual, batch.n)));
  for (int layer = 0; layer < layers; ++layer) {
    const TensorView out =
        layer + 1 < layers ? slots_[layer + 1](Act::residual, batch.n) : head_(Act::final_residual, batch.n);
    LLMOPS_TRY(block_forward(ctx, layer, batch, slots_[layer], {}, out));
  }
  return {};
}

Status Trainer::backward(const BlockCtx& ctx, const Batch& batch, float scale) {
  const TensorView grad = scratch_(Act::grad_residual, batch.n);
  LLMOPS_TRY(head_loss(ctx, batch, head_, scratch_, scale, grad));
  for (int layer = static_cast<int>(state_.config().layers) - 1; layer >= 0; --layer)
    LLMOPS_TRY(block_backward(ctx, layer, batch, slots_[layer], scratch_, grad));
  return embed_backward(ctx, batch, grad);
}

// All batches of the step. A pass of several shards is one, a part for each; a shard of its own may be several.
void Trainer::feed_step(const std::vector<Windows>& windows) {
  feed_.clear();
  pass_begin_ = {0};
  for (size_t shard = 0; shard < windows.size(); shard += shape_.shards_at_once) {
    for (int64_t first = 0; first < windows[shard].count(); first += shape_.micro_batch) {
      feed_.begin_batch();
      for (int i = 0; i < shape_.shards_at_once; ++i) {
        const Windows& part = windows[shard + i];
        feed_.add(part, first, std::min(shape_.micro_batch, part.count() - first));
      }
    }
    pass_begin_.push_back(feed_.count());
  }
  feed_.push(device_.compute());
}

// The gradient of one pass, into the level of the fold tree where it meets its left neighbours: level t for a pass whose
// number ends in t ones (the next free one of a binary counter).
Status Trainer::pass_gradient(int pass, int passes, float scale) {
  const int level = std::countr_one(static_cast<unsigned>(pass));
  const int first_shard = (passes * comm_.rank() + pass) * shape_.shards_at_once;
  const int64_t micro_batches = pass_begin_[pass + 1] - pass_begin_[pass];
  for (const Action& action : schedule_single_chunk(static_cast<int>(micro_batches))) {
    const BatchFeed::Entry& entry = feed_[pass_begin_[pass] + action.micro_batch];
    BlockCtx ctx = context(state_.grads(level), action.micro_batch > 0);
    if (action.micro_batch + 1 == micro_batches)
      ctx.grad_ready = [=, this](int group) { return group_ready(group, level, pass + 1 == passes); };
    if (shape_.shards_at_once > 1) {
      parts_.begin = entry.part_begin;
      parts_.embed[0] = ctx.grads;
      ctx.parts = &parts_;
    }
    LLMOPS_TRY(action.kind == Action::Kind::forward ? forward(ctx, entry.batch)
                                                    : micro_batch_gradient(ctx, entry, first_shard, scale));
  }
  return {};
}

Status Trainer::micro_batch_gradient(const BlockCtx& ctx, const BatchFeed::Entry& entry, int first_shard, float scale) {
  LLMOPS_TRY(backward(ctx, entry.batch, scale));
  const TensorView losses = head_(Act::losses, entry.batch.n);
  for (int64_t part = 0; part + 1 < std::ssize(entry.part_begin); ++part) {
    const int64_t begin = entry.part_begin[part];
    LLMOPS_TRY(sum(ctx.stream, {.x = rows(losses, begin, entry.part_begin[part + 1] - begin),
                                .out = scalars_.view(DType::f64, {1}, (first_shard + part) * int64_t{sizeof(double)}),
                                .accumulate = true}));
  }
  return {};
}

Status Trainer::group_ready(int group, int level, bool last) {
  Stream& stream = device_.compute();
  const int64_t elems = state_.groups()[group].elems;
  const TensorView mine = state_.grads(level).range(group, 0, elems);
  for (int below = 0; below < level; ++below)
    LLMOPS_TRY(add(stream, {.a = state_.grads(below).range(group, 0, elems), .b = mine, .out = mine}));
  if (!exchange_ || !last) return {};
  LLMOPS_TRY(exchange_->post(stream, group));
  posted_.push_back(group);
  for (size_t i = 0; i < posted_.size();) {  // fold whatever all ranks have finished, while others are still at work
    if (!exchange_->ready(posted_[i])) {
      ++i;
      continue;
    }
    LLMOPS_TRY(exchange_->reduce_slice(stream, posted_[i]));
    posted_.erase(posted_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return {};
}

Status Trainer::reduce_rest() {
  Stream& stream = device_.compute();
  for (int group : posted_) LLMOPS_TRY(exchange_->reduce_slice(stream, group));
  posted_.clear();
  if (exchange_ || comm_.world() == 1) return {};
  for (size_t g = 0; g < state_.groups().size(); ++g)
    LLMOPS_TRY(comm_.all_reduce(
        stream, state_.grads(state_.levels() - 1).range(static_cast<int>(g), 0, state_.groups()[g].elems)));
  return {};
}

// Losses, square sums of the part of the gradient that is mine, and flags: one all-reduce in which every place but one
// rank's is 0.
void Trainer::clear_scalars(const Flags& flags) {
  auto* all = host_scalars_.as<double>();
  double* flag_rows = all + shards_ + blocks_;
  std::fill(all, flag_rows + flags.size() * comm_.world(), 0.0);
  std::copy(flags.begin(), flags.end(), flag_rows + flags.size() * comm_.rank());
  host_scalars_.push(device_.compute());
}

Status Trainer::reduce_scalars() {
  Stream& stream = device_.compute();
  const FlatView grads = state_.grads(state_.levels() - 1);
  int64_t block = 0;
  for (size_t g = 0; g < state_.groups().size(); ++g) {
    const int64_t count = state_.groups()[g].elems / comm_.world(), begin = count * comm_.rank();
    const int64_t at = (shards_ + block + begin / kGroupBlock) * static_cast<int64_t>(sizeof(double));
    LLMOPS_TRY(square_sums(
        stream, {.x = grads.range(static_cast<int>(g), begin, count),
                 .sums = scalars_.view(DType::f64, {count / kGroupBlock}, at)}));
    block += blocks_of(state_.groups()[g]);
  }
  if (comm_.world() > 1)
    LLMOPS_TRY(comm_.all_reduce(stream, scalars_.view(DType::f64, {scalars_.bytes() / int64_t{sizeof(double)}})));
  host_scalars_.pull(stream);
  return {};
}

Status Trainer::update(int64_t step, double lr, const AdamwOptions& o) {
  Stream& stream = device_.compute();
  const TensorView control = control_.view(DType::f32, {4});
  for (size_t g = 0; g < state_.groups().size(); ++g) {
    const int group = static_cast<int>(g);
    const TrainState::Slice own = state_.slice(group);
    const int64_t decay_end = std::clamp(state_.groups()[g].decay_elems, own.begin, own.end);
    for (const auto& [begin, end, decay] :
         {std::tuple{own.begin, decay_end, o.weight_decay}, std::tuple{decay_end, own.end, 0.0}}) {
      const int64_t at = begin - own.begin, count = end - begin;
      if (count == 0) continue;
      LLMOPS_TRY(adamw(
          stream,
          {.param = state_.param(group, at, count),
           .m = state_.moment(state_.m_buffer(), group, at, count),
           .v = state_.moment(state_.v_buffer(), group, at, count),
           .grad = state_.grads(state_.levels() - 1).range(group, begin, count),
           .param_bf16 = state_.dtype() == DType::bf16 ? state_.weights().range(group, begin, count) : TensorView(),
           .control = control,
           .lr = static_cast<float>(lr),
           .beta1 = static_cast<float>(o.beta1),
           .beta2 = static_cast<float>(o.beta2),
           .eps = static_cast<float>(o.eps),
           .weight_decay = static_cast<float>(decay),
           .step = step}));
    }
    if (exchange_) LLMOPS_TRY(exchange_->publish_slice(stream, group));
  }
  return gather_slices();
}

Status Trainer::gather_slices() {
  for (size_t g = 0; exchange_ && g < state_.groups().size(); ++g)
    LLMOPS_TRY(exchange_->gather_slices(device_.compute(), static_cast<int>(g), state_.weight_buffer(), state_.dtype()));
  return {};
}

Status Trainer::gather_weights() {
  for (size_t g = 0; exchange_ && g < state_.groups().size(); ++g)
    LLMOPS_TRY(exchange_->publish_slice(device_.compute(), static_cast<int>(g)));
  return gather_slices();
}

Result<StepResult> Trainer::step(const std::vector<Windows>& windows, int64_t valid_tokens, int64_t step, double lr,
                                 const AdamwOptions& options, const Flags& flags) {
  Stream& stream = device_.compute();
  const int passes = static_cast<int>(windows.size()) / shape_.shards_at_once;
  const CommTime before = comm_.time();
  const float scale = static_cast<float>(1.0 / static_cast<double>(valid_tokens));
  clear_scalars(flags);
  feed_step(windows);
  for (int pass = 0; pass < passes; ++pass) LLMOPS_TRY(pass_gradient(pass, passes, scale));
  LLMOPS_TRY(reduce_rest());
  LLMOPS_TRY(reduce_scalars());
  LLMOPS_TRY(stream.sync());

  StepResult result;
  const auto* losses = host_scalars_.as<double>();
  const double* blocks = losses + shards_;
  result.loss = tree_sum(losses, shards_) / static_cast<double>(valid_tokens);
  for (int shard = 0; shard < shards_ && result.bad_shard < 0; ++shard)
    if (!std::isfinite(losses[shard])) result.bad_shard = shard;
  for (int rank = 0; rank < comm_.world(); ++rank)
    for (size_t i = 0; i < flags.size(); ++i)
      result.flags[i] = std::max(result.flags[i],
                                 blocks[blocks_ + rank * static_cast<int64_t>(flags.size()) + static_cast<int64_t>(i)]);
  LLMOPS_TRY(
      clip_scale(stream, {.sums = scalars_.view(DType::f64, {blocks_}, shards_ * int64_t{sizeof(double)}),
                          .control = control_.view(DType::f32, {4}),
                          .clip = static_cast<float>(options.clip)}));
  if (result.bad_shard < 0) LLMOPS_TRY(update(step, lr, options));
  host_control_.pull(stream);
  LLMOPS_TRY(stream.sync());
  const auto* control = host_control_.as<float>();
  result.grad_norm = control[0];
  result.bad_block = static_cast<int64_t>(control[3]);
  result.finite = result.bad_shard < 0 && control[2] != 0;
  const CommTime after = comm_.time();
  result.comm_s = after.wait_s + after.work_s - before.wait_s - before.work_s;
  return result;
}

Status Trainer::batch_loss(const BlockCtx& ctx, const Batch& batch) {
  LLMOPS_TRY(forward(ctx, batch));
  LLMOPS_TRY(head_loss(ctx, batch, head_, scratch_, 0.0f, {}));
  return sum(ctx.stream,
             {.x = head_(Act::losses, batch.n), .out = loss_sum_.view(DType::f64, {1}), .accumulate = true});
}

Result<double> Trainer::loss_sum(const Windows& windows) {
  Stream& stream = device_.compute();
  auto* total = host_loss_sum_.as<double>();
  *total = 0;
  host_loss_sum_.push(stream);
  const BlockCtx ctx = context({}, false);
  for (int64_t first = 0; first < windows.count(); first += shape_.windows) {
    const int64_t end = std::min(first + shape_.windows, windows.count());
    feed_.clear();
    for (int64_t at = first; at < end; at += shape_.micro_batch) {
      feed_.begin_batch();
      feed_.add(windows, at, std::min(shape_.micro_batch, end - at));
    }
    feed_.push(stream);
    for (int64_t i = 0; i < feed_.count(); ++i) LLMOPS_TRY(batch_loss(ctx, feed_[i].batch));
    LLMOPS_TRY(stream.sync());  // the next windows take the memory of these
  }
  if (comm_.world() > 1) LLMOPS_TRY(comm_.all_reduce(stream, loss_sum_.view(DType::f64, {1})));
  host_loss_sum_.pull(stream);
  LLMOPS_TRY(stream.sync());
  return *total;
}

std::string Trainer::tensor_of_block(int64_t block) const {
  for (const Group& group : state_.groups()) {
    if (block >= blocks_of(group)) {
      block -= blocks_of(group);
      continue;
    }
    const auto stored = stored_boxes(group, block * kGroupBlock, (block + 1) * kGroupBlock);
    return stored.empty() ? group.name : state_.tensors()[stored.front().logical].name;
  }
  return "unknown";
}

// A block's square sum is finite if and only if its elements are.
Result<int> Trainer::rank_of_bad_gradient() {
  Stream& stream = device_.compute();
  LLMOPS_TRY(square_sums(stream, {.x = state_.grads(state_.levels() - 1).all(),
                                  .sums = scalars_.view(DType::f64, {blocks_}, shards_ * int64_t{sizeof(double)})}));
  host_scalars_.pull(stream);
  LLMOPS_TRY(stream.sync());
  const double* blocks = host_scalars_.as<double>() + shards_;
  auto* first = host_loss_sum_.as<double>();
  *first = std::all_of(blocks, blocks + blocks_, [](double x) { return std::isfinite(x); }) ? comm_.world() : comm_.rank();
  host_loss_sum_.push(stream);
  if (comm_.world() > 1) LLMOPS_TRY(comm_.all_reduce(stream, loss_sum_.view(DType::f64, {1}), ReduceOp::min));
  host_loss_sum_.pull(stream);
  LLMOPS_TRY(stream.sync());
  return *first < comm_.world() ? static_cast<int>(*first) : -1;
}

}  // namespace llmops
