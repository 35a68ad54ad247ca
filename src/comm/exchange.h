// The gradient exchange over shared memory: a word per (bucket, rank) says what has been posted, peers read in place.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "comm/local.h"

namespace llmops {

class LocalExchange final : public GradientExchange {
 public:
  static Result<std::unique_ptr<GradientExchange>> open(LocalCommunicator& comm, const SharedBuffer& grads,
                                                        std::vector<Bucket> buckets);
  Status post(Stream& stream, int bucket) override;
  bool ready(int bucket) const override;
  Status reduce_slice(Stream& stream, int bucket) override;
  Status publish_slice(Stream& stream, int bucket) override;
  Status gather_slices(Stream& stream, int bucket, const SharedBuffer& buffer, DType dtype) override;

 private:
  // How often a rank has posted a bucket's gradients and published its parameters: written by that rank only.
  struct Flags {
    std::atomic<uint64_t> posted;
    std::atomic<uint64_t> published;
  };
  using Flag = std::atomic<uint64_t> Flags::*;
  // How often this rank has issued each call.
  struct Issued {
    uint64_t posts = 0, folds = 0, publications = 0;
  };

  LocalExchange(LocalCommunicator& comm, const SharedBuffer& grads, std::vector<Bucket> buckets, SharedBuffer flags);
  std::atomic<uint64_t>& flag(Flag which, int bucket, int rank) const;
  bool all_reached(Flag which, int bucket, uint64_t count) const;
  Status raise(Flag which, int bucket, uint64_t count);
  Status await(Flag which, int bucket, uint64_t count, const char* what, const char* verb);
  Status check(const char* call, int bucket) const;

  LocalCommunicator& comm_;
  SharedBuffer grads_;
  std::vector<Bucket> buckets_;
  SharedBuffer flags_;
  std::vector<Issued> issued_;
};

}  // namespace llmops
