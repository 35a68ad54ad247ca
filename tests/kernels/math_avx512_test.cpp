#define LLMOPS_ISA avx512
#include "kernels/math_lanes.h"

#include "kernels/math_entries.h"
