// Communicator: one rank's membership in a group of ranks, and the collectives among them.
//
// Every collective is enqueued on a Stream; all ranks of the group issue the same collectives in the same order, on one
// stream or on streams ordered by Events (a run out of order is found and refused). Views are dense; the communicator
// and the memory outlive the work. What differs between ranks (kind, counts, dtype) is found when the ranks meet and
// returned by sync(), like a missing rank: Code::peer, "all_reduce #12: rank 1 (pid 123) did not arrive within 30 s".
// After any such failure the group is aborted: every rank's next or waiting collective fails, naming the first reason.
//
// Reductions are owned by slices and folded element by element in one fixed order, a balanced binary tree over ranks:
// [0,R) = [0,h) + [h,R) with h the largest power of two below R. Results do not depend on who arrives first, on sizes
// or on thread counts, and are the same bits on every rank. max and min give NaN when any input is NaN.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/runtime.h"
#include "kernels/tensor.h"

namespace llmops {

constexpr int kRanksMax = 64;

enum class ReduceOp : uint8_t { sum, max, min };

// Memory that the peers of a group may read, where the transport has such (else peer() is my own part only). A copyable handle; the memory is zero-filled, 64-byte aligned and lives as
// long as the communicator that gave it (or any other of the same launch).
class SharedBuffer {
 public:
  void* data() const { return base_ + rank_ * stride_; }
  int64_t bytes() const { return bytes_; }
  bool common() const { return common_; }
  Category category() const { return category_; }
  template <class T>
  T* as() const { return static_cast<T*>(data()); }
  // The same-numbered allocation of another rank of the group, which may hold fewer or more bytes.
  void* peer(int rank) const { return base_ + rank * stride_; }
  // A dense view of my own bytes; the caller asks for no more than bytes() (checked, aborts otherwise).
  TensorView view(DType dtype, std::initializer_list<int64_t> dims, int64_t byte_offset = 0) const;

 private:
  friend class LocalCommunicator;
  friend class NcclCommunicator;
  char* base_ = nullptr;
  int64_t stride_ = 0;  // bytes from one rank's part to the next; 0: there is one part
  bool common_ = false;
  DeviceId device_;
  int64_t bytes_ = 0;
  int rank_ = 0;
  Category category_ = Category::comm;
};

// A range of a flat buffer, cut among ranks: rank r owns elements [cut[r], cut[r + 1]). Slices may be uneven or empty.
struct Bucket {
  std::vector<int64_t> cut;  // world + 1 ascending element offsets
  int64_t begin() const { return cut.front(); }
  int64_t end() const { return cut.back(); }
};
// Elements [begin, begin + count) in slices that are multiples of `grain` (the last non-empty one may be shorter).
Bucket even_bucket(int64_t begin, int64_t count, int world, int64_t grain);
// Are all cuts ascending, one more than ranks, and within a buffer of so many elements?
Status check_buckets(const std::vector<Bucket>& buckets, int world, int64_t elems);
// Two plans that differ anywhere give another number with near certainty: FNV-1a over the offsets.
int64_t fingerprint(const std::vector<Bucket>& buckets);

// The data-parallel exchange of a step, without a progress thread: gradients are published bucket by bucket while
// backward goes on, and the compute thread folds its slice of whatever bucket is ready whenever it likes. Buckets are
// folded in any order, which may differ between ranks.
//
//   backward:  post(s, b) as bucket b is complete; between blocks: if (ready(b)) reduce_slice(s, b)
//   then:      reduce_slice(s, b) for the rest (waits); norm and vote by all_reduce; update own slices;
//              publish_slice(s, b) for all b, gather_slices(s, b, params, dtype) for all b
//
// Each bucket takes post and reduce_slice in turn, once per step. A rank may write its gradients again, outside of its
// own slices too, once gather_slices (or an all_reduce that was issued after the reduce_slice calls) is done.
class GradientExchange {
 public:
  virtual ~GradientExchange() = default;
  // My gradients of this bucket are complete and stay untouched; peers may read them.
  virtual Status post(Stream& stream, int bucket) = 0;
  // Have all ranks, this one too, posted a bucket that I have not folded yet? Never blocks.
  virtual bool ready(int bucket) const = 0;
  // Sums my slice of the bucket over all ranks into my own gradient buffer. Waits for posts until the deadline.
  virtual Status reduce_slice(Stream& stream, int bucket) = 0;
  // My slice of every parameter buffer is updated.
  virtual Status publish_slice(Stream& stream, int bucket) = 0;
  // Waits until all ranks have published the bucket, then copies the peers' slices of `buffer` (elements at the same
  // offsets as in the gradients) into my own. A common() buffer needs no copy, only the wait.
  virtual Status gather_slices(Stream& stream, int bucket, const SharedBuffer& buffer, DType dtype) = 0;
};

// Time that the thread of this rank has spent in communication: exposed, as there is no other thread.
struct CommTime {
  double wait_s = 0;  // for peers
  double work_s = 0;  // copying and folding
};

struct CommOptions {
  double deadline_s = 30;  // longest wait for a peer in one collective
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  int rank() const { return rank_; }
  int world() const { return world_; }

  // In place. dtype f32, f64 or i64 (a sum of i64 wraps).
  virtual Status all_reduce(Stream& stream, TensorView data, ReduceOp op = ReduceOp::sum) = 0;
  // `all` = the ranks' `mine` in rank order; counts may differ. `mine` may lie at its place within `all`.
  virtual Status all_gather(Stream& stream, ConstTensorView mine, TensorView all) = 0;
  // `in` has the same count on every rank and is cut in rank order by the ranks' `mine`, whose counts may differ.
  virtual Status reduce_scatter(Stream& stream, ConstTensorView in, TensorView mine, ReduceOp op = ReduceOp::sum) = 0;
  virtual Status broadcast(Stream& stream, TensorView data, int root) = 0;
  // `in` is cut into `world` parts of send_counts elements (empty: equal parts); part r goes to rank r. `out` = the
  // received parts in rank order. Must not overlap.
  virtual Status all_to_all(Stream& stream, ConstTensorView in, TensorView out,
                            std::span<const int64_t> send_counts = {}) = 0;
  // Messages between two ranks arrive in order; counts and dtypes of the two sides are equal. send may return before
  // the message was received and may wait until it is: two ranks that both send first may deadlock.
  virtual Status send(Stream& stream, ConstTensorView data, int to) = 0;
  virtual Status recv(Stream& stream, TensorView data, int from) = 0;
  virtual Status barrier(Stream& stream) = 0;

  // The rest is collective too (abort is not), but runs at once: not enqueued.
  // The group of all ranks that gave the same color (>= 0), ordered by (key, rank).
  virtual Result<std::unique_ptr<Communicator>> split(int color, int key) = 0;
  // My own part of a shared allocation; ranks may ask for different sizes.
  virtual Result<SharedBuffer> alloc(int64_t bytes, Category category) = 0;
  // One memory for all ranks of the group; all ask for the same size. Counted on rank 0. A transport without shared memory
  // gives each rank a copy of its own, which is not common(): gather_slices() brings the peers' parts.
  virtual Result<SharedBuffer> alloc_common(int64_t bytes, Category category) = 0;
  // `grads` is a flat f32 buffer from alloc(); all ranks give the same buckets.
  virtual Result<std::unique_ptr<GradientExchange>> new_exchange(const SharedBuffer& grads,
                                                                 std::vector<Bucket> buckets) = 0;
  // Makes every collective of every rank fail from now on. The first reason is kept.
  virtual void abort(const std::string& reason) = 0;
  // Code::peer with the reason when the group was aborted (by a rank, or by the parent when a rank died). Never blocks;
  // long work between collectives may poll it.
  virtual Status health() const = 0;
  virtual CommTime time() const = 0;

 protected:
  int rank_ = 0;
  int world_ = 1;
};

struct Launch;  // comm/launch.h
// The communicator of this process as parse_launch_env() found it; a group of one for a process on its own.
// Collective: returns when all ranks are there. The device must outlive it.
Result<std::unique_ptr<Communicator>> open_communicator(Device& device, const Launch& launch,
                                                        const CommOptions& options = {});

}  // namespace llmops
