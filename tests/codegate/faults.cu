// Kernels with the faults that the machine code gate is there for; faults.tsv is their budget, finds.sh the test.
#include <cuda_pipeline.h>

#include "kernels/cuda/copy.h"
#include "kernels/cuda/device.h"

namespace llmops::cuda {
namespace {

constexpr int kThreads = 256, kValues = 64;

template <int kCount>
__device__ __forceinline__ void reverse(const float* in, float* out) {
  float v[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) v[i] = in[i * kThreads + threadIdx.x];
  __syncthreads();  // all of v is live here
#pragma unroll
  for (int i = 0; i < kCount; ++i) out[i * kThreads + threadIdx.x] = v[kCount - 1 - i];
}

// Nothing is wrong with it.
__global__ void __launch_bounds__(kThreads) sound(const float* in, float* out) {
  store(out + 4 * threadIdx.x, load<4>(in + 4 * threadIdx.x));
}
// All that it loads goes to shared memory.
__global__ void __launch_bounds__(kThreads) sound_copy(const float* in, float* out) {
  float(&values)[4 * kThreads] = block_shared<float[4 * kThreads]>();
  copy_async(values + 4 * threadIdx.x, in + 4 * threadIdx.x);
  copy_commit();
  copy_wait<0>();
  store(out + 4 * threadIdx.x, load<4>(values + 4 * threadIdx.x));
}
// 64 values, and 32 registers for a thread when two blocks of 1024 are to be resident.
__global__ void __launch_bounds__(1024, 2) spills(const float* in, float* out) { reverse<kValues>(in, out); }
// An array whose index is known at run time only.
__global__ void __launch_bounds__(kThreads) local(const float* in, float* out, int at) {
  float v[kValues];
  for (int i = 0; i < kValues; ++i) v[i] = in[i] + static_cast<float>(threadIdx.x);
  *out = v[(at + threadIdx.x) % kValues];
}
__global__ void __launch_bounds__(kThreads) greedy(const float* in, float* out) { reverse<kValues>(in, out); }
__global__ void __launch_bounds__(kThreads) crowded(const float* in, float* out) { *out = *in; }
__global__ void __launch_bounds__(kThreads) narrow_accesses(const float* in, float* out) {
  float(&values)[2 * kThreads] = block_shared<float[2 * kThreads]>();
  __pipeline_memcpy_async(values + 2 * threadIdx.x, in + 2 * threadIdx.x, 8);
  __pipeline_wait_prior(0);
  out[threadIdx.x] = in[threadIdx.x] + values[2 * threadIdx.x];
}
__global__ void unbounded(const float* in, float* out) { *out = *in; }
__global__ void __launch_bounds__(kThreads) unlisted(const float* in, float* out) { *out = *in; }

}  // namespace

// Kernels that nothing names are dropped.
const void* fault_kernels[] = {
    (const void*)sound,  (const void*)sound_copy, (const void*)spills,   (const void*)local,
    (const void*)greedy, (const void*)crowded,    (const void*)unlisted, (const void*)narrow_accesses,
    (const void*)unbounded,
};

}  // namespace llmops::cuda
