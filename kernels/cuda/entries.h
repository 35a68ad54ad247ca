// The entries of the cuda table, one .cu a family of ops.
#pragma once

#include "kernels/ops.h"

namespace llmops::cuda {

#define X(op, Args) Status op(Stream& stream, const Args& args);
LLMOPS_OPS(X)
#undef X

}  // namespace llmops::cuda
