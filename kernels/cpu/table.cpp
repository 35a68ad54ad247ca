// The cpu tables, one per instruction set, and which of them this CPU can run.
#include "kernels/cpu/entries.h"
#include "kernels/tables.h"

namespace llmops {
namespace {

#define X(op, Args) .op = {baseline::op},
constexpr OpTable kBaseline = {.name = "cpu", LLMOPS_OPS(X)};
#undef X
#define X(op, Args) .op = {avx2::op},
constexpr OpTable kAvx2 = {.name = "cpu", LLMOPS_OPS(X)};
#undef X
#define X(op, Args) .op = {avx512::op},
constexpr OpTable kAvx512 = {.name = "cpu", LLMOPS_OPS(X)};
#undef X

// The same features as the target pragmas of vec.h. __builtin_cpu_supports also asks the OS (xgetbv) whether it saves the
// wide registers.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

}  // namespace

std::string_view name_of(Isa isa) {
  constexpr std::string_view kNames[] = {"best", "baseline", "avx2", "avx512", "avx512_bf16"};
  return kNames[static_cast<size_t>(isa)];
}

bool isa_runs(Isa isa) {
  switch (isa) {
    case Isa::best:
    case Isa::baseline:
      return true;
    case Isa::avx2:
      return has_avx2();
    case Isa::avx512:
      return has_avx512();
    case Isa::avx512_bf16:
      return has_avx512() && __builtin_cpu_supports("avx512bf16");
  }
  return false;
}

Isa isa_best() {
  for (Isa isa : {Isa::avx512_bf16, Isa::avx512, Isa::avx2})
    if (isa_runs(isa)) return isa;
  return Isa::baseline;
}

// BF16 instructions change only the matmul, which asks the device for its Isa.
const OpTable& op_table_cpu(Isa isa) {
  return isa == Isa::baseline ? kBaseline : isa == Isa::avx2 ? kAvx2 : kAvx512;
}

}  // namespace llmops
