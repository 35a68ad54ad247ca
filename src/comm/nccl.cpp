#include "comm/nccl.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/run.h"
#include "comm/nccl_calls.h"

namespace llmops {

// --- HostGroup

Result<std::unique_ptr<HostGroup>> HostGroup::open(std::shared_ptr<Device> host, std::unique_ptr<Communicator> comm) {
  auto group = std::make_unique<HostGroup>();
  group->host_ = std::move(host);
  group->comm_ = std::move(comm);
  const int64_t bytes = group->world() * static_cast<int64_t>(sizeof(Progress));
  LLMOPS_ASSIGN(group->progress_, group->comm_->alloc_common(bytes, Category::comm));
  group->progress(group->rank()).issued = -1;
  const int64_t pid = getpid();
  LLMOPS_ASSIGN(group->pids_, group->gather(std::span(&pid, 1)));
  return group;
}

Result<std::vector<int64_t>> HostGroup::gather(std::span<const int64_t> mine) {
  std::vector<int64_t> all(mine.size() * static_cast<size_t>(world()));
  const auto count = static_cast<int64_t>(mine.size());
  LLMOPS_TRY(comm_->all_gather(host_->compute(), dense_view(static_cast<const void*>(mine.data()), DType::i64, {count}),
                               dense_view(static_cast<void*>(all.data()), DType::i64, {count * world()})));
  LLMOPS_TRY(host_->compute().sync());
  return all;
}

Result<std::unique_ptr<HostGroup>> HostGroup::split(int color, int key) {
  LLMOPS_ASSIGN(std::unique_ptr<Communicator> part, comm_->split(color, key));
  return open(host_, std::move(part));
}

std::string HostGroup::name_of(int rank) const { return fmt::format("rank {} (pid {})", rank, pids_[size_t(rank)]); }

std::string HostGroup::behind(std::atomic<int64_t> Progress::* count, int64_t number) const {
  std::string who;
  for (int r = 0; r < world(); ++r)
    if ((progress(r).*count) < number) who += (who.empty() ? "" : ", ") + name_of(r);
  return who;
}

// --- NcclCommunicator: life

NcclCommunicator::NcclCommunicator(Device& device, std::unique_ptr<HostGroup> host, const CommOptions& options)
    : device_(device), host_(std::move(host)), options_(options), side_(device.new_stream()) {
  rank_ = host_->rank();
  world_ = host_->world();
}

Result<std::unique_ptr<Communicator>> NcclCommunicator::open(Device& device, std::unique_ptr<HostGroup> host,
                                                             const CommOptions& options) {
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(device, std::move(host), options));
  NcclCommunicator& c = *made;
  if (c.world_ > 1) {
    auto api = nccl::api();
    // All ranks learn of one that has no library, before they wait for it.
    const int64_t mine = api.ok();
    LLMOPS_ASSIGN(const std::vector<int64_t> all, c.host_->gather(std::span(&mine, 1)));
    LLMOPS_TRY(api.status());
    for (int r = 0; r < c.world_; ++r)
      if (all[size_t(r)] == 0) return io_error(fmt::format("NCCL: {} has no usable library", c.host_->name_of(r)));
    c.api_ = *api;
    LLMOPS_TRY(c.connect());
  }
  return std::unique_ptr<Communicator>(std::move(made));
}

// The id goes through the memory file that the ranks share, so it is never a stale one.
Status NcclCommunicator::connect() {
  nccl::UniqueId id = {};
  int64_t words[sizeof id / sizeof(int64_t)] = {};
  nccl::Code code = rank_ == 0 ? api_->GetUniqueId(&id) : nccl::Code::success;
  std::memcpy(words, &id, sizeof id);
  LLMOPS_ASSIGN(const std::vector<int64_t> all, host_->gather(words));
  std::memcpy(&id, all.data(), sizeof id);
  LLMOPS_TRY(settle(code, "ncclGetUniqueId"));
  nccl::Config config;
  code = api_->CommInitRankConfig(&comm_, world_, id, rank_, &config);
  host_->progress(rank_).issued = 0;
  LLMOPS_TRY(settle(code, "ncclCommInitRankConfig"));
  LLMOPS_ASSIGN(barrier_, device_.alloc(sizeof(float), Category::comm));
  watch_ = device_.watch([this] { return look(); });
  return {};
}

NcclCommunicator::~NcclCommunicator() {
  if (watch_ != 0) device_.unwatch(watch_);
  if (comm_ == nullptr) return;
  const bool ended = side_->sync(options_.deadline_s).ok() && settle(api_->CommFinalize(comm_), "ncclCommFinalize").ok();
  if (comm_ != nullptr) (void)(ended ? api_->CommDestroy(comm_) : api_->CommAbort(comm_));
}

// --- NcclCommunicator: failures

Status NcclCommunicator::fail(const std::string& reason) {
  if (failure_.ok()) {
    failure_ = peer_error(reason);
    host_->abort(fmt::format("rank {}: {}", rank_, reason));
    if (comm_ != nullptr) (void)api_->CommAbort(comm_);  // its kernels end, and the streams with them
    comm_ = nullptr;
  }
  return failure_;
}

void NcclCommunicator::abort(const std::string& reason) {
  host_->abort(reason);
  (void)look();
}

Status NcclCommunicator::health() const { return failure_.ok() ? host_->health() : failure_; }

Status NcclCommunicator::settle(nccl::Code code, const char* name) {
  constexpr auto kPause = std::chrono::microseconds(50);
  const double begin_s = monotonic_s();
  while (code == nccl::Code::in_progress && comm_ != nullptr) {
    if (const Status gone = host_->health(); !gone.ok()) return fail(gone.in(name).message());
    if (monotonic_s() - begin_s > options_.deadline_s) {
      const std::string who = host_->behind(&HostGroup::Progress::issued, host_->progress(rank_).issued);
      return fail(who.empty() ? fmt::format("{} is not through after {} s; no rank is behind", name, options_.deadline_s)
                              : fmt::format("{}: {} did not arrive within {} s", name, who, options_.deadline_s));
    }
    if (code = ask(); code == nccl::Code::in_progress) std::this_thread::sleep_for(kPause);
  }
  time_.wait_s += monotonic_s() - begin_s;
  if (code == nccl::Code::success) return {};
  const char* const last = comm_ != nullptr ? api_->GetLastError(comm_) : nullptr;
  return fail(fmt::format("{}: NCCL error {} ({}){}{}", name, static_cast<int>(code), api_->GetErrorString(code),
                          last && *last ? ": " : "", last ? last : ""));
}

nccl::Code NcclCommunicator::ask() const {
  nccl::Code code = nccl::Code::success;
  const nccl::Code asked = api_->CommGetAsyncError(comm_, &code);
  return asked == nccl::Code::success ? code : asked;
}

Status NcclCommunicator::look() {
  if (!failure_.ok()) return failure_;
  while (!pending_.empty() && pending_.front().end.complete()) pending_.pop_front();
  const std::string at = pending_.empty() ? "NCCL" : name_of(pending_.front());
  if (const Status gone = host_->health(); !gone.ok()) return fail(gone.in(at).message());
  if (comm_ == nullptr) return {};
  if (const nccl::Code code = ask(); code != nccl::Code::in_progress) LLMOPS_TRY(settle(code, at.c_str()));
  if (pending_.empty()) return {};
  Pending& first = pending_.front();
  if (first.begun_s == 0 && first.begin.complete()) {
    first.begun_s = monotonic_s();
    if (first.number > 0) host_->progress(rank_).begun = first.number;
  }
  const bool late = first.begun_s > 0 && monotonic_s() - first.begun_s > options_.deadline_s;
  return late ? overdue(first) : Status();
}

// Whose fault it is: the ranks that have not issued the call; else those whose device has not come to it; else nobody's that
// the host knows of.
Status NcclCommunicator::overdue(const Pending& call) {
  const std::string name = name_of(call);
  if (call.number == 0)
    return fail(fmt::format("{}: {} did not take part within {} s", name, host_->name_of(call.peer), options_.deadline_s));
  if (const std::string who = host_->behind(&HostGroup::Progress::issued, call.number); !who.empty())
    return fail(fmt::format("{}: {} did not arrive within {} s", name, who, options_.deadline_s));
  if (const std::string who = host_->behind(&HostGroup::Progress::begun, call.number); !who.empty())
    return fail(fmt::format("{}: the device of {} did not come to it within {} s", name, who, options_.deadline_s));
  return fail(fmt::format("{}: all ranks are in it, and it is not through after {} s", name, options_.deadline_s));
}

// --- NcclCommunicator: calls

Status NcclCommunicator::check(const char* name, const ConstTensorView& view) const {
  if (view.device != device_.id())
    return usage_error(fmt::format("{}: found memory of another device, expected CUDA device {}", name, device_.id().cuda));
  if (!view.contiguous()) return usage_error(fmt::format("{}: found a strided view, expected a dense one", name));
  if (info(view.dtype).block_elems != 1) return usage_error(fmt::format("{}: found a block-quantised dtype", name));
  return failure_;
}

std::string NcclCommunicator::name_of(const Pending& call) const {
  return call.number > 0 ? fmt::format("{} #{}", call.name, call.number)
                         : fmt::format("{} {} {}", call.name, call.name[0] == 's' ? "to rank" : "from rank", call.peer);
}

template <class Call>
Result<Event> NcclCommunicator::start(Stream& stream, const char* name, const Call& call, int peer) {
  LLMOPS_TRY(look());
  const Event begin = stream.record();
  side_->wait(begin);
  const nccl::Code code = call(side_->native());
  const int64_t number = peer == kAll ? ++issued_ : 0;
  if (number > 0) host_->progress(rank_).issued = number;
  LLMOPS_TRY(settle(code, name));
  const Event end = side_->record();
  pending_.push_back({number, name, peer, begin, end});
  return end;
}

template <class Call>
Status NcclCommunicator::run(Stream& stream, const char* name, const Call& call, int peer) {
  LLMOPS_ASSIGN(const Event end, start(stream, name, call, peer));
  stream.wait(end);
  return {};
}

Status NcclCommunicator::all_reduce(Stream& stream, TensorView data, ReduceOp op) {
  LLMOPS_TRY(check("all_reduce", data));
  LLMOPS_ASSIGN(const nccl::Type type, nccl::reducible("all_reduce", data.dtype));
  if (world_ == 1) return {};
  return run(stream, "all_reduce", [&](void* on) {
    return api_->AllReduce(data.data, data.data, size_t(data.elems()), type, nccl::reduction(op), comm_, on);
  });
}

Result<std::vector<int64_t>> NcclCommunicator::meet(std::span<const int64_t> mine) {
  LLMOPS_TRY(side_->sync());
  return host_->gather(mine);
}

// Elements of `mine` by rank. The ranks meet here, so a rank that is missing is named before NCCL waits for it.
Result<std::vector<int64_t>> NcclCommunicator::counts(const char* name, const ConstTensorView& mine) {
  const int64_t call[] = {mine.elems(), static_cast<int64_t>(mine.dtype)};
  LLMOPS_ASSIGN(const std::vector<int64_t> all, meet(call));
  std::vector<int64_t> elems;
  for (int r = 0; r < world_; ++r) {
    elems.push_back(all[size_t(2 * r)]);
    if (all[size_t(2 * r + 1)] != call[1]) return fail(fmt::format("{}: {} gave another dtype", name, host_->name_of(r)));
  }
  return elems;
}

Status NcclCommunicator::all_gather(Stream& stream, ConstTensorView mine, TensorView all) {
  LLMOPS_TRY(check("all_gather", mine));
  LLMOPS_TRY(check("all_gather", all));
  if (mine.dtype != all.dtype) return usage_error("all_gather: found two dtypes, expected one");
  LLMOPS_ASSIGN(const std::vector<int64_t> elems, counts("all_gather", mine));
  const nccl::Parts parts(elems, info(mine.dtype).block_bytes);
  if (parts.total_bytes() != all.elems() * parts.elem_bytes())
    return fail(fmt::format("all_gather: found {} elements of all ranks, expected the {} of the output",
                            parts.total_bytes() / parts.elem_bytes(), all.elems()));
  if (world_ == 1) return nccl::copy_unless_there(stream, all.data, mine.data, parts.total_bytes());
  return run(stream, "all_gather",
             [&](void* on) { return nccl::gather(*api_, comm_, mine.data, all.data, parts, rank_, on); });
}

Status NcclCommunicator::reduce_scatter(Stream& stream, ConstTensorView in, TensorView mine, ReduceOp op) {
  LLMOPS_TRY(check("reduce_scatter", in));
  LLMOPS_TRY(check("reduce_scatter", mine));
  LLMOPS_ASSIGN(const nccl::Type type, nccl::reducible("reduce_scatter", in.dtype));
  if (in.dtype != mine.dtype) return usage_error("reduce_scatter: found two dtypes, expected one");
  LLMOPS_ASSIGN(const std::vector<int64_t> elems, counts("reduce_scatter", mine));
  const nccl::Parts parts(elems, info(in.dtype).block_bytes);
  if (parts.total_bytes() != in.elems() * parts.elem_bytes())
    return fail(fmt::format("reduce_scatter: found slices of {} elements in all, expected my input's {}",
                            parts.total_bytes() / parts.elem_bytes(), in.elems()));
  if (world_ == 1) return nccl::copy_unless_there(stream, mine.data, in.data, parts.total_bytes());
  return run(stream, "reduce_scatter", [&](void* on) {
    return nccl::scatter(*api_, comm_, in.data, mine.data, parts, rank_, type, nccl::reduction(op), on);
  });
}

Status NcclCommunicator::broadcast(Stream& stream, TensorView data, int root) {
  LLMOPS_TRY(check("broadcast", data));
  if (root < 0 || root >= world_)
    return usage_error(fmt::format("broadcast: found root {}, expected 0 to {}", root, world_ - 1));
  if (world_ == 1) return {};
  const auto bytes = static_cast<size_t>(data.elems() * info(data.dtype).block_bytes);
  return run(stream, "broadcast", [&](void* on) {
    return api_->Broadcast(data.data, data.data, bytes, nccl::Type::u8, root, comm_, on);
  });
}

Status NcclCommunicator::all_to_all(Stream& stream, ConstTensorView in, TensorView out,
                                    std::span<const int64_t> send_counts) {
  LLMOPS_TRY(check("all_to_all", in));
  LLMOPS_TRY(check("all_to_all", out));
  if (in.dtype != out.dtype) return usage_error("all_to_all: found two dtypes, expected one");
  std::vector<int64_t> mine(send_counts.begin(), send_counts.end());
  if (mine.empty()) mine.assign(size_t(world_), in.elems() / world_);
  int64_t sum = 0;
  for (int64_t count : mine) sum += std::max<int64_t>(count, 0);
  if (std::ssize(mine) != world_ || sum != in.elems() || std::ranges::min(mine) < 0)
    return usage_error(fmt::format("all_to_all: found {} counts with a sum of {}, expected one for each of {} ranks and {}",
                                   mine.size(), sum, world_, in.elems()));
  LLMOPS_ASSIGN(const std::vector<int64_t> all, meet(mine));
  std::vector<int64_t> theirs;
  for (int r = 0; r < world_; ++r) theirs.push_back(all[size_t(r * world_ + rank_)]);
  const nccl::Parts give(mine, info(in.dtype).block_bytes), take(theirs, info(in.dtype).block_bytes);
  if (take.total_bytes() != out.elems() * take.elem_bytes())
    return fail(fmt::format("all_to_all: peers send {} elements, expected the {} of my output",
                            take.total_bytes() / take.elem_bytes(), out.elems()));
  if (world_ == 1) return nccl::copy_unless_there(stream, out.data, in.data, give.total_bytes());
  return run(stream, "all_to_all",
             [&](void* on) { return nccl::exchange(*api_, comm_, in.data, out.data, give, take, on); });
}

Status NcclCommunicator::send(Stream& stream, ConstTensorView data, int to) {
  LLMOPS_TRY(check("send", data));
  if (to < 0 || to >= world_ || to == rank_)
    return usage_error(fmt::format("send: found rank {}, expected another of {} ranks", to, world_));
  const auto bytes = static_cast<size_t>(data.elems() * info(data.dtype).block_bytes);
  return run(stream, "send", [&](void* on) { return api_->Send(data.data, bytes, nccl::Type::u8, to, comm_, on); },
             to);
}

Status NcclCommunicator::recv(Stream& stream, TensorView data, int from) {
  LLMOPS_TRY(check("recv", data));
  if (from < 0 || from >= world_ || from == rank_)
    return usage_error(fmt::format("recv: found rank {}, expected another of {} ranks", from, world_));
  const auto bytes = static_cast<size_t>(data.elems() * info(data.dtype).block_bytes);
  return run(stream, "recv", [&](void* on) { return api_->Recv(data.data, bytes, nccl::Type::u8, from, comm_, on); },
             from);
}

Status NcclCommunicator::barrier(Stream& stream) {
  if (world_ == 1) return {};
  return run(stream, "barrier", [&](void* on) {
    return api_->AllReduce(barrier_.data(), barrier_.data(), 1, nccl::Type::f32, nccl::Reduction::sum, comm_, on);
  });
}

// --- NcclCommunicator: groups and memory

Result<std::unique_ptr<Communicator>> NcclCommunicator::split(int color, int key) {
  if (color < 0) return usage_error(fmt::format("split: found color {}, expected 0 or more", color));
  LLMOPS_TRY(side_->sync());
  LLMOPS_ASSIGN(std::unique_ptr<HostGroup> part, host_->split(color, key));
  // A new group from a new id: ncclCommSplit would bind the parts' failures to each other's.
  return open(device_, std::move(part), options_);
}

Result<SharedBuffer> NcclCommunicator::own_buffer(int64_t bytes, Category category) {
  LLMOPS_ASSIGN(Buffer memory, device_.alloc(bytes, category));
  SharedBuffer buffer;
  buffer.base_ = memory.as<char>();
  buffer.bytes_ = bytes;
  buffer.rank_ = rank_;
  buffer.category_ = category;
  buffer.device_ = device_.id();
  buffers_.push_back(std::move(memory));
  return buffer;
}

Result<SharedBuffer> NcclCommunicator::alloc(int64_t bytes, Category category) { return own_buffer(bytes, category); }

Result<SharedBuffer> NcclCommunicator::alloc_common(int64_t bytes, Category category) {
  return own_buffer(bytes, category);
}

// --- NcclExchange

// Buckets are reduced as they are posted, beside backward on the group's stream.
class NcclExchange final : public GradientExchange {
 public:
  NcclExchange(NcclCommunicator& comm, const SharedBuffer& grads, std::vector<Bucket> buckets)
      : comm_(comm), grads_(grads), buckets_(std::move(buckets)), states_(buckets_.size()) {}

  Status post(Stream& stream, int bucket) override {
    LLMOPS_TRY(check("post", bucket));
    State& state = states_[size_t(bucket)];
    if (state.posted) return usage_error(fmt::format("post: bucket {} was posted before and not reduced since", bucket));
    float* const base = grads_.as<float>() + buckets_[size_t(bucket)].begin();
    const nccl::Parts parts = parts_of(bucket, sizeof(float));
    LLMOPS_ASSIGN(state.reduced, comm_.start(stream, "reduce_scatter of gradients", [&](void* on) {
      return nccl::scatter(*comm_.api_, comm_.comm_, base, parts.at(base, comm_.rank()), parts, comm_.rank(),
                           nccl::Type::f32, nccl::Reduction::sum, on);
    }));
    state.posted = true;
    return {};
  }
  bool ready(int bucket) const override {
    return check("ready", bucket).ok() && states_[size_t(bucket)].posted && states_[size_t(bucket)].reduced.complete();
  }
  Status reduce_slice(Stream& stream, int bucket) override {
    LLMOPS_TRY(check("reduce_slice", bucket));
    State& state = states_[size_t(bucket)];
    if (!state.posted) return usage_error(fmt::format("reduce_slice: bucket {} has not been posted", bucket));
    state.posted = false;
    stream.wait(state.reduced);
    return {};
  }
  Status publish_slice(Stream&, int bucket) override {
    LLMOPS_TRY(check("publish_slice", bucket));
    states_[size_t(bucket)].published = true;
    return {};
  }
  Status gather_slices(Stream& stream, int bucket, const SharedBuffer& buffer, DType dtype) override {
    LLMOPS_TRY(check("gather_slices", bucket));
    if (!states_[size_t(bucket)].published)
      return usage_error(fmt::format("gather_slices: bucket {} has not been published", bucket));
    const int64_t size = info(dtype).block_bytes;
    if (info(dtype).block_elems != 1 || buffer.bytes() / size < buckets_[size_t(bucket)].end())
      return usage_error(fmt::format("gather_slices: found a buffer of {} bytes, expected {} elements of {}",
                                     buffer.bytes(), buckets_[size_t(bucket)].end(), info(dtype).name));
    char* const base = buffer.as<char>() + buckets_[size_t(bucket)].begin() * size;
    const nccl::Parts parts = parts_of(bucket, size);
    return comm_.run(stream, "all_gather of weights", [&](void* on) {
      return nccl::gather(*comm_.api_, comm_.comm_, parts.at(base, comm_.rank()), base, parts, comm_.rank(), on);
    });
  }

 private:
  struct State {
    bool posted = false, published = false;
    Event reduced;
  };
  Status check(const char* call, int bucket) const {
    if (bucket >= 0 && bucket < std::ssize(buckets_)) return comm_.failure_;
    return usage_error(fmt::format("{}: found bucket {}, expected 0 to {}", call, bucket, std::ssize(buckets_) - 1));
  }
  nccl::Parts parts_of(int bucket, int64_t elem_bytes) const {
    const std::vector<int64_t>& cut = buckets_[size_t(bucket)].cut;
    std::vector<int64_t> elems;
    for (size_t r = 0; r + 1 < cut.size(); ++r) elems.push_back(cut[r + 1] - cut[r]);
    return nccl::Parts(elems, elem_bytes);
  }

  NcclCommunicator& comm_;
  SharedBuffer grads_;
  std::vector<Bucket> buckets_;
  std::vector<State> states_;
};

Result<std::unique_ptr<GradientExchange>> NcclCommunicator::new_exchange(const SharedBuffer& grads,
                                                                         std::vector<Bucket> buckets) {
  LLMOPS_TRY(check_buckets(buckets, world_, grads.bytes() / int64_t{sizeof(float)}));
  const int64_t mine = fingerprint(buckets);
  LLMOPS_ASSIGN(const std::vector<int64_t> prints, meet(std::span(&mine, 1)));
  for (int r = 0; r < world_; ++r)
    if (prints[size_t(r)] != mine) return usage_error(fmt::format("exchange: {} gave other buckets", host_->name_of(r)));
  if (world_ == 1) return usage_error("exchange: a group of one has nothing to exchange");
  return std::unique_ptr<GradientExchange>(std::make_unique<NcclExchange>(*this, grads, std::move(buckets)));
}

}  // namespace llmops
