#include "kernels/cuda/entries.h"
#include "kernels/tables.h"

namespace llmops {

const OpTable* op_table_cuda() {
#define X(op, Args) .op = {cuda::op},
  static constexpr OpTable kTable = {.name = "cuda", LLMOPS_OPS(X)};
#undef X
  return &kTable;
}

}  // namespace llmops
