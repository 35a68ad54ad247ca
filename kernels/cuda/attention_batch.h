// The ragged batch of the attention kernels, read on the device: which sequence and rows a block works on, and which
// keys a query sees. The host knows shapes only, so a grid is cut by them and a block finds its place by a search.
#pragma once

#include <algorithm>
#include <string>

#include "kernels/cuda/faults.h"
#include "kernels/ops.h"

namespace llmops::cuda {

constexpr int64_t kHeadMax = 256;  // elements of a head: what the kernels have shared memory for

inline Status check_head(int64_t e) {
  if (e <= kHeadMax) return {};
  return usage_error("heads of " + std::to_string(e) + " elements found, at most " + std::to_string(kHeadMax) +
                     " expected on a CUDA device");
}

// Row and head of [n,h,e], both strided.
template <class T>
struct Heads {
  T* data;
  int64_t row_stride, head_stride;

#if defined(__CUDACC__) || defined(LLMOPS_SIMT)
  __device__ __forceinline__ T* at(int64_t row, int64_t head) const {
    return data + row * row_stride + head * head_stride;
  }
#endif
};
template <class T, class Void>
Heads<T> heads_of(const BasicView<Void>& view) {
  return {static_cast<T*>(view.data), view.stride[0], view.stride[1]};
}

// One sequence: rows of q and of k and v, and the absolute positions of the first of each.
struct Sequence {
  int64_t q_begin, q_count, kv_begin, kv_count, q_pos, kv_pos;
  const int32_t* blocks;  // of a paged cache; then kv_begin is 0
  int64_t pool_blocks;
  int64_t index;
  FaultPlace fault;

#if defined(__CUDACC__) || defined(LLMOPS_SIMT)
  __device__ __forceinline__ int64_t kv_row(int64_t j) const {
    if (blocks == nullptr) return kv_begin + j;
    const int32_t block = blocks[j / kKvBlock];
    if (id_fits(block, pool_blocks)) return block * kKvBlock + j % kKvBlock;
    report(fault, index, block);
    return j % kKvBlock;
  }
#endif
};

// [lo, hi)
struct Span {
  int64_t lo, hi;
};

struct Sequences {
  const int32_t *q_begin, *kv_begin, *kv_len, *q_pos0, *kv_pos0;
  int64_t count, q_rows, kv_rows;
  const int32_t* block_table;  // [count, table_width], or null
  int64_t table_width;
  int64_t kv_max;  // of one sequence
  FaultPlace fault;

#if defined(__CUDACC__) || defined(LLMOPS_SIMT)
  // Offsets are data: a bad one must not lead outside of the tensors. Such a sequence is reported, and has no rows.
  __device__ __forceinline__ Sequence at(int64_t s) const {
    const bool paged = block_table != nullptr;
    const Sequence seq = {q_begin[s],
                          int64_t{q_begin[s + 1]} - q_begin[s],
                          paged ? 0 : kv_begin[s],
                          kv_len[s],
                          q_pos0[s],
                          kv_pos0[s],
                          paged ? block_table + s * table_width : nullptr,
                          kv_rows / kKvBlock,
                          s,
                          fault};
    const int64_t kv_end = paged ? table_width * kKvBlock : kv_rows;
    const bool valid = seq.q_begin >= 0 && seq.q_count >= 0 && seq.q_begin + seq.q_count <= q_rows &&
                       seq.kv_begin >= 0 && seq.kv_count >= 0 && seq.kv_begin + seq.kv_count <= kv_end &&
                       seq.kv_count <= kv_max && (!paged || seq.kv_pos % kKvBlock == 0);
    if (valid) return seq;
    report(fault, s, 0);
    return {};
  }

  // For gradients: no KV row belongs to two sequences, and they are in order.
  __device__ __forceinline__ void check_apart(int64_t s) const {
    if (s > 0 && kv_begin[s] < int64_t{kv_begin[s - 1]} + kv_len[s - 1]) report(fault, s, 0);
  }

  // Blocks of `size` rows: those of sequence s are numbered from rows_before(s) / size + s. That leaves room for a last
  // short one in each, and `count` blocks at most without work. The last s that begins at or before `block`:
  template <class Before>
  __device__ __forceinline__ int64_t find(int64_t block, int64_t size, Before rows_before) const {
    int64_t low = 0, high = count;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      if (rows_before(middle) / size + middle <= block)
        low = middle;
      else
        high = middle;
    }
    return low;
  }
#endif
};

inline Status wrong_sequence(const FaultKind& kind, int64_t sequence, int32_t) {
  return invalid_error(std::string(kind.op) + ": sequence " + std::to_string(sequence) + ": " + kind.tensor);
}

template <class Args>
Sequences sequences_of(Stream& stream, const char* op, const Args& a) {
  const auto i32 = [](const ConstTensorView& view) { return static_cast<const int32_t*>(view.data); };
  const FaultKind kind = {
      wrong_sequence, op,
      "rows of q, or of k and v (q_begin, kv_begin, kv_len, kv_pos0, block_table), that are outside of "
      "the tensors, or more than kv_max, or overlap in a backward pass",
      0, false};
  Sequences all = {i32(a.q_begin),  i32(a.kv_begin), i32(a.kv_len), i32(a.q_pos0), i32(a.kv_pos0),
                   a.kv_len.dim[0], a.q.dim[0],      a.k.dim[0],    nullptr,       0,
                   a.k.dim[0],      fault_place(stream, kind)};
  if constexpr (requires { a.block_table; }) {
    if (a.block_table.present()) {
      all.block_table = i32(a.block_table), all.table_width = a.block_table.dim[1];
      all.kv_max = all.table_width * kKvBlock;
    }
    if (a.kv_max > 0) all.kv_max = std::min(all.kv_max, a.kv_max);
  }
  return all;
}

#if defined(__CUDACC__) || defined(LLMOPS_SIMT)

// The keys that the query at `position` sees, as absolute positions; of none, lo == hi.
__device__ __forceinline__ Span visible(const Sequence& seq, int64_t position, int64_t window) {
  const int64_t end = seq.kv_pos + seq.kv_count;
  int64_t lo = window > 0 && position - window + 1 > seq.kv_pos ? position - window + 1 : seq.kv_pos;
  if (lo > end) lo = end;  // the window begins behind the last key
  const int64_t hi = position + 1 < end ? position + 1 : end;
  return {lo, hi < lo ? lo : hi};
}

__device__ __forceinline__ Span cut(Span span, int64_t lo, int64_t hi) {
  const auto within = [=](int64_t x) { return x < lo ? lo : x > hi ? hi : x; };
  return {within(span.lo), within(span.hi)};
}

#endif

// Query heads that read one KV head, and how (query, head) pairs make the rows of a block: queries outermost, so that
// all of them share the keys in shared memory.
struct Grouping {
  int64_t e, heads, group;  // query heads of all, and of one KV head
  int64_t block_heads;      // query heads of a block: the whole group, unless a block has fewer rows
  int64_t head_blocks;      // of a group
  int64_t block_queries;
};
template <class Args>
Grouping grouping_of(const Args& a, int64_t rows) {
  const int64_t heads = a.q.dim[1], group = heads / a.k.dim[1], block_heads = std::min(group, rows);
  return {a.q.dim[2], heads, group, block_heads, (group + block_heads - 1) / block_heads, rows / block_heads};
}

#if defined(__CUDACC__) || defined(LLMOPS_SIMT)

// Rows of a sequence: queries [first, first + queries), each with `heads` heads.
struct QueryBlock {
  int64_t first, head_first;
  int queries, heads;

  __device__ __forceinline__ int rows() const { return queries * heads; }
  __device__ __forceinline__ int64_t query_of(int row) const { return first + row / heads; }  // within the sequence
  __device__ __forceinline__ int64_t head_of(int row) const { return head_first + row % heads; }
};
// The block at query `first`, of part `part` of the KV head's group.
__device__ __forceinline__ QueryBlock query_block(const Grouping& g, int64_t q_count, int64_t first, int64_t kv_head,
                                                  int64_t part) {
  const int64_t queries = q_count - first < g.block_queries ? q_count - first : g.block_queries;
  const int64_t heads_left = g.group - part * g.block_heads;
  return {first, kv_head * g.group + part * g.block_heads, static_cast<int>(queries),
          static_cast<int>(heads_left < g.block_heads ? heads_left : g.block_heads)};
}

// What a block of the grid works on, when that is rows.
struct Place : QueryBlock {
  Sequence seq;
  int64_t kv_head;
  Span keys;  // positions that some query of it sees
};

// Of block (x, y) of a grid of q_rows / block_queries + sequences by KV heads * head_blocks. False: no work.
__device__ __forceinline__ bool find_place(const Sequences& all, const Grouping& g, int64_t window, Place& p) {
  const int64_t number = blockIdx.x, last = gridDim.x - 1;
  if (number < all.count) (void)all.at(number);  // every sequence is looked at, those without a block too
  const int64_t block = last - number;           // the last queries see the most keys and come first
  const int64_t s = all.find(block, g.block_queries, [&](int64_t i) { return int64_t{all.q_begin[i]}; });
  p.seq = all.at(s);
  const int64_t first = (block - p.seq.q_begin / g.block_queries - s) * g.block_queries;
  if (first < 0 || first >= p.seq.q_count) return false;
  p.kv_head = blockIdx.y / g.head_blocks;
  static_cast<QueryBlock&>(p) = query_block(g, p.seq.q_count, first, p.kv_head, blockIdx.y % g.head_blocks);
  const int64_t position = p.seq.q_pos + first;
  p.keys = {visible(p.seq, position, window).lo, visible(p.seq, position + p.queries - 1, window).hi};
  return true;
}

#endif

}  // namespace llmops::cuda
