#define LLMOPS_ISA avx512_bf16
#define LLMOPS_ISA_avx512_bf16 3  // vec.h's 16 lanes are those of AVX-512

#include "kernels/cpu/matmul_bf16.h"

#include "base/checked.h"
#include "kernels/cpu/matmul_blocks.h"
#include "kernels/cpu/tasks.h"
#include "kernels/cpu/vec.h"

#pragma GCC target("avx512bf16")  // adds to the options that vec.h has pushed

#include "kernels/gelu.h"
#include "kernels/cpu/lanes.h"

#include "kernels/cpu/matmul_kernel.h"
#include "kernels/cpu/matmul_pack.h"

#include "kernels/cpu/matmul_driver.h"

namespace llmops::LLMOPS_ISA {
namespace {

struct HardwareDot {
  LLMOPS_INLINE F32x16 add(F32x16 left, F32x16 right, F32x16 sum) {
    return {_mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(left.v), reinterpret_cast<__m512bh>(right.v))};
  }
};

}  // namespace

Status matmul(Stream& stream, const MatmulArgs& args) { return run_matmul<Dots<HardwareDot>>(stream, args); }

}  // namespace llmops::LLMOPS_ISA

#include "kernels/cpu/vec_end.h"
