// RMSNorm, forward and backward, over rows of [n,d] or heads of [n,h,d].
//
// A row belongs to 16 threads, one per virtual lane of its sum (kernels/ops.h), so half a warp. They load 16 bytes each,
// side by side, and pass the elements through shared memory to the lane that adds them: the sum has the bits that the cpu
// table gives, and memory is read in whole lines. The second pass over a row finds it in L2.
#include "kernels/cuda/entries.h"
#include "kernels/cuda/row_sums.h"
#include "kernels/cuda/rows.h"

namespace llmops::cuda {
namespace {

constexpr int kLanes = 16;
constexpr int kRowsPerBlock = 16;  // 256 threads
constexpr int kTile = 512;         // elements of a row in shared memory: 32 KiB a block, 6 blocks to a multiprocessor

struct Tiles {
  float row[kRowsPerBlock][kTile];
};

// The sum of term(i, elements) over a row, in lane order. term gives the kVec terms at element i. The whole warp calls it;
// `live` is false where there is no row.
template <int kVec, class Term>
__device__ __forceinline__ float row_sum(int64_t d, bool live, Term term) {
  float* tile = block_shared<Tiles>().row[threadIdx.x / kLanes];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  float sum = 0;
  for (int64_t first = 0; first < d; first += kTile) {
    const int count = static_cast<int>(d - first < kTile ? d - first : kTile);
    for (int i = lane * kVec; live && i < count; i += kLanes * kVec) store(tile + i, term(first + i));
    __syncwarp();
    for (int i = lane; live && i < count; i += kLanes) sum += tile[i];
    __syncwarp();
  }
  return fold_lanes(sum);
}

template <class T>
struct Forward {
  Rows<const T> x, delta;
  const T* weight;
  Rows<T> sum, out;
  float* rstd;
  int64_t n, d;
  float eps;
};

template <class T, int kVec>
__global__ void __launch_bounds__(kRowsPerBlock * kLanes) forward(Forward<T> a) {
  const int64_t r = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kLanes;
  const bool live = r < a.n;
  const T* x = live ? a.x.at(r) : nullptr;
  const T* delta = live && a.delta.data != nullptr ? a.delta.at(r) : nullptr;
  T* sum = delta != nullptr ? a.sum.at(r) : nullptr;
  const float sum_squares = row_sum<kVec>(a.d, live, [=](int64_t i) {
    Vec<T, kVec> v = load<kVec>(x + i);
    if (delta != nullptr) {  // the normed row is the rounded sum, as backward will see it
      const Vec<T, kVec> add = load<kVec>(delta + i);
      for (int j = 0; j < kVec; ++j) v.v[j] = narrow<T>(widen(v.v[j]) + widen(add.v[j]));
      store(sum + i, v);
    }
    Vec<float, kVec> square;
    for (int j = 0; j < kVec; ++j) square.v[j] = widen(v.v[j]) * widen(v.v[j]);
    return square;
  });
  if (!live) return;
  const float rstd = 1.0f / sqrtf(sum_squares / static_cast<float>(a.d) + a.eps);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  if (a.rstd != nullptr && lane == 0) a.rstd[r] = rstd;
  const T* normed = delta != nullptr ? sum : x;  // a thread reads back what it wrote itself
  T* out = a.out.at(r);
  for (int64_t i = lane * kVec; i < a.d; i += kLanes * kVec) {
    const Vec<T, kVec> v = load<kVec>(normed + i), w = load<kVec>(a.weight + i);
    Vec<T, kVec> y;
    for (int j = 0; j < kVec; ++j) y.v[j] = narrow<T>(widen(v.v[j]) * rstd * widen(w.v[j]));
    store(out + i, y);
  }
}

template <class T>
struct Backward {
  Rows<const T> dout, x, dresidual;
  const T* weight;
  const float* rstd;
  Rows<T> dx;
  float* partial;  // [blocks of kSumRows rows, d]
  int64_t n, d;
};

// partial[b,d] = sum over the rows of block b of dout * xhat, ascending; a thread per column. Before dx, which may be dout.
template <class T>
__global__ void __launch_bounds__(kSumThreads) backward_weight(Backward<T> a) {
  const int64_t column = int64_t{blockIdx.y} * kSumThreads + threadIdx.x;
  if (column >= a.d) return;
  const int64_t first = int64_t{blockIdx.x} * kSumRows;
  const int64_t end = first + kSumRows < a.n ? first + kSumRows : a.n;
  float sum = 0;
  for (int64_t r = first; r < end; ++r)
    sum += widen(a.dout.at(r)[column]) * (widen(a.x.at(r)[column]) * a.rstd[r]);
  a.partial[blockIdx.x * a.d + column] = sum;
}

// With xhat = x * rstd and g = dout * weight: dx = rstd * (g - xhat * mean_d(g * xhat)) + dresidual.
template <class T, int kVec>
__global__ void __launch_bounds__(kRowsPerBlock * kLanes) backward(Backward<T> a) {
  const int64_t r = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kLanes;
  const bool live = r < a.n;
  const T* dout = live ? a.dout.at(r) : nullptr;
  const T* x = live ? a.x.at(r) : nullptr;
  const float rstd = live ? a.rstd[r] : 0;
  const float sum_gx = row_sum<kVec>(a.d, live, [=](int64_t i) {
    const Vec<T, kVec> dy = load<kVec>(dout + i), v = load<kVec>(x + i), w = load<kVec>(a.weight + i);
    Vec<float, kVec> gx;
    for (int j = 0; j < kVec; ++j) gx.v[j] = widen(dy.v[j]) * (widen(v.v[j]) * rstd) * widen(w.v[j]);
    return gx;
  });
  if (!live) return;
  const float mean_gx = sum_gx / static_cast<float>(a.d);
  const T* dresidual = a.dresidual.data != nullptr ? a.dresidual.at(r) : nullptr;
  T* dx = a.dx.at(r);
  for (int64_t i = static_cast<int>(threadIdx.x) % kLanes * kVec; i < a.d; i += kLanes * kVec) {
    const Vec<T, kVec> dy = load<kVec>(dout + i), v = load<kVec>(x + i), w = load<kVec>(a.weight + i);
    Vec<T, kVec> add = {}, y;
    if (dresidual != nullptr) add = load<kVec>(dresidual + i);
    for (int j = 0; j < kVec; ++j) {
      const float g = widen(dy.v[j]) * widen(w.v[j]);
      const float dx_norm = (g - widen(v.v[j]) * rstd * mean_gx) * rstd;
      y.v[j] = narrow<T>(dresidual != nullptr ? dx_norm + widen(add.v[j]) : dx_norm);
    }
    store(dx + i, y);
  }
}

unsigned row_blocks(int64_t n) { return static_cast<unsigned>((n + kRowsPerBlock - 1) / kRowsPerBlock); }

template <class T>
Status run_forward(Stream& stream, const RmsNormArgs& a) {
  const Forward<T> args = {rows_of<const T>(a.x), rows_of<const T>(a.delta), static_cast<const T*>(a.weight.data),
                           rows_of<T>(a.sum), rows_of<T>(a.out), static_cast<float*>(a.rstd.data),
                           row_count(a.x), a.weight.dim[0], a.eps};
  if (args.n == 0) return {};
  const bool aligned = rows_aligned(a.x) && rows_aligned(a.out) && rows_aligned(a.weight) &&
                       (!a.delta.present() || (rows_aligned(a.delta) && rows_aligned(a.sum)));
  constexpr int kVec = 16 / sizeof(T);
  return launch(stream.native(), row_blocks(args.n), kRowsPerBlock * kLanes, sizeof(Tiles), "rms_norm",
                aligned ? forward<T, kVec> : forward<T, 1>, args);
}

template <class T>
Status run_backward(Stream& stream, const RmsNormBackwardArgs& a) {
  const int64_t n = row_count(a.x), d = a.weight.dim[0];
  LLMOPS_ASSIGN(float* const partial, row_sums_workspace(stream, n, d));
  const Backward<T> args = {rows_of<const T>(a.dout), rows_of<const T>(a.x), rows_of<const T>(a.dresidual),
                            static_cast<const T*>(a.weight.data), static_cast<const float*>(a.rstd.data),
                            rows_of<T>(a.dx), partial, n, d};
  if (n > 0) {
    LLMOPS_TRY(launch(stream.native(), row_sums_grid(n, d), kSumThreads, 0, "rms_norm_backward dweight",
                      backward_weight<T>, args));
    const bool aligned = rows_aligned(a.dout) && rows_aligned(a.x) && rows_aligned(a.weight) && rows_aligned(a.dx) &&
                         (!a.dresidual.present() || rows_aligned(a.dresidual));
    constexpr int kVec = 16 / sizeof(T);
    LLMOPS_TRY(launch(stream.native(), row_blocks(n), kRowsPerBlock * kLanes, sizeof(Tiles), "rms_norm_backward",
                      aligned ? backward<T, kVec> : backward<T, 1>, args));
  }
  return fold_row_sums(stream, partial, n, d, static_cast<float*>(a.dweight.data), a.accumulate);
}

}  // namespace

Status rms_norm(Stream& stream, const RmsNormArgs& a) {
  return a.x.dtype == DType::f32 ? run_forward<float>(stream, a) : run_forward<bf16>(stream, a);
}

Status rms_norm_backward(Stream& stream, const RmsNormBackwardArgs& a) {
  return a.x.dtype == DType::f32 ? run_backward<float>(stream, a) : run_backward<bf16>(stream, a);
}

}  // namespace llmops::cuda
