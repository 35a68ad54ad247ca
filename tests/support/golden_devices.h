// Where tests against golden numbers run. By default the ref and the cpu table; with LLMOPS_TEST_DEVICE=cuda in the
// environment CUDA device 0, emulated or not, with our own matmul and with cuBLASLt's.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/runtime.h"

namespace llmops::test {

inline std::vector<std::unique_ptr<Device>> golden_devices() {
  const char* const wanted = std::getenv("LLMOPS_TEST_DEVICE");
  std::vector<std::unique_ptr<Device>> devices;
  for (const bool second : {false, true}) {
    auto device = wanted == nullptr ? Device::open_cpu({.threads = 2, .reference = !second}) : Device::open_cuda(0);
    REQUIRE_MESSAGE(device.ok(), device.status().message());
    if (wanted != nullptr) {
      REQUIRE(std::string_view(wanted) == "cuda");
      if (second) REQUIRE((*device)->use_fast_matmul().ok());
    }
    devices.push_back(device.take());
  }
  return devices;
}

}  // namespace llmops::test
