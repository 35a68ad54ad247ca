// The transport between processes (or threads, in tests) of one machine: a Communicator over a Segment.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/run.h"
#include "comm/comm.h"
#include "comm/segment.h"

namespace llmops {

enum class Call : uint8_t {
  open, all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, barrier, split, alloc, new_exchange,
};

// What a rank says on arriving at a collective. Peers compare `number`, `call`, `dtype`, `op` and `root` with theirs.
struct Notice {
  static constexpr int64_t kInlineBytes = 1024;
  int64_t number;
  Call call;
  DType dtype;
  ReduceOp op;
  int32_t root;
  int64_t elems;            // of the input
  int64_t part;             // of my output; calls that exchange numbers use both
  uint64_t direct;          // file offset of the input; 0: it is staged, piece by piece
  int64_t send_elems[kRanksMax];
  alignas(64) char data[kInlineBytes];
};

// A rank's place in a group block.
struct Seat {
  alignas(64) std::atomic<uint64_t> meetings;  // how often this rank has arrived
  // By parity of the call: a rank writes notice n + 2 only after all have arrived at n + 1, hence have read n.
  Notice notice[2];
};

// A stream of bytes from one rank to another.
struct Channel {
  static constexpr uint64_t kBytes = 128 << 10;
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> taken;
  alignas(64) char data[kBytes];
};

class LocalCommunicator final : public Communicator {
 public:
  // Private input is shown to peers in pieces of this size.
  static constexpr int64_t kStageBytes = 1 << 20;

  // Collective over the whole segment; `rank` in [0, segment->world()).
  static Result<std::unique_ptr<Communicator>> open(std::shared_ptr<Segment> segment, int rank, Device& device,
                                                    const CommOptions& options);

  Status all_reduce(Stream& stream, TensorView data, ReduceOp op) override;
  Status all_gather(Stream& stream, ConstTensorView mine, TensorView all) override;
  Status reduce_scatter(Stream& stream, ConstTensorView in, TensorView mine, ReduceOp op) override;
  Status broadcast(Stream& stream, TensorView data, int root) override;
  Status all_to_all(Stream& stream, ConstTensorView in, TensorView out, std::span<const int64_t> send_counts) override;
  Status send(Stream& stream, ConstTensorView data, int to) override;
  Status recv(Stream& stream, TensorView data, int from) override;
  Status barrier(Stream& stream) override;
  Result<std::unique_ptr<Communicator>> split(int color, int key) override;
  Result<SharedBuffer> alloc(int64_t bytes, Category category) override;
  Result<SharedBuffer> alloc_common(int64_t bytes, Category category) override;
  Result<std::unique_ptr<GradientExchange>> new_exchange(const SharedBuffer& grads,
                                                         std::vector<Bucket> buckets) override;
  void abort(const std::string& reason) override { segment_->abort(reason); }
  Status health() const override { return segment_->aborted(); }
  CommTime time() const override { return time_; }

 private:
  friend class LocalExchange;
  struct Inputs;
  struct Window;
  struct Pair {
    int64_t first, second;
  };
  using Name = std::function<std::string()>;  // what is going on, asked for only when it goes wrong

  LocalCommunicator(std::shared_ptr<Segment> segment, char* block, std::vector<int> members, int rank, Device& device,
                    const CommOptions& options);

  // local.cpp: ranks meet
  Seat& seat(int rank) const { return reinterpret_cast<Seat*>(block_)[rank]; }
  Channel& channel(int from, int to) const;
  char* stage(int rank) const;
  const Notice& notice(int rank, int64_t number) const { return seat(rank).notice[number & 1]; }
  std::string name_of(int rank) const { return segment_->name_of(members_[rank]); }
  // Waits for done(); of the ranks that are behind(), says "NAME: rank 1 (pid 123) did not VERB within 30 s".
  Status await(const Name& name, const char* verb, const std::function<bool()>& done,
               const std::function<bool(int)>& behind);
  Status fail(const Name& name, const std::string& problem);  // aborts the group
  Status meet(const Notice& mine);
  Status arrive(const Notice& mine);  // shows my notice, waits for all and compares theirs
  Result<std::vector<Pair>> exchange(Call call, Pair mine);
  Result<SharedBuffer> alloc(int64_t bytes, Category category, bool common);

  // local_collectives.cpp: data moves
  Status enqueue(Stream& stream, const Notice& shape, ConstTensorView in, TensorView out);
  Status run(const Notice& mine, const char* in, char* out);
  Status run_all_reduce(const Notice& mine, char* data);
  Status run_all_gather(const Notice& mine, const char* in, char* out);
  Status run_reduce_scatter(const Notice& mine, const char* in, char* out);
  Status run_broadcast(const Notice& mine, char* data);
  Status run_all_to_all(const Notice& mine, const char* in, char* out);
  template <class Visit>
  Status for_windows(const Notice& mine, const char* in, const Visit& visit);

  // local_messages.cpp
  Status write(const Name& name, int to, const void* data, int64_t bytes);
  Status read(const Name& name, int from, void* data, int64_t bytes);

  // Runs work and adds its duration, less the waiting within, to time_.
  template <class Work>
  Status timed(const Work& work) {
    const CommTime before = time_;
    const double begin_s = monotonic_s();
    Status status = work();
    time_.work_s += monotonic_s() - begin_s - (time_.wait_s - before.wait_s);
    return status;
  }

  std::shared_ptr<Segment> segment_;
  char* block_;               // Seat[world], Channel[world][world], then the stages
  std::vector<int> members_;  // the launch's rank of each rank of this group
  Device& device_;
  CommOptions options_;
  int64_t calls_issued_ = 0;  // collectives, enqueued or at once
  int64_t calls_run_ = 0;
  uint64_t meetings_ = 0;
  std::array<int64_t, kRanksMax> sends_ = {}, recvs_ = {};  // issued, by peer
  CommTime time_;
};

// A segment with room for the group of all its ranks.
Result<std::shared_ptr<Segment>> create_group(int world);
// An error unless `view` is dense host memory.
Status check_view(const char* call, const ConstTensorView& view);

}  // namespace llmops
