// In place of the shim in test_cuda, which runs the cases of tests/kernels/simt on a GPU. Without one it says so and
// exits with 4, which ctest counts as skipped.
#include <cstdio>
#include <cstdlib>

#include "kernels/runtime.h"
#include "support/simt.h"

namespace simt {

void set_device_count(int) {}
void set_schedule(Schedule) {}
void reset() {}
int64_t launches() { return 0; }
bool emulated() { return false; }

}  // namespace simt

namespace {

// Before main, which is doctest's.
[[maybe_unused]] const bool device_found = [] {
  const auto device = llmops::Device::open_cuda(0);
  if (device.ok()) return true;
  std::fprintf(stderr, "test_cuda: not run: %s\n", device.status().message().c_str());
  std::exit(4);
}();

}  // namespace
