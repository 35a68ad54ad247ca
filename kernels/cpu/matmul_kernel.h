// The register tile of the matmul and its epilogue. Comes after vec.h, gelu.h and lanes.h.
//
// A tile is kTileRows x (kTilePanels * 16) sums held in registers. Its operands come k step by k step: 16 values of b
// per panel (always packed: panel[k][16]) and one value of a per row, broadcast. A sum is one ascending chain of fma,
// so it does not matter which tile, row or lane computes it. With BF16 dot products a step is a pair of k, in the 32
// bits of a float.
#pragma once

#include "kernels/ops.h"

namespace llmops::LLMOPS_ISA {

// 12 accumulators of 8 lanes and 3 operands fill AVX2's 16 registers; 24 of 16 lanes leave AVX-512 eight for operands.
// The baseline emulates fma by a call per lane: larger tiles would only cost compile time.
#if LLMOPS_ISA_LEVEL == 3 || defined(LLMOPS_MATMUL_WIDE)  // the latter: a test of the wide tile on any CPU
constexpr int kTileRows = 12, kTilePanels = 2;
#elif LLMOPS_ISA_LEVEL == 2
constexpr int kTileRows = 6, kTilePanels = 1;
#else
constexpr int kTileRows = 4, kTilePanels = 1;
#endif
constexpr int kTileCols = kTilePanels * kLanes;
// A single row (decoding) has too few sums in a tile to hide the latency of fma; it takes four panels at a time.
constexpr int kFlatPanels = 4, kFlatCols = kFlatPanels * kLanes;
static_assert(kFlatCols <= kTileRows * kTileCols && kFlatPanels > kTilePanels);
constexpr int64_t kChain = 512;  // k of one chain (kernels/ops.h)
constexpr int kStepsPerRow = 8;  // of k, for which a row of what the epilogue needs is fetched

// Takes rows x cols finished sums (row stride kTileCols) through the epilogue to out at (m, n).
using Finish = void (*)(const MatmulArgs& args, float* sums, int64_t m, int64_t n, int rows, int cols);

// What the epilogue reads and writes: out and one more tensor at most.
struct Ends {
  const char *out, *other;                 // element (0, 0)
  int64_t out_row, other_row;              // bytes
  int64_t out_elem, other_elem;
};

struct Tile {
  const float* a;         // row i, step k at a[i * a_row + k * a_step]; one of the two strides is 1
  int64_t a_row, a_step;
  const float* b;         // panel p, step k at b[p * b_panel + k * b_step]: packed by 16, or a stored [k,n]
  int64_t b_panel, b_step;
  int64_t k;              // steps of this chain
  const char* ahead;      // each step brings one line into the cache, ahead_step bytes apart: operands of a later tile
  int64_t ahead_step;
  float* partial;         // the sum of the earlier chains, kTileRows * kTileCols
  bool first, last;       // of the chains
  bool bare;              // f32 out and nothing to do but to store or accumulate
  int rows, cols;         // valid part of the tile
  int64_t m, n;           // its place in out
  const MatmulArgs* args;
  Finish finish;
  Ends ends;
};

template <class T>
LLMOPS_INLINE T* at(const ConstTensorView& x, int64_t i, int64_t j) {
  return const_cast<T*>(static_cast<const T*>(x.data)) + i * x.stride[0] + j;
}

// Over whole tiles, out of line: four polynomials in each of the four finish_tile would be most of this source's code.
__attribute__((noinline)) inline void activate(Activation act, float* x, int count) {
  const auto each = [&](auto f) LLMOPS_BODY {
    for (int i = 0; i < count; i += kLanes) store(x + i, f(load(x + i)));
  };
  if (act == Activation::gelu_erf)
    each([](F32x16 v) LLMOPS_BODY { return gelu_erf(v); });
  else
    each([](F32x16 v) LLMOPS_BODY { return gelu_tanh(v); });
}
__attribute__((noinline)) inline void times_activation_grad(Activation act, const float* u, float* x, int count) {
  const auto each = [&](auto f) LLMOPS_BODY {
    for (int i = 0; i < count; i += kLanes) store(x + i, load(x + i) * f(load(u + i)));
  };
  if (act == Activation::gelu_erf)
    each([](F32x16 v) LLMOPS_BODY { return gelu_erf_grad(v); });
  else
    each([](F32x16 v) LLMOPS_BODY { return gelu_tanh_grad(v); });
}

// vmaskmovps to memory is microcoded on AMD; the few lanes at the end of a row go one by one.
LLMOPS_INLINE void store_tail(float* p, F32x16 x, int n) {
  float lane[kLanes];
  store(lane, x);
  for (int i = 0; i < n; ++i) p[i] = lane[i];
}
LLMOPS_INLINE void store_tail(bf16* p, F32x16 x, int n) { store_n(p, x, n); }
template <class T>
LLMOPS_INLINE void store_lanes(T* p, F32x16 x, int n) {
  if (n == kLanes) {
    store(p, x);
  } else {
    store_tail(p, x, n);
  }
}

template <class T, class Out>
void finish_tile(const MatmulArgs& args, float* sums, int64_t m, int64_t n, int rows, int cols) {
  const auto each = [&](auto body) LLMOPS_BODY {
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < cols; j += kLanes) body(i, j, sums + i * kTileCols + j, cols - j < kLanes ? cols - j : kLanes);
  };
  const int count = (rows - 1) * kTileCols + static_cast<int>(round_up(cols, kLanes));
  if (args.bias.present())
    each([&](int, int j, float* x, int part) LLMOPS_BODY {
      store(x, load(x) + load_part(static_cast<const T*>(args.bias.data) + n + j, part));
    });
  if (args.act_backward.present()) {
    float u[kTileRows * kTileCols] = {};
    each([&](int i, int j, float*, int part) LLMOPS_BODY {
      store(u + i * kTileCols + j, load_part(at<T>(args.act_backward, m + i, n + j), part));
    });
    times_activation_grad(args.act, u, sums, count);
  } else if (args.act != Activation::none) {
    if (args.aux.present())
      each([&](int i, int j, float* x, int part) LLMOPS_BODY { store_lanes(at<T>(args.aux, m + i, n + j), load(x), part); });
    activate(args.act, sums, count);
  }
  each([&](int i, int j, float* sum, int part) LLMOPS_BODY {
    F32x16 x = load(sum);
    if (args.residual.present()) x = x + load_part(at<T>(args.residual, m + i, n + j), part);
    Out* out = at<Out>(args.out, m + i, n + j);
    if (args.accumulate) x = load_part(out, part) + x;
    store_lanes(out, x, part);
  });
}

// One step of the chain in every lane.
struct Fma {
  LLMOPS_INLINE F32x16 add(F32x16 left, F32x16 right, F32x16 sum) { return fma(left, right, sum); }
};

// kByStep: a row's steps are a_step apart and the rows of a step lie side by side (a stored [k,m], or packed).
template <class Product, int kRows, int kPanels, bool kByStep>
__attribute__((noinline)) void run_tile(const Tile& t) {
  F32x16 sum[kRows][kPanels];
LLMOPS_UNROLL(16)
  for (int i = 0; i < kRows; ++i)
LLMOPS_UNROLL(4)
    for (int p = 0; p < kPanels; ++p) sum[i][p] = zero();
  const Ends& ends = t.ends;
  const char* out_ahead = ends.out + t.m * ends.out_row + t.n * ends.out_elem;
  const char* other_ahead = ends.other + t.m * ends.other_row + t.n * ends.other_elem;
  int64_t rows_ahead = t.last ? t.rows : 0;
  const float* a = t.a;
  const float* b = t.b;
  const char* ahead = t.ahead;
  const int64_t a_row = kByStep ? 1 : t.a_row, a_step = kByStep ? t.a_step : 1;
  const int64_t b_panel = t.b_panel, b_step = t.b_step;
  const auto step = [&]() LLMOPS_BODY {
    __builtin_prefetch(ahead, 0, 2);
    F32x16 right[kPanels];
LLMOPS_UNROLL(4)
    for (int p = 0; p < kPanels; ++p) right[p] = load(b + p * b_panel);
LLMOPS_UNROLL(16)
    for (int i = 0; i < kRows; ++i) {
      const F32x16 left = set1(a[i * a_row]);
LLMOPS_UNROLL(4)
      for (int p = 0; p < kPanels; ++p) sum[i][p] = Product::add(left, right[p], sum[i][p]);
    }
    a += a_step, b += b_step, ahead += t.ahead_step;
  };
  int64_t k = t.k;
  for (; k >= kStepsPerRow; k -= kStepsPerRow) {
    if (rows_ahead-- > 0) {  // spread out: more misses at a time than there are buffers for would stop the loads of b
      for (int line = 0; line < kPanels; ++line) {
        __builtin_prefetch(out_ahead + 64 * line, 1);
        __builtin_prefetch(other_ahead + 64 * line);
      }
      out_ahead += ends.out_row, other_ahead += ends.other_row;
    }
LLMOPS_UNROLL(4)
    for (int i = 0; i < kStepsPerRow; ++i) step();
  }
  for (; k > 0; --k) step();
  const auto each = [&](auto body) LLMOPS_BODY {
LLMOPS_UNROLL(16)
    for (int i = 0; i < kRows; ++i)
LLMOPS_UNROLL(4)
      for (int p = 0; p < kPanels; ++p) body(i, p, sum[i][p]);
  };
  if (!t.first)
    each([&](int i, int p, F32x16& x) LLMOPS_BODY { x = load(t.partial + i * kTileCols + p * kLanes) + x; });
  if (t.last && t.bare && t.rows == kRows && t.cols == kPanels * kLanes) {
    float* out = at<float>(t.args->out, t.m, t.n);
    const int64_t stride = t.args->out.stride[0];
    if (t.args->accumulate)
      each([&](int i, int p, F32x16& x) LLMOPS_BODY { x = load(out + i * stride + p * kLanes) + x; });
    each([&](int i, int p, F32x16& x) LLMOPS_BODY { store(out + i * stride + p * kLanes, x); });
    return;
  }
  each([&](int i, int p, F32x16& x) LLMOPS_BODY { store(t.partial + i * kTileCols + p * kLanes, x); });
  if (t.last) t.finish(*t.args, t.partial, t.m, t.n, t.rows, t.cols);
}

}  // namespace llmops::LLMOPS_ISA
