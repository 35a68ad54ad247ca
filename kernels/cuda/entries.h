// The entries of the cuda table, one .cu a family of ops.
#pragma once

#include "kernels/ops.h"

namespace llmops::cuda {

Status attention(Stream& stream, const AttentionArgs& args);
Status attention_backward(Stream& stream, const AttentionBackwardArgs& args);
Status rms_norm(Stream& stream, const RmsNormArgs& args);
Status rms_norm_backward(Stream& stream, const RmsNormBackwardArgs& args);
Status matmul(Stream& stream, const MatmulArgs& args);
Status matmul_pack(Stream& stream, const MatmulPackArgs& args);
Status swiglu(Stream& stream, const SwigluArgs& args);
Status swiglu_backward(Stream& stream, const SwigluBackwardArgs& args);
Status gelu(Stream& stream, const GeluArgs& args);
Status gelu_backward(Stream& stream, const GeluBackwardArgs& args);
Status add(Stream& stream, const AddArgs& args);
Status cast(Stream& stream, const CastArgs& args);

}  // namespace llmops::cuda
