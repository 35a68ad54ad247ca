// The denominator of MFU on a CPU, where no data sheet says what a core reaches.
#pragma once

#include "kernels/runtime.h"

namespace llmops {

// Best rate of our own f32 matmul at 512 x 512 x 512 within 80 ms, in FLOP/s; 0 when it cannot run.
double measure_matmul_flops_per_s(Device& device);

}  // namespace llmops
