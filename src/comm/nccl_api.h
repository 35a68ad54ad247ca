// The part of NCCL that llmops calls, out of libnccl.so.2 as it is found at first use: the program starts without it.
// Names, numbers and layouts are those of nccl.h 2.28; tests/unit/comm/nccl_api_test.cpp holds them against that file
// where it is installed.
#pragma once

#include <climits>
#include <cstddef>

#include "base/status.h"

namespace llmops::nccl {

struct CommHandle;  // struct ncclComm
using Comm = CommHandle*;

struct UniqueId {
  char bytes[128];
};

enum class Code : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};
enum class Type : int { u8 = 1, i64 = 4, f32 = 7, f64 = 8 };
enum class Reduction : int { sum = 0, max = 2, min = 3 };

// ncclConfig_v22800; later libraries take it as it is, by its version.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 22800;
  int blocking = 0;  // calls return at once; CommGetAsyncError says when they are through
  int cga_cluster_size = INT_MIN, min_ctas = INT_MIN, max_ctas = INT_MIN;  // INT_MIN: not set
  const char* net_name = nullptr;
  int split_share = INT_MIN, traffic_class = INT_MIN;
  const char* comm_name = nullptr;
  int collnet_enable = INT_MIN, cta_policy = INT_MIN, shrink_share = INT_MIN, nvls_ctas = INT_MIN;
  int channels_per_net_peer = INT_MIN, nvlink_centric_sched = INT_MIN;
};

// name without "nccl", parameters. `stream` is a cudaStream_t.
#define LLMOPS_NCCL_CALLS(X)                                                                                           \
  X(GetVersion, (int* version))                                                                                        \
  X(GetUniqueId, (UniqueId * id))                                                                                      \
  X(CommInitRankConfig, (Comm * comm, int ranks, UniqueId id, int rank, Config* config))                               \
  X(CommGetAsyncError, (Comm comm, Code * error))                                                                      \
  X(CommFinalize, (Comm comm))                                                                                         \
  X(CommDestroy, (Comm comm))                                                                                          \
  X(CommAbort, (Comm comm))                                                                                            \
  X(GroupStart, ())                                                                                                    \
  X(GroupEnd, ())                                                                                                      \
  X(AllReduce, (const void* in, void* out, size_t count, Type type, Reduction op, Comm comm, void* stream))            \
  X(Reduce, (const void* in, void* out, size_t count, Type type, Reduction op, int root, Comm comm, void* stream))     \
  X(ReduceScatter, (const void* in, void* out, size_t out_count, Type type, Reduction op, Comm comm, void* stream))    \
  X(AllGather, (const void* in, void* out, size_t in_count, Type type, Comm comm, void* stream))                       \
  X(Broadcast, (const void* in, void* out, size_t count, Type type, int root, Comm comm, void* stream))                \
  X(Send, (const void* data, size_t count, Type type, int peer, Comm comm, void* stream))                              \
  X(Recv, (void* data, size_t count, Type type, int peer, Comm comm, void* stream))

struct Api {
#define X(name, parameters) Code(*name) parameters = nullptr;
  LLMOPS_NCCL_CALLS(X)
#undef X
  const char* (*GetErrorString)(Code code) = nullptr;
  const char* (*GetLastError)(Comm comm) = nullptr;
};

constexpr const char* kLibrary = "libnccl.so.2";
// Code::io when there is no such library, one that is older, or one without a function of ours.
Result<Api> load(const char* library = kLibrary);
Result<const Api*> api();  // of kLibrary, the same for the whole process

}  // namespace llmops::nccl
