// What we say of NCCL's API holds against nccl.h, where that is installed.
#include "comm/nccl_api.h"

#include <doctest/doctest.h>

#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#include <nccl.h>

using namespace llmops;

static_assert(sizeof(nccl::UniqueId) == sizeof(ncclUniqueId));
#define SAME(ours, theirs) static_assert(static_cast<int>(ours) == static_cast<int>(theirs))
SAME(nccl::Code::success, ncclSuccess);
SAME(nccl::Code::unhandled_cuda_error, ncclUnhandledCudaError);
SAME(nccl::Code::system_error, ncclSystemError);
SAME(nccl::Code::internal_error, ncclInternalError);
SAME(nccl::Code::invalid_argument, ncclInvalidArgument);
SAME(nccl::Code::invalid_usage, ncclInvalidUsage);
SAME(nccl::Code::remote_error, ncclRemoteError);
SAME(nccl::Code::in_progress, ncclInProgress);
SAME(nccl::Type::u8, ncclUint8);
SAME(nccl::Type::i64, ncclInt64);
SAME(nccl::Type::f32, ncclFloat32);
SAME(nccl::Type::f64, ncclFloat64);
SAME(nccl::Reduction::sum, ncclSum);
SAME(nccl::Reduction::max, ncclMax);
SAME(nccl::Reduction::min, ncclMin);

#if NCCL_VERSION_CODE >= 22800 && NCCL_VERSION_CODE < 22900
static_assert(sizeof(nccl::Config) == sizeof(ncclConfig_t));
#define SAME_PLACE(ours, theirs) static_assert(offsetof(nccl::Config, ours) == offsetof(ncclConfig_t, theirs))
SAME_PLACE(magic, magic);
SAME_PLACE(version, version);
SAME_PLACE(blocking, blocking);
SAME_PLACE(net_name, netName);
SAME_PLACE(traffic_class, trafficClass);
SAME_PLACE(comm_name, commName);
SAME_PLACE(nvlink_centric_sched, nvlinkCentricSched);
#endif

TEST_CASE("the configuration starts with the values of NCCL_CONFIG_INITIALIZER") {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const nccl::Config ours;
  CHECK(ours.magic == theirs.magic);
  CHECK(ours.cga_cluster_size == theirs.cgaClusterSize);
  CHECK(ours.net_name == theirs.netName);
}
#endif

TEST_CASE("the library is opened at first use: there with 2.28 or later, or an io error that says what was looked for") {
  const auto api = llmops::nccl::api();
  if (api.ok()) {
    int version = 0;
    CHECK((*api)->GetVersion(&version) == llmops::nccl::Code::success);
    CHECK(version >= 22800);
    return;
  }
  CHECK(api.status().code() == llmops::Code::io);
  CHECK(api.status().message().find("libnccl.so.2") != std::string::npos);
}
