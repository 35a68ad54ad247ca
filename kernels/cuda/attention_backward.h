// What the backward kernels of attention share: their arguments, and what a pair of a query and a key weighs.
// attention_backward.cu has the definition.
#pragma once

#include "kernels/cuda/attention_batch.h"
#include "kernels/cuda/lane.h"

namespace llmops::cuda {

template <class T>
struct Backward {
  Heads<const T> q, k, v, out, dout;
  Heads<T> dq, dk, dv;
  const float* lse;
  float* d;  // [n,h]
  Sequences sequences;
  Grouping g;
  int64_t kv_heads, window;
  float scale, softcap;
  bool aligned;
};

#if defined(__CUDACC__) || defined(LLMOPS_SIMT)

// In: p = q . k and ds = dout . v. Out: p and ds as defined, 0 for a pair that does not see each other.
template <class T>
__device__ __forceinline__ void weigh_pair(const Backward<T>& a, float lse, float d, bool seen, float& p, float& ds) {
  float score = p * a.scale, slope = a.scale;
  if (a.softcap > 0) {
    const float t = tanh(F32{score / a.softcap}).v;
    score = t * a.softcap;
    slope = (1.0f - t * t) * a.scale;
  }
  const float weight = seen ? exp(F32{score - lse}).v : 0.0f;
  p = weight;
  ds = seen ? weight * (ds - d) * slope : 0.0f;
}

// KV rows of a sequence: `keys` of them, from `first` on.
struct KeyBlock {
  Sequence seq;
  int64_t first;
  int keys;
};
// Of block x of a grid of kv_rows / size + sequences. False: no work.
__device__ __forceinline__ bool find_keys(const Sequences& all, int size, KeyBlock& block) {
  if (blockIdx.x < all.count) all.check_apart(blockIdx.x);
  const int64_t index = all.find(blockIdx.x, size, [&](int64_t i) { return int64_t{all.kv_begin[i]}; });
  block.seq = all.at(index);
  block.first = (blockIdx.x - block.seq.kv_begin / size - index) * size;
  if (block.first < 0 || block.first >= block.seq.kv_count) return false;
  const int64_t left = block.seq.kv_count - block.first;
  block.keys = static_cast<int>(left < size ? left : size);
  return true;
}

// Queries of the sequence that see one of the keys.
__device__ __forceinline__ Span queries_of(const KeyBlock& block, int64_t window) {
  const int64_t position = block.seq.kv_pos + block.first - block.seq.q_pos;
  const int64_t end = window > 0 ? position + block.keys - 1 + window : block.seq.q_count;
  return cut({position, end}, 0, block.seq.q_count);
}

#endif

}  // namespace llmops::cuda
