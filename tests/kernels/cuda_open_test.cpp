// What this build answers when a CUDA device is asked for: a device, or one message that says what is missing.
#include <dlfcn.h>

#include "kernels/tables.h"
#include "support/kernel_case.h"

namespace llmops::test {
namespace {

TEST_CASE("open_cuda: without a driver, or in a build without CUDA, an io error that says so") {
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  const auto device = Device::open_cuda(0);
  if (driver != nullptr && device.ok()) {
    CHECK((*device)->kind() == DeviceKind::cuda);
    CHECK((*device)->ops().name == "cuda");
    return;
  }
  CHECK(device.status().code() == Code::io);
  const char* const expected = op_table_cuda() == nullptr ? "this llmops was built without CUDA"
                               : driver != nullptr        ? "libcuda.so.1"
                                                          : "libcuda.so.1; cudaGetDeviceCount gave error 35";
  CHECK_MESSAGE(device.status().message().find(expected) != std::string::npos, device.status().message());
  CHECK(device.status().message().find("CPU") != std::string::npos);
}

}  // namespace
}  // namespace llmops::test
