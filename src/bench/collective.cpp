#include "bench/collective.h"

#include <algorithm>
#include <vector>

#include "base/run.h"

namespace llmops {
namespace {

constexpr int kValues = 61;  // prime, so the pattern does not repeat with any buffer cut

float value_of(int rank, int64_t i) { return static_cast<float>((i * (rank + 2) + rank) % kValues); }

}  // namespace

Result<CollectiveRate> measure_all_reduce(Device& device, Communicator& comm, int64_t bytes, double seconds) {
  Stream& stream = device.compute();
  const int64_t n = bytes / 4;
  LLMOPS_ASSIGN(const SharedBuffer buffer, comm.alloc(n * 4, Category::comm));
  const TensorView view = buffer.view(DType::f32, {n});
  LLMOPS_ASSIGN(const HostSide host, HostSide::of(device, buffer.data(), buffer.bytes()));
  auto* data = host.as<float>();
  for (int64_t i = 0; i < n; ++i) data[i] = value_of(comm.rank(), i);
  host.push(stream);
  LLMOPS_TRY(comm.all_reduce(stream, view));
  host.pull(stream);
  LLMOPS_TRY(stream.sync());
  CollectiveRate rate;
  rate.bytes = n * 4;
  for (int64_t i = 0; i < n; ++i) {
    float sum = 0;
    for (int rank = 0; rank < comm.world(); ++rank) sum += value_of(rank, i);
    if (!(data[i] == sum)) ++rate.wrong;
  }
  std::fill(data, data + n, 0.0f);  // repeated sums stay finite
  host.push(stream);
  LLMOPS_ASSIGN(const Buffer flags, device.alloc(8, Category::transient));
  LLMOPS_ASSIGN(const HostSide go_on, HostSide::of(device, flags));
  std::vector<double> times;
  const double stop_s = monotonic_s() + seconds;
  for (bool more = true; more;) {
    LLMOPS_TRY(comm.barrier(stream));
    LLMOPS_TRY(stream.sync());
    const double start_s = monotonic_s();
    LLMOPS_TRY(comm.all_reduce(stream, view));
    LLMOPS_TRY(stream.sync());
    times.push_back(monotonic_s() - start_s);
    *go_on.as<double>() = monotonic_s() < stop_s ? 1 : 0;  // all ranks stop together
    go_on.push(stream);
    LLMOPS_TRY(comm.all_reduce(stream, flags.view(DType::f64, {1}), ReduceOp::min));
    go_on.pull(stream);
    LLMOPS_TRY(stream.sync());
    more = *go_on.as<double>() > 0;
  }
  const double median_s = statistics(times).median;
  rate.time_us = median_s * 1e6;
  rate.algbw_bytes_per_s = static_cast<double>(rate.bytes) / median_s;
  rate.busbw_bytes_per_s = rate.algbw_bytes_per_s * 2 * (comm.world() - 1) / comm.world();
  return rate;
}

}  // namespace llmops
