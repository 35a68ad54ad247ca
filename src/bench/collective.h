// Bandwidth of collectives, after a check that they give the right sums.
#pragma once

#include "comm/comm.h"

namespace llmops {

struct CollectiveRate {
  int64_t bytes = 0;      // of the buffer
  double time_us = 0;     // median of one all-reduce
  double algbw_bytes_per_s = 0;
  double busbw_bytes_per_s = 0;  // bytes / s * 2(p-1)/p: link speed of a ring for any p (nccl-tests, PERFORMANCE.md); 0 at p = 1
  int64_t wrong = 0;      // elements that differ from the exact sum
};

// All ranks call it. The inputs are small integers, whose sum is exact in f32 in any order.
Result<CollectiveRate> measure_all_reduce(Device& device, Communicator& comm, int64_t bytes, double seconds);

}  // namespace llmops
