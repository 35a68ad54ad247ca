// Rotary position embedding.
#include "kernels/cpu/entries.h"
#include "kernels/cpu/tasks.h"

#include "kernels/cpu/vec.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/rotate.h"

namespace llmops::LLMOPS_ISA {
namespace {

template <class T>
Status run(Stream& stream, const RopeArgs& a) {
  return for_turned_rows(stream, a.x.dim[0], a.x.dim[1] * a.x.dim[2], a.positions, a.cos_sin, a.interleaved, a.inverse,
                         [&](int64_t n, const Angles& angles) {
                           turn_row<T>(a.x, n, a.out, n, angles, a.cos_sin.dim[1], a.interleaved);
                         });
}

}  // namespace

Status rope(Stream& stream, const RopeArgs& a) {
  LLMOPS_TRY(check_ids("rope", "positions", a.positions, a.cos_sin.dim[0], false));
  return a.x.dtype == DType::bf16 ? run<bf16>(stream, a) : run<float>(stream, a);
}

}  // namespace llmops::LLMOPS_ISA
#include "kernels/cpu/vec_end.h"
