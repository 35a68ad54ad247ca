// The functions of kernels/math.h over arrays, once per instruction set. math_entries.h defines them in sources that
// set LLMOPS_ISA.
#pragma once

#include <cstdint>

#define LLMOPS_MATH_FUNCTIONS(X) X(exp) X(tanh) X(erf) X(log)
#define X(f) void f##_all(const float* x, float* y, int64_t count);
namespace llmops::baseline {
LLMOPS_MATH_FUNCTIONS(X)
}
namespace llmops::avx2 {
LLMOPS_MATH_FUNCTIONS(X)
}
namespace llmops::avx512 {
LLMOPS_MATH_FUNCTIONS(X)
}
#undef X
