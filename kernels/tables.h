// The op tables. `cpu` is one table per instruction set (kernels/cpu/vec.h).
#pragma once

#include "kernels/ops.h"

namespace llmops {

const OpTable& op_table_ref();
const OpTable& op_table_cpu(Isa isa);  // isa != Isa::best
const OpTable* op_table_cuda();        // null in a build without CUDA

}  // namespace llmops
