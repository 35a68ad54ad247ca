// The matmul by cuBLASLt, for devices with Device::use_fast_matmul(). The same algorithm runs for the same shape,
// alignment and epilogue throughout the process, so a run repeats its bits; but they depend on m, so on the batch.
#pragma once

#include "kernels/ops.h"

namespace llmops::cuda {

// "cuBLASLt 13.1.0", or what was looked for.
Result<std::string> cublaslt_open(int device);

// Whether an epilogue of cuBLASLt does what `args` (b plain) ask for. Not among them: GELU in the erf form; a residual
// after an activation; bias, residual or activation where out has another dtype than a. Sums on the side with
// anything else, added to others, or where out is not f32 as they are.
bool cublaslt_takes(const MatmulArgs& args);

// False: the library has no algorithm for this.
Result<bool> cublaslt_matmul(Stream& stream, const MatmulArgs& args);

}  // namespace llmops::cuda
