// The entries of the cpu table, once per instruction set. Each is defined in a source of kernels/cpu/isa.
#pragma once

#include "kernels/ops.h"

#define X(op, Args) Status op(Stream& stream, const Args& args);
namespace llmops::baseline {
LLMOPS_OPS(X)
}
namespace llmops::avx2 {
LLMOPS_OPS(X)
}
namespace llmops::avx512 {
LLMOPS_OPS(X)
}
#undef X
