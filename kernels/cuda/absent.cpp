// In place of the rest of this folder in a build without CUDA.
#include <fmt/format.h>

#include "kernels/tables.h"

namespace llmops {

const OpTable* op_table_cuda() { return nullptr; }

Result<std::unique_ptr<Device>> Device::open_cuda(int index) {
  return io_error(fmt::format("CUDA device {}: this llmops was built without CUDA; use the CPU, or build with a CUDA "
                              "toolkit (LLMOPS_CUDA=ON)", index));
}

}  // namespace llmops
