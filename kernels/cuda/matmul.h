// The matmul's own kernels, one source a dtype of the operands. out has elements, and b is plain.
#pragma once

#include "kernels/ops.h"

namespace llmops::cuda {

Status matmul_f32(Stream& stream, const MatmulArgs& args);
Status matmul_bf16(Stream& stream, const MatmulArgs& args);

}  // namespace llmops::cuda
