// A subset of CUDA that runs on the CPU, for tests only: g++ compiles kernels/cuda with it, and every thread of a block is
// a fibre. It finds what a GPU would hide or hang on:
//   - a missing __syncthreads: threads and blocks run forward, in reverse, or in a seeded order (Schedule);
//   - shared and fresh device memory used before it is written, and device memory used after it is freed: it holds NaN;
//   - a step outside an allocation: AddressSanitizer names it; without it, a write outside fails the launch;
//   - host code that touches device memory: the arena is closed but for the time a queued item runs;
//   - a missing sync or event: kernels and copies run late, streams interleaved in the schedule's order;
//   - a barrier or a warp operation that not all of its threads reach: a report of who waits for what;
//   - an asynchronous copy into shared memory that is not waited for: its target is NaN from the call to the wait.
// The whole program finds it as a machine: LLMOPS_SIMT_DEVICES and LLMOPS_SIMT_MEMORY_BYTES in the environment say what is
// there, LLMOPS_SIMT_INJECT what goes wrong, LLMOPS_SIMT_SCHEDULE in which order things run (simt_device.cpp).
// It does not model memory ordering within a block that runs, bank conflicts, or blocks that run at the same time. One host
// thread at a time uses it. Atomics on floats are left out on purpose: their order would not be fixed.
#pragma once

#include <math.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>

// --- What a kernel is written in.

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

// --- The runtime API; names and numbers are CUDA's.

#define CUDART_VERSION 13000

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorNotReady = 600,
  cudaErrorLaunchFailure = 719,
  cudaErrorStreamCaptureUnsupported = 900,
};
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaMemPoolAttr { cudaMemPoolAttrReleaseThreshold = 4 };
constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaHostAllocDefault = 0;
struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem;
  int major, minor;
};

enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };

namespace simt {
struct Stream;
struct Event;
struct Graph;
}  // namespace simt
using cudaStream_t = simt::Stream*;
using cudaEvent_t = simt::Event*;
using cudaMemPool_t = void*;
using cudaGraph_t = simt::Graph*;
using cudaGraphExec_t = simt::Graph*;

const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);  // of a launch failure: the shim's report
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaSetDevice(int index);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int index);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value);
cudaError_t cudaMallocAsync(void** data, size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void* data, cudaStream_t stream);
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* data);
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventDestroy(cudaEvent_t event);

namespace simt {

// --- For kernels/cuda/device.h.

cudaError_t launch(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes, const char* name,
                   std::function<void()> kernel);
void* block_shared(size_t bytes);

// --- For other libraries of the device (simt_nccl.cpp): work of a stream that goes on elsewhere. start() runs in the
// stream's turn, with device memory open; then done() is asked, without, until it is true; then finish() runs. A report
// ends the stream.

struct External {
  std::function<std::string()> start;
  std::function<bool()> done;
  std::function<std::string()> finish;
};
cudaError_t enqueue_external(cudaStream_t stream, External external);
std::string outside_memory(const void* data, size_t bytes);  // "" when the bytes lie in one allocation

// --- For tests.

enum class Order : uint8_t { forward, reverse, seeded };
struct Schedule {
  Order order = Order::forward;
  uint64_t seed = 0;
};
void set_schedule(Schedule schedule);
void set_device_count(int devices);              // else LLMOPS_SIMT_DEVICES of the environment, else there is no driver
void set_device_count_error(cudaError_t error);  // what a machine without a driver or a GPU answers
int64_t launches();                              // of kernels, so far
void reset();  // forgets queued work, and a failure with the memory of the device that failed
bool emulated();  // false in test_cuda, where tests that need the shim only for schedules run on a GPU

// --- Warp operations: a rendezvous of the lanes of a mask.

enum class WarpOp : uint8_t { sync, shfl_idx, shfl_up, shfl_down, shfl_xor, ballot, call };
uint64_t warp(WarpOp op, unsigned mask, uint64_t value, int argument, int width);

// An operation of the whole warp on registers of all lanes (kernels/cuda/mma.h). `run` gets what each lane has passed,
// once, when all have come; it returns null or what is wrong.
struct WarpCall {
  const char* name;
  const char* (*run)(void* const (&lanes)[32]);
};
void warp_call(const WarpCall& call, void* mine);

// --- For kernels/cuda/copy.h: a thread's asynchronous copies into shared memory are done when it waits, not before.

void copy_async(void* to, const void* from, int bytes);
void copy_commit();
void copy_wait(int pending);

template <class T>
T shuffle(WarpOp op, unsigned mask, T value, int argument, int width) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = warp(op, mask, bits, argument, width);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace simt

void __syncthreads();
inline void __syncwarp(unsigned mask = 0xffffffffu) { simt::warp(simt::WarpOp::sync, mask, 0, 0, 32); }
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  return simt::shuffle(simt::WarpOp::shfl_idx, mask, value, lane, width);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return simt::shuffle(simt::WarpOp::shfl_up, mask, value, static_cast<int>(delta), width);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return simt::shuffle(simt::WarpOp::shfl_down, mask, value, static_cast<int>(delta), width);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  return simt::shuffle(simt::WarpOp::shfl_xor, mask, value, lanes, width);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return static_cast<unsigned>(simt::warp(simt::WarpOp::ballot, mask, predicate != 0, 0, 32));
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }

inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
// Rounded to nearest even, up and down; the shim is asked for numbers in range only.
inline unsigned long long __float2ull_rn(float x) { return static_cast<unsigned long long>(rintf(x)); }
inline unsigned long long __double2ull_ru(double x) { return static_cast<unsigned long long>(ceil(x)); }
inline unsigned long long __double2ull_rd(double x) { return static_cast<unsigned long long>(floor(x)); }
// Atomics of integers, whose result does not depend on the order. Fibres take turns: plain code is atomic.
inline unsigned atomicCAS(unsigned* at, unsigned expected, unsigned value) {
  const unsigned before = *at;
  if (before == expected) *at = value;
  return before;
}
inline unsigned long long atomicMin(unsigned long long* at, unsigned long long value) {
  const unsigned long long before = *at;
  if (value < before) *at = value;
  return before;
}
// Toward zero; what is out of range goes to the nearest end, NaN to 0.
inline int __float2int_rz(float x) {
  if (x != x) return 0;
  return x >= 0x1p31f ? INT32_MAX : x < -0x1p31f ? INT32_MIN : static_cast<int>(x);
}
