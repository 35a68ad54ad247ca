// The matmul of f32 operands: products and sums by fma, in the order of kernels/ops.h, so with the cpu table's bits.
//
// A thread has kPerM x kPerN sums in registers. It reads its operands 16 bytes at a time: four k of a row where lines run
// along k, four rows of one k where they run along the rows.
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul_tiles.h"

namespace llmops::cuda {
namespace {

// Where the i-th of a thread's rows (or columns) is, of kThreads threads side by side.
template <bool kAlongK, int kThreads>
__device__ __forceinline__ int place(int t, int i) {
  return kAlongK ? t + i * kThreads : 4 * t + i / 4 * 4 * kThreads + i % 4;
}

// Four k, from k on, of four of a thread's rows, from the i-th on.
struct Slab {
  float v[4][4];  // [row][k]
};
template <int kThreads, int kRows, int kK, bool kAlongK>
__device__ __forceinline__ Slab load_slab(const OperandTile<float, kRows, kK, kAlongK>& tile, int t, int i, int k) {
  Slab slab;
  for (int x = 0; x < 4; ++x) {
    const int row = place<kAlongK, kThreads>(t, kAlongK ? i + x : i);
    const Vec<float, 4> v = kAlongK ? load<4>(&tile.line[row][k]) : load<4>(&tile.line[k + x][row]);
    for (int y = 0; y < 4; ++y) (kAlongK ? slab.v[x][y] : slab.v[y][x]) = v.v[y];
  }
  return slab;
}

template <bool kAlongA, bool kAlongB, int kThreadsM, int kThreadsN, int kPerM, int kPerN, int kSliceCount>
struct F32Kind {
  using T = float;
  static constexpr int kTileM = kThreadsM * kPerM, kTileN = kThreadsN * kPerN, kTileK = 16, kStages = 3;
  static constexpr int kSlices = kSliceCount, kThreads = kThreadsM * kThreadsN * kSlices;
  using TileA = OperandTile<float, kTileM, kTileK, kAlongA>;
  using TileB = OperandTile<float, kTileN, kTileK, kAlongB>;
  struct Sums {
    float v[kPerM * kPerN];
  };

  template <class Body>
  static __device__ __forceinline__ void each(int thread, Body body) {
#pragma unroll
    for (int i = 0; i < kPerM * kPerN; ++i)
      body(i, place<kAlongA, kThreadsM>(thread / kThreadsN, i / kPerN),
           place<kAlongB, kThreadsN>(thread % kThreadsN, i % kPerN));
  }

  template <bool kWhole, class Stage>
  static __device__ __forceinline__ void add(Sums& sums, const Stage& stage, int thread, int count) {
    const int tm = thread / kThreadsN, tn = thread % kThreadsN;
#pragma unroll
    for (int k = 0; k < kTileK; k += 4) {
      if (!kWhole && k >= count) break;
      Slab a[kPerM / 4];
#pragma unroll
      for (int i = 0; i < kPerM; i += 4) a[i / 4] = load_slab<kThreadsM>(stage.a, tm, i, k);
#pragma unroll
      for (int j = 0; j < kPerN; j += 4) {
        const Slab b = load_slab<kThreadsN>(stage.b, tn, j, k);
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          if (!kWhole && k + x >= count) break;
#pragma unroll
          for (int i = 0; i < kPerM; ++i)
#pragma unroll
            for (int y = 0; y < 4; ++y) {
              float& sum = sums.v[i * kPerN + j + y];
              sum = fmaf(a[i / 4].v[i % 4][x], b.v[y][x], sum);
            }
        }
      }
    }
  }
};

template <bool kAlongA, bool kAlongB>
struct F32Kinds {
  using Many = F32Kind<kAlongA, kAlongB, 16, 16, 8, 8, 1>;  // 128 x 128
  using Few = F32Kind<kAlongA, kAlongB, 4, 8, 4, 4, 4>;     // 16 x 32, four chains at a time
};

}  // namespace

Status matmul_f32(Stream& stream, const MatmulArgs& args) { return launch_matmul<F32Kinds>(stream, args); }

}  // namespace llmops::cuda
