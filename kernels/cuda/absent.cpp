// In place of the rest of this folder in a build without CUDA.
#include <fmt/format.h>

#include "kernels/tables.h"

namespace llmops {

const OpTable* op_table_cuda() { return nullptr; }

namespace {

Status absent() {
  return io_error("this llmops was built without CUDA: build with a CUDA toolkit (LLMOPS_CUDA=ON)");
}

}  // namespace

Result<std::vector<CudaInfo>> Device::list_cuda() { return absent(); }

bool Device::has_cuda_driver() { return false; }

Result<std::unique_ptr<Device>> Device::open_cuda(int index, int) {
  return absent().in(fmt::format("CUDA device {} (the CPU works without one)", index));
}

}  // namespace llmops
