// The KV cache store, with rotary position embedding on the way, and the sum of losses.
#include "kernels/cpu/entries.h"
#include "kernels/cpu/tasks.h"

#include "kernels/cpu/vec.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/rotate.h"

namespace llmops::LLMOPS_ISA {
namespace {

void copy_row(const ConstTensorView& from, int64_t i, const TensorView& to, int64_t j) {
  const int64_t size = info(from.dtype).block_bytes;
  for (int64_t head = 0; head < from.dim[1]; ++head) {
    const char* source = static_cast<const char*>(from.data) + (i * from.stride[0] + head * from.stride[1]) * size;
    char* target = static_cast<char*>(to.data) + (j * to.stride[0] + head * to.stride[1]) * size;
    std::memcpy(target, source, static_cast<size_t>(from.dim[2] * size));
  }
}

template <class T>
Status turn_and_store(Stream& stream, const KvStoreArgs& a) {
  const auto* rows = static_cast<const int32_t*>(a.rows.data);
  const int64_t half = a.cos_sin.dim[1], width = (a.q.dim[1] + 2 * a.k.dim[1]) * a.k.dim[2];
  return for_turned_rows(stream, a.k.dim[0], width, a.positions, a.cos_sin, a.interleaved, false,
                         [&](int64_t i, const Angles& angles) {
                           turn_row<T>(a.q, i, a.q, i, angles, half, a.interleaved);
                           turn_row<T>(a.k, i, a.k_cache, rows[i], angles, half, a.interleaved);
                           copy_row(a.v, i, a.v_cache, rows[i]);
                         });
}

}  // namespace

Status kv_store(Stream& stream, const KvStoreArgs& a) {
  LLMOPS_TRY(check_ids("kv_store", "rows", a.rows, a.k_cache.dim[0], false));
  if (a.cos_sin.present()) {
    LLMOPS_TRY(check_ids("kv_store", "positions", a.positions, a.cos_sin.dim[0], false));
    return a.k.dtype == DType::bf16 ? turn_and_store<bf16>(stream, a) : turn_and_store<float>(stream, a);
  }
  const auto* rows = static_cast<const int32_t*>(a.rows.data);
  for_row_ranges(stream, a.k.dim[0], a.k.dim[1] * a.k.dim[2], [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      copy_row(a.k, i, a.k_cache, rows[i]);
      copy_row(a.v, i, a.v_cache, rows[i]);
    }
  });
  return {};
}

// A few thousand losses: not worth a task.
Status sum(Stream&, const SumArgs& a) {
  const auto* x = static_cast<const float*>(a.x.data);
  double lane[kLanes] = {};
  for (int64_t i = 0; i < a.x.dim[0]; ++i) lane[i % kLanes] += x[i];
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  auto* out = static_cast<double*>(a.out.data);
  *out = a.accumulate ? *out + lane[0] : lane[0];
  return {};
}

}  // namespace llmops::LLMOPS_ISA

#include "kernels/cpu/vec_end.h"
