#include "kernels/ref/ref.h"
#include "kernels/tables.h"

namespace llmops {

const OpTable& op_table_ref() {
#define X(op, Args) .op = {ref::op},
  static constexpr OpTable kTable = {.name = "ref", LLMOPS_OPS(X)};
#undef X
  return kTable;
}

}  // namespace llmops
