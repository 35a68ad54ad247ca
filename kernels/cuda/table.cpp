#include "kernels/cuda/entries.h"
#include "kernels/tables.h"

namespace llmops {

// An op that is not named here has no kernel: the call says so, with the op and its operands.
const OpTable* op_table_cuda() {
  static constexpr OpTable kTable = {
      .name = "cuda",
      .rms_norm = {cuda::rms_norm},
      .rms_norm_backward = {cuda::rms_norm_backward},
      .matmul = {cuda::matmul},
      .matmul_pack = {cuda::matmul_pack},
      .attention = {cuda::attention},
      .attention_backward = {cuda::attention_backward},
      .swiglu = {cuda::swiglu},
      .swiglu_backward = {cuda::swiglu_backward},
      .gelu = {cuda::gelu},
      .gelu_backward = {cuda::gelu_backward},
      .add = {cuda::add},
      .cast = {cuda::cast},
  };
  return &kTable;
}

}  // namespace llmops
