#include "comm/local.h"

#include <fmt/format.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/checked.h"
#include "comm/launch.h"
#include "comm/nccl.h"

namespace llmops {
namespace {

constexpr const char* kCallNames[] = {"open",      "all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                      "all_to_all", "barrier",   "split",      "alloc",          "new_exchange"};

std::string name_of_call(const Notice& notice) {
  return fmt::format("{} #{}", kCallNames[static_cast<int>(notice.call)], notice.number);
}

uint64_t stages_at(int world) {
  return static_cast<uint64_t>(world) * sizeof(Seat) + static_cast<uint64_t>(world) * world * sizeof(Channel);
}

uint64_t block_bytes(int world) {
  return stages_at(world) + static_cast<uint64_t>(world) * LocalCommunicator::kStageBytes;
}

}  // namespace

Result<std::shared_ptr<Segment>> create_group(int world) {
  LLMOPS_ASSIGN(std::shared_ptr<Segment> segment, Segment::create(world));
  LLMOPS_TRY(segment->extend(block_bytes(world)).status());  // the first: lies at kHeaderBytes
  return segment;
}

LocalCommunicator::LocalCommunicator(std::shared_ptr<Segment> segment, char* block, std::vector<int> members, int rank,
                                     Device& device, const CommOptions& options)
    : segment_(std::move(segment)), block_(block), members_(std::move(members)), device_(device), options_(options) {
  rank_ = rank;
  world_ = static_cast<int>(members_.size());
  device_.note_external(Category::comm, kStageBytes + static_cast<int64_t>(sizeof(Seat)));
}

Result<std::unique_ptr<Communicator>> LocalCommunicator::open(std::shared_ptr<Segment> segment, int rank,
                                                              Device& device, const CommOptions& options) {
  const int world = segment->world();
  if (rank < 0 || rank >= world) return usage_error(fmt::format("rank: found {}, expected 0 to {}", rank, world - 1));
  int32_t nobody = 0;
  if (!segment->header().pid[rank].compare_exchange_strong(nobody, getpid()))
    return peer_error(fmt::format("rank {}: is taken by process {}", rank, nobody));
  LLMOPS_ASSIGN(char* block, segment->at(Segment::kHeaderBytes, block_bytes(world)));
  std::vector<int> members;
  for (int r = 0; r < world; ++r) members.push_back(r);
  std::unique_ptr<LocalCommunicator> comm(
      new LocalCommunicator(std::move(segment), block, std::move(members), rank, device, options));
  LLMOPS_TRY(comm->exchange(Call::open, {}).status());
  return std::unique_ptr<Communicator>(std::move(comm));
}

Channel& LocalCommunicator::channel(int from, int to) const {
  auto* first = reinterpret_cast<Channel*>(block_ + static_cast<size_t>(world_) * sizeof(Seat));
  return first[from * world_ + to];
}

char* LocalCommunicator::stage(int rank) const { return block_ + stages_at(world_) + rank * kStageBytes; }

Status LocalCommunicator::fail(const Name& name, const std::string& problem) {
  const std::string message = name() + ": " + problem;
  segment_->abort(fmt::format("rank {}: {}", members_[rank_], message));
  return peer_error(message);
}

Status LocalCommunicator::await(const Name& name, const char* verb, const std::function<bool()>& done,
                                const std::function<bool(int)>& behind) {
  const auto gone = [&](int r) { return behind(r) && !segment_->alive(members_[r]); };
  const auto lost = [&] {
    for (int r = 0; r < world_; ++r)
      if (gone(r)) return true;
    return false;
  };
  const double begin_s = monotonic_s();
  const Segment::WaitEnd end = segment_->wait(done, lost, options_.deadline_s);
  time_.wait_s += monotonic_s() - begin_s;
  if (end == Segment::WaitEnd::done) return Status();
  if (end == Segment::WaitEnd::aborted) return segment_->aborted();
  std::string who;
  for (int r = 0; r < world_; ++r)
    if (end == Segment::WaitEnd::lost ? gone(r) : behind(r)) who += (who.empty() ? "" : ", ") + name_of(r);
  if (end == Segment::WaitEnd::lost) return fail(name, who + " ended before its peers");
  return fail(name, fmt::format("{} did not {} within {} s", who, verb, options_.deadline_s));
}

Status LocalCommunicator::meet(const Notice& mine) {
  const uint64_t meeting = ++meetings_;
  seat(rank_).meetings.store(meeting);
  segment_->ring();
  const auto behind = [this, meeting](int r) { return seat(r).meetings.load() < meeting; };
  const auto done = [&] {
    for (int r = 0; r < world_; ++r)
      if (behind(r)) return false;
    return true;
  };
  return await([&mine] { return name_of_call(mine); }, "arrive", done, behind);
}

Status LocalCommunicator::arrive(const Notice& mine) {
  const Name name = [&mine] { return name_of_call(mine); };
  if (mine.number != ++calls_run_)
    return fail(name, fmt::format("runs before #{}, which was issued first: order their streams by an Event or sync",
                                  calls_run_));
  seat(rank_).notice[mine.number & 1] = mine;
  LLMOPS_TRY(meet(mine));
  for (int r = 0; r < world_; ++r) {
    const Notice& theirs = notice(r, mine.number);
    if (theirs.call != mine.call)
      return fail(name, fmt::format("{} called {} instead", name_of(r), name_of_call(theirs)));
    if (theirs.dtype != mine.dtype || theirs.op != mine.op || theirs.root != mine.root)
      return fail(name, fmt::format("{} gave another dtype, reduction or root", name_of(r)));
  }
  return Status();
}

Result<std::vector<LocalCommunicator::Pair>> LocalCommunicator::exchange(Call call, Pair mine) {
  Notice notice_of_mine = {};
  notice_of_mine.call = call;
  notice_of_mine.number = ++calls_issued_;
  notice_of_mine.elems = mine.first;
  notice_of_mine.part = mine.second;
  LLMOPS_TRY(arrive(notice_of_mine));
  std::vector<Pair> all;
  for (int r = 0; r < world_; ++r) {
    const Notice& theirs = notice(r, notice_of_mine.number);
    all.push_back({theirs.elems, theirs.part});
  }
  return all;
}

Result<std::unique_ptr<Communicator>> LocalCommunicator::split(int color, int key) {
  LLMOPS_ASSIGN(const std::vector<Pair> wishes, exchange(Call::split, {color, key}));
  std::vector<int> chosen;  // ranks of this group
  for (int r = 0; r < world_; ++r) {
    if (wishes[r].first < 0)
      return usage_error(fmt::format("split: {} gave color {}, expected 0 or more", name_of(r), wishes[r].first));
    if (wishes[r].first == color) chosen.push_back(r);
  }
  std::stable_sort(chosen.begin(), chosen.end(), [&](int a, int b) { return wishes[a].second < wishes[b].second; });
  const int world = static_cast<int>(chosen.size());
  const bool leader = chosen[0] == rank_;
  Result<uint64_t> room = leader ? segment_->extend(block_bytes(world)) : Result<uint64_t>(uint64_t{0});
  const int64_t offset_or_none = room.ok() ? static_cast<int64_t>(*room) : -1;
  LLMOPS_ASSIGN(const std::vector<Pair> rooms, exchange(Call::split, {offset_or_none, 0}));
  LLMOPS_TRY(room.status());
  if (rooms[chosen[0]].first < 0) return io_error(fmt::format("split: {} found no shared memory", name_of(chosen[0])));
  LLMOPS_ASSIGN(char* block, segment_->at(static_cast<uint64_t>(rooms[chosen[0]].first), block_bytes(world)));
  std::vector<int> members;
  for (int r : chosen) members.push_back(members_[r]);
  const int rank = static_cast<int>(std::find(chosen.begin(), chosen.end(), rank_) - chosen.begin());
  return std::unique_ptr<Communicator>(
      new LocalCommunicator(segment_, block, std::move(members), rank, device_, options_));
}

Result<SharedBuffer> LocalCommunicator::alloc(int64_t bytes, Category category) {
  return alloc(bytes, category, false);
}

Result<SharedBuffer> LocalCommunicator::alloc_common(int64_t bytes, Category category) {
  return alloc(bytes, category, true);
}

Result<SharedBuffer> LocalCommunicator::alloc(int64_t bytes, Category category, bool common) {
  LLMOPS_ASSIGN(const std::vector<Pair> wishes, exchange(Call::alloc, {bytes, common}));
  int64_t longest = 0;
  for (int r = 0; r < world_; ++r) {
    if (wishes[r].first < 0 || wishes[r].first > int64_t{1} << 46 || wishes[r].second != common ||
        (common && wishes[r].first != bytes))
      return fail([] { return std::string("alloc"); },
                  fmt::format("{} asked for {} bytes, I for {}", name_of(r), wishes[r].first, bytes));
    longest = std::max(longest, wishes[r].first);
  }
  const int64_t stride = round_up(longest, static_cast<int64_t>(Segment::kPage));
  const uint64_t whole = static_cast<uint64_t>(stride) * (common ? 1 : world_);
  Result<uint64_t> room = rank_ == 0 ? segment_->extend(whole) : Result<uint64_t>(uint64_t{0});
  const int64_t offset_or_none = room.ok() ? static_cast<int64_t>(*room) : -1;
  LLMOPS_ASSIGN(const std::vector<Pair> rooms, exchange(Call::alloc, {offset_or_none, 0}));
  LLMOPS_TRY(room.status());
  if (rooms[0].first < 0) return io_error(fmt::format("shared memory: {} could not allocate it", name_of(0)));

  const uint64_t offset = static_cast<uint64_t>(rooms[0].first);
  LLMOPS_ASSIGN(char* base, segment_->at(offset, whole));
  SharedBuffer buffer;
  buffer.base_ = base;
  buffer.stride_ = common ? 0 : stride;
  buffer.common_ = common;
  buffer.bytes_ = bytes;
  buffer.rank_ = rank_;
  buffer.category_ = category;
  if (bytes == 0 || (common && rank_ != 0)) return buffer;
  // Taking the pages now turns a lack of memory into an error; at first use it would be a SIGBUS.
  const off_t mine_at = static_cast<off_t>(offset) + static_cast<off_t>(rank_ * buffer.stride_);
  if (fallocate(segment_->fd(), 0, mine_at, bytes) != 0) {
    const std::string problem = fmt::format("shared memory: cannot hold {} bytes for {}: {}", bytes,
                                            llmops::name_of(category), strerror(errno));
    segment_->abort(fmt::format("rank {}: {}", members_[rank_], problem));
    return io_error(problem);
  }
  device_.note_external(category, bytes);
  return buffer;
}

namespace {

// On CUDA devices NCCL moves the data; the ranks meet on the host as on a CPU.
Result<std::unique_ptr<Communicator>> open_nccl(Device& device, const Launch& launch, const CommOptions& options) {
  LLMOPS_ASSIGN(std::unique_ptr<Device> made, Device::open_cpu({.threads = 1}));
  const std::shared_ptr<Device> host = std::move(made);
  LLMOPS_ASSIGN(std::unique_ptr<Communicator> meeting, open_communicator(*host, launch, options));
  LLMOPS_ASSIGN(std::unique_ptr<HostGroup> group, HostGroup::open(host, std::move(meeting)));
  return NcclCommunicator::open(device, std::move(group), options);
}

}  // namespace

Result<std::unique_ptr<Communicator>> open_communicator(Device& device, const Launch& launch,
                                                        const CommOptions& options) {
  if (device.kind() == DeviceKind::cuda) return open_nccl(device, launch, options);
  if (launch.role == Launch::Role::parent)
    return usage_error("communicator: this process starts ranks and is none itself: call run_ranks");
  if (launch.role == Launch::Role::single) {
    LLMOPS_ASSIGN(std::shared_ptr<Segment> segment, create_group(1));
    return LocalCommunicator::open(std::move(segment), 0, device, options);
  }
  if (getppid() != launch.parent_pid)
    return peer_error(fmt::format("rank {}: its parent, process {}, has ended", launch.rank, launch.parent_pid));
  LLMOPS_ASSIGN(std::shared_ptr<Segment> segment, Segment::attach(launch.memory_fd));
  if (segment->world() != launch.world)
    return peer_error(fmt::format("shared memory file: is of {} ranks, expected {}", segment->world(), launch.world));
  return LocalCommunicator::open(std::move(segment), launch.rank, device, options);
}

}  // namespace llmops
