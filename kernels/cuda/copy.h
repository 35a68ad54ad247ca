// Copies from global to shared memory that go on while the thread computes (cp.async, sm_80 and later). PTX stands in
// this file and in mma.h only; the twin of the SIMT shim copies as late as it may, and what it will overwrite is NaN until
// then, so a missing wait or barrier is found.
#pragma once

#include "kernels/cuda/device.h"

#if defined(__CUDACC__) || defined(LLMOPS_SIMT)

namespace llmops::cuda {

// 16 bytes, both sides on 16 bytes. Only the first `bytes` are read; the rest of `to` becomes zero. With bytes == 0
// `from` is not read, but must still be on 16 bytes.
__device__ __forceinline__ void copy_async(void* to, const void* from, int bytes = 16) {
#ifdef LLMOPS_SIMT
  simt::copy_async(to, from, bytes);
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
#endif
}

// Ends a group: this thread's copies since the last one. A group may be empty.
__device__ __forceinline__ void copy_commit() {
#ifdef LLMOPS_SIMT
  simt::copy_commit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most kPending of this thread's newest groups are unfinished. Other threads see the data after a barrier.
template <int kPending>
__device__ __forceinline__ void copy_wait() {
#ifdef LLMOPS_SIMT
  simt::copy_wait(kPending);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace llmops::cuda

#endif
