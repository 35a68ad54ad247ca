// A Communicator among CUDA devices, one a rank, over NCCL.
//
// The ranks of a launch have a second group, on the host: it carries NCCL's id and the counts of calls whose ranks may
// differ, knows which rank has issued what, and spreads the reason when one fails. So a rank that is missing is named, and
// whoever finds a failure first (NCCL's asynchronous error, a call that is not through by the deadline, a rank that is
// gone) ends the others too. A call is looked after while the host waits for a stream.
//
// All calls of a group run on one stream of its own, in the order of their issue; the caller's stream waits for what it
// gave and goes on beside what it did not (GradientExchange). Sums over more than two ranks are in NCCL's order: equal
// from run to run of one layout, not between layouts. max and min pass on a NaN as NCCL does, not always.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "comm/nccl_api.h"

namespace llmops {

// The group on the host.
class HostGroup {
 public:
  static Result<std::unique_ptr<HostGroup>> open(std::shared_ptr<Device> host, std::unique_ptr<Communicator> comm);
  int rank() const { return comm_->rank(); }
  int world() const { return comm_->world(); }
  // As many numbers of each rank, by rank. Waits for all.
  Result<std::vector<int64_t>> gather(std::span<const int64_t> mine);
  Result<std::unique_ptr<HostGroup>> split(int color, int key);
  void abort(const std::string& reason) { comm_->abort(reason); }
  Status health() const { return comm_->health(); }
  std::string name_of(int rank) const;  // "rank 1 (pid 123)"; of this group
  // How many calls of all ranks a rank has issued, and how many of these its device has come to. -1: it has not joined NCCL.
  struct Progress {
    alignas(64) std::atomic<int64_t> issued;
    std::atomic<int64_t> begun;
  };
  Progress& progress(int rank) const { return progress_.as<Progress>()[rank]; }
  // The ranks whose count is below `number`, by name.
  std::string behind(std::atomic<int64_t> Progress::* count, int64_t number) const;

 private:
  std::shared_ptr<Device> host_;
  std::unique_ptr<Communicator> comm_;
  SharedBuffer progress_;
  std::vector<int64_t> pids_;
};

class NcclCommunicator final : public Communicator {
 public:
  // Collective over the host group. A group of one needs no NCCL.
  static Result<std::unique_ptr<Communicator>> open(Device& device, std::unique_ptr<HostGroup> host,
                                                    const CommOptions& options);
  ~NcclCommunicator() override;

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
  void abort(const std::string& reason) override;
  Status health() const override;
  CommTime time() const override { return time_; }

 private:
  friend class NcclExchange;
  // A call on its way. It has begun when its ranks' streams have come to it: only then the deadline counts.
  struct Pending {
    int64_t number;  // of the calls of all ranks; 0: a message
    const char* name;
    int peer;        // of a message
    Event begin, end;
    double begun_s = 0;  // 0: not seen to have begun
  };

  static constexpr int kAll = -1;  // for `peer`: the call is of all ranks

  NcclCommunicator(Device& device, std::unique_ptr<HostGroup> host, const CommOptions& options);
  Status connect();
  Status check(const char* name, const ConstTensorView& view) const;
  // Issues call(stream) after what `stream` has now; the Event is its end.
  template <class Call>
  Result<Event> start(Stream& stream, const char* name, const Call& call, int peer = kAll);
  // The same, and `stream` goes on after it.
  template <class Call>
  Status run(Stream& stream, const char* name, const Call& call, int peer = kAll);
  Status settle(nccl::Code code, const char* name);  // until a call of NCCL is no longer in progress
  nccl::Code ask() const;                            // how NCCL says that the group is
  Status look();                                     // for failures of what is on its way
  Status fail(const std::string& reason);            // ends the group
  Status overdue(const Pending& call);
  std::string name_of(const Pending& call) const;
  // host_->gather() after all that this rank has issued is through: while it waits on the host nobody looks after its
  // calls, and others that wait for these would take its device for late.
  Result<std::vector<int64_t>> meet(std::span<const int64_t> mine);
  Result<std::vector<int64_t>> counts(const char* name, const ConstTensorView& mine);
  Result<SharedBuffer> own_buffer(int64_t bytes, Category category);

  Device& device_;
  std::unique_ptr<HostGroup> host_;
  CommOptions options_;
  const nccl::Api* api_ = nullptr;
  nccl::Comm comm_ = nullptr;  // null in a group of one, and after a failure
  std::unique_ptr<Stream> side_;
  std::deque<Pending> pending_;
  std::vector<Buffer> buffers_;
  Buffer barrier_;
  int64_t issued_ = 0;
  int watch_ = 0;
  Status failure_;
  CommTime time_;
};

}  // namespace llmops
