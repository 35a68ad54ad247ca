#include "comm/exchange.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "comm/fold.h"

namespace llmops {

int64_t fingerprint(const std::vector<Bucket>& buckets) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const Bucket& bucket : buckets)
    for (int64_t cut : bucket.cut) hash = (hash ^ static_cast<uint64_t>(cut)) * 0x100000001b3;
  return static_cast<int64_t>(hash);
}

Status check_buckets(const std::vector<Bucket>& buckets, int world, int64_t elems) {
  for (size_t b = 0; b < buckets.size(); ++b) {
    const std::vector<int64_t>& cut = buckets[b].cut;
    const bool ascends = std::ssize(cut) == world + 1 && std::is_sorted(cut.begin(), cut.end());
    if (!ascends || cut.front() < 0 || cut.back() > elems)
      return usage_error(
          fmt::format("bucket {}: expected {} ascending offsets within {} elements", b, world + 1, elems));
  }
  return Status();
}

Bucket even_bucket(int64_t begin, int64_t count, int world, int64_t grain) {
  Bucket bucket;
  const int64_t grains = ceil_div(count, grain);
  for (int r = 0; r <= world; ++r)
    bucket.cut.push_back(begin + std::min(count, (grains / world * r + std::min<int64_t>(r, grains % world)) * grain));
  return bucket;
}

Result<std::unique_ptr<GradientExchange>> LocalCommunicator::new_exchange(const SharedBuffer& grads,
                                                                          std::vector<Bucket> buckets) {
  return LocalExchange::open(*this, grads, std::move(buckets));
}

Result<std::unique_ptr<GradientExchange>> LocalExchange::open(LocalCommunicator& comm, const SharedBuffer& grads,
                                                              std::vector<Bucket> buckets) {
  const Status valid = grads.common() ? usage_error("exchange: found a common buffer, expected each rank's own one")
                                      : check_buckets(buckets, comm.world(), grads.bytes() / 4);
  const int64_t print = valid.ok() ? fingerprint(buckets) : 0;
  LLMOPS_ASSIGN(const auto prints, comm.exchange(Call::new_exchange, {print, valid.ok()}));
  LLMOPS_TRY(valid);
  for (int r = 0; r < comm.world(); ++r)
    if (prints[r].first != print || prints[r].second == 0)
      return usage_error(fmt::format("exchange: {} gave other buckets", comm.name_of(r)));
  const int64_t bytes = std::ssize(buckets) * comm.world() * static_cast<int64_t>(sizeof(Flags));
  LLMOPS_ASSIGN(SharedBuffer flags, comm.alloc_common(bytes, Category::comm));
  return std::unique_ptr<GradientExchange>(new LocalExchange(comm, grads, std::move(buckets), flags));
}

LocalExchange::LocalExchange(LocalCommunicator& comm, const SharedBuffer& grads, std::vector<Bucket> buckets,
                             SharedBuffer flags)
    : comm_(comm), grads_(grads), buckets_(std::move(buckets)), flags_(flags), issued_(buckets_.size()) {}

std::atomic<uint64_t>& LocalExchange::flag(Flag which, int bucket, int rank) const {
  return flags_.as<Flags>()[bucket * comm_.world() + rank].*which;
}

bool LocalExchange::all_reached(Flag which, int bucket, uint64_t count) const {
  for (int r = 0; r < comm_.world(); ++r)
    if (flag(which, bucket, r).load() < count) return false;
  return true;
}

Status LocalExchange::raise(Flag which, int bucket, uint64_t count) {
  flag(which, bucket, comm_.rank()).store(count);
  comm_.segment_->ring();
  return Status();
}

Status LocalExchange::await(Flag which, int bucket, uint64_t count, const char* what, const char* verb) {
  return comm_.await([&] { return fmt::format("{} of bucket {}", what, bucket); }, verb,
                     [&] { return all_reached(which, bucket, count); },
                     [&](int r) { return flag(which, bucket, r).load() < count; });
}

Status LocalExchange::check(const char* call, int bucket) const {
  if (bucket >= 0 && bucket < std::ssize(buckets_)) return Status();
  return usage_error(fmt::format("{}: found bucket {}, expected 0 to {}", call, bucket, std::ssize(buckets_) - 1));
}

Status LocalExchange::post(Stream& stream, int bucket) {
  LLMOPS_TRY(check("post", bucket));
  if (issued_[bucket].posts != issued_[bucket].folds)
    return usage_error(fmt::format("post: bucket {} was posted before and not reduced since", bucket));
  const uint64_t count = ++issued_[bucket].posts;
  stream.enqueue([this, bucket, count] { return raise(&Flags::posted, bucket, count); }, "comm");
  return Status();
}

bool LocalExchange::ready(int bucket) const {
  return check("ready", bucket).ok() && all_reached(&Flags::posted, bucket, issued_[bucket].folds + 1);
}

Status LocalExchange::reduce_slice(Stream& stream, int bucket) {
  LLMOPS_TRY(check("reduce_slice", bucket));
  if (issued_[bucket].posts != issued_[bucket].folds + 1)
    return usage_error(fmt::format("reduce_slice: bucket {} has not been posted", bucket));
  const uint64_t count = ++issued_[bucket].folds;
  stream.enqueue(
      [this, bucket, count]() -> Status {
        LLMOPS_TRY(await(&Flags::posted, bucket, count, "gradients", "post"));
        return comm_.timed([&] {
          const int64_t begin = buckets_[bucket].cut[comm_.rank()];
          const void* sources[kRanksMax];
          for (int r = 0; r < comm_.world(); ++r) sources[r] = static_cast<float*>(grads_.peer(r)) + begin;
          fold_ranks(comm_.device_.pool(), DType::f32, ReduceOp::sum, sources, comm_.world(),
                     grads_.as<float>() + begin, buckets_[bucket].cut[comm_.rank() + 1] - begin);
          return Status();
        });
      },
      "comm");
  return Status();
}

Status LocalExchange::publish_slice(Stream& stream, int bucket) {
  LLMOPS_TRY(check("publish_slice", bucket));
  const uint64_t count = ++issued_[bucket].publications;
  stream.enqueue([this, bucket, count] { return raise(&Flags::published, bucket, count); }, "comm");
  return Status();
}

Status LocalExchange::gather_slices(Stream& stream, int bucket, const SharedBuffer& buffer, DType dtype) {
  LLMOPS_TRY(check("gather_slices", bucket));
  const int64_t size = info(dtype).block_bytes;
  const uint64_t count = issued_[bucket].publications;
  if (count == 0) return usage_error(fmt::format("gather_slices: bucket {} has not been published", bucket));
  if (info(dtype).block_elems != 1 || buffer.bytes() / size < buckets_[bucket].end())
    return usage_error(fmt::format("gather_slices: found a buffer of {} bytes, expected {} elements of {}",
                                   buffer.bytes(), buckets_[bucket].end(), info(dtype).name));
  stream.enqueue(
      [this, bucket, count, buffer, size]() -> Status {
        LLMOPS_TRY(await(&Flags::published, bucket, count, "weights", "publish"));
        if (buffer.common()) return Status();
        return comm_.timed([&] {
          const std::vector<int64_t>& cut = buckets_[bucket].cut;
          for (int r = 0; r < comm_.world(); ++r)
            copy_bytes(comm_.device_.pool(), buffer.as<char>() + cut[r] * size,
                       static_cast<char*>(buffer.peer(r)) + cut[r] * size, (cut[r + 1] - cut[r]) * size);
          return Status();
        });
      },
      "comm");
  return Status();
}

TensorView SharedBuffer::view(DType dtype, std::initializer_list<int64_t> dims, int64_t byte_offset) const {
  const TensorView view = dense_view(static_cast<void*>(static_cast<char*>(data()) + byte_offset), dtype, dims, device_);
  const auto bytes = bytes_of(dtype, view.elems());
  if (!bytes || byte_offset < 0 || byte_offset > bytes_ || *bytes > bytes_ - byte_offset) std::abort();
  return view;
}

}  // namespace llmops
