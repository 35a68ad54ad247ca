// Defines the functions of math_lanes.h for LLMOPS_ISA; included last in a source, once.
#include "kernels/cpu/vec.h"
#include "kernels/math.h"

namespace llmops::LLMOPS_ISA {
#define X(f)                                                     \
  void f##_all(const float* x, float* y, int64_t count) {        \
    for (int64_t i = 0; i < count; i += 16) {                    \
      const int n = static_cast<int>(count - i < 16 ? count - i : 16); \
      store_n(y + i, f(load_n(x + i, n)), n);                    \
    }                                                            \
  }
LLMOPS_MATH_FUNCTIONS(X)
#undef X
}  // namespace llmops::LLMOPS_ISA

#include "kernels/cpu/vec_end.h"
