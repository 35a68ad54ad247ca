#define LLMOPS_ISA avx2
#include "kernels/math_lanes.h"

#include "kernels/math_entries.h"
