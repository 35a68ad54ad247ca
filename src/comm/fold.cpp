#include "comm/fold.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/checked.h"

namespace llmops {
namespace {

constexpr int64_t kTaskElems = 16384;
constexpr int64_t kBlockElems = 512;   // partial sums of a block stay in the first-level cache
constexpr int kBlocksMax = 12;         // 2 per level of the tree over kRanksMax ranks
constexpr int64_t kTaskBytes = 256 << 10;
static_assert(kRanksMax == 64);

struct Sum {
  static float of(float a, float b) { return a + b; }
  static double of(double a, double b) { return a + b; }
  static int64_t of(int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
};
// `a != a`: a NaN of either side stays.
struct Max {
  template <class T>
  static T of(T a, T b) { return a > b || a != a ? a : b; }
};
struct Min {
  template <class T>
  static T of(T a, T b) { return a < b || a != a ? a : b; }
};

template <class T, class Op>
struct Tree {
  const void* const* sources;
  int64_t begin, elems;  // the block

  // Folds ranks [low, high) into `out`, except that a single rank is lent as it is. scratch[0] is free from here on.
  const T* fold(int low, int high, T* out, T* scratch) const {
    if (high - low == 1) return static_cast<const T*>(sources[low]) + begin;
    const int middle = low + static_cast<int>(std::bit_floor(static_cast<unsigned>(high - low - 1)));
    const T* left = fold(low, middle, scratch, scratch + kBlockElems);
    const T* right = fold(middle, high, scratch + kBlockElems, scratch + 2 * kBlockElems);
    // out may be one of the two, never a shifted part of one.
#pragma GCC ivdep
    for (int64_t i = 0; i < elems; ++i) out[i] = Op::of(left[i], right[i]);
    return out;
  }
};

template <class T, class Op>
void fold_task(const void* const* sources, int ranks, T* out, int64_t begin, int64_t end) {
  T scratch[kBlocksMax * kBlockElems];
  for (int64_t at = begin; at < end; at += kBlockElems) {
    const Tree<T, Op> tree{sources, at, std::min(kBlockElems, end - at)};
    const T* result = tree.fold(0, ranks, out + at, scratch);
    if (result != out + at) std::memcpy(out + at, result, static_cast<size_t>(tree.elems) * sizeof(T));
  }
}

template <class T, class Op>
void fold(Pool& pool, const void* const* sources, int ranks, void* out, int64_t elems) {
  const auto task = [&](int64_t i, int) {
    fold_task<T, Op>(sources, ranks, static_cast<T*>(out), i * kTaskElems, std::min(elems, (i + 1) * kTaskElems));
  };
  if (elems <= kTaskElems) return task(0, 0);
  pool.parallel_for(ceil_div(elems, kTaskElems), task);
}

template <class T>
void fold(Pool& pool, ReduceOp op, const void* const* sources, int ranks, void* out, int64_t elems) {
  switch (op) {
    case ReduceOp::sum: return fold<T, Sum>(pool, sources, ranks, out, elems);
    case ReduceOp::max: return fold<T, Max>(pool, sources, ranks, out, elems);
    case ReduceOp::min: return fold<T, Min>(pool, sources, ranks, out, elems);
  }
}

}  // namespace

bool is_reducible(DType dtype) { return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::i64; }

void fold_ranks(Pool& pool, DType dtype, ReduceOp op, const void* const* sources, int ranks, void* out,
                int64_t elems) {
  if (dtype == DType::f32) fold<float>(pool, op, sources, ranks, out, elems);
  if (dtype == DType::f64) fold<double>(pool, op, sources, ranks, out, elems);
  if (dtype == DType::i64) fold<int64_t>(pool, op, sources, ranks, out, elems);
}

void copy_bytes(Pool& pool, void* out, const void* in, int64_t bytes) {
  if (out == in || bytes == 0) return;
  const auto task = [&](int64_t i, int) {
    const int64_t begin = i * kTaskBytes;
    std::memcpy(static_cast<char*>(out) + begin, static_cast<const char*>(in) + begin,
                static_cast<size_t>(std::min(bytes - begin, kTaskBytes)));
  };
  if (bytes <= kTaskBytes) return task(0, 0);
  pool.parallel_for(ceil_div(bytes, kTaskBytes), task);
}

}  // namespace llmops
