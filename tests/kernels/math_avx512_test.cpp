// GCC 12 warns about its own _mm512_undefined_ps (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#define LLMOPS_ISA avx512
#include "kernels/math_lanes.h"

#include "kernels/math_entries.h"
