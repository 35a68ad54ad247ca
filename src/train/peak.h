// The denominator of MFU: what a CPU's cores reach, measured, as no data sheet says it; what a GPU's data sheet says.
#pragma once

#include "kernels/runtime.h"

namespace llmops {

// Best rate of the f32 matmul of matmul_peak_size() in all three directions within 80 ms, in FLOP/s; 0 when it cannot run.
double measure_matmul_flops_per_s(Device& device);
int64_t matmul_peak_size(const Device& device);  // 512 on the CPU; on a GPU large enough to fill it

// Dense BF16 FLOP/s of a GPU by the name that CUDA gives it; 0 when it is not in the table. f32 has no figure: how much of
// it runs on tensor cores is the library's choice.
double gpu_peak_flops_per_s(std::string_view name, DType dtype);

}  // namespace llmops
