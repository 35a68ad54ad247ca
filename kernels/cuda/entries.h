// The entries of the cuda table, one .cu a family of ops.
#pragma once

#include "kernels/ops.h"

namespace llmops::cuda {

Status rms_norm(Stream& stream, const RmsNormArgs& args);
Status rms_norm_backward(Stream& stream, const RmsNormBackwardArgs& args);

}  // namespace llmops::cuda
