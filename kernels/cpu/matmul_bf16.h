// The matmul of bf16 inputs by VDPBF16PS, for CPUs whose Isa is avx512_bf16. It has the structure of the f32 matmul,
// and its bits depend on as little, but they are the instruction's: a chain adds pairs of products, and denormals count
// as 0.
#pragma once

#include "kernels/ops.h"

namespace llmops::avx512_bf16 {

Status matmul(Stream& stream, const MatmulArgs& args);

}  // namespace llmops::avx512_bf16
