// The matmul of bf16 operands on tensor cores: mma.sync with f32 sums (kernels/cuda/mma.h), 16 k an instruction,
// ascending, in chains of 512 k that are added ascending. The bits of an element depend on its row of a and its column
// of b only; what an instruction does with 16 products is the GPU's, so they are not those of the cpu table.
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul_tiles.h"
#include "kernels/cuda/mma.h"

namespace llmops::cuda {
namespace {

// The four 8x8 matrices of 16 rows from `row` and 16 k from `k` on: (0,0), (8,0), (0,8), (8,8) of (row, k).
template <int kRows, int kK, bool kAlongK>
__device__ __forceinline__ void load_fragments(const OperandTile<bf16, kRows, kK, kAlongK>& tile, int lane, int row,
                                               int k, unsigned (&r)[4]) {
  row += lane / 8 % 2 * 8;
  k += lane / 16 * 8;
  if (kAlongK) load_matrices<false>(r, &tile.line[row + lane % 8][k]);
  else load_matrices<true>(r, &tile.line[k + lane % 8][row]);
}

// kWarpsM x kWarpsN warps with kFragsM x kFragsN products of 16 x 8 each.
template <bool kAlongA, bool kAlongB, int kWarpsM, int kWarpsN, int kFragsM, int kFragsN, int kSliceCount, int kStepK,
          int kRing>
struct Bf16Kind {
  using T = bf16;
  static constexpr int kTileM = kWarpsM * kFragsM * 16, kTileN = kWarpsN * kFragsN * 8, kTileK = kStepK, kStages = kRing;
  static constexpr int kSlices = kSliceCount, kThreads = kWarp * kWarpsM * kWarpsN * kSlices;
  using TileA = OperandTile<bf16, kTileM, kTileK, kAlongA>;
  using TileB = OperandTile<bf16, kTileN, kTileK, kAlongB>;
  struct Sums {
    float v[kFragsM * kFragsN * 4];
  };

  template <class Body>
  static __device__ __forceinline__ void each(int thread, Body body) {
    const int lane = thread % kWarp, warp = thread / kWarp;
    const int row0 = warp / kWarpsN * kFragsM * 16 + lane / 4, column0 = warp % kWarpsN * kFragsN * 8 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kFragsM * kFragsN * 4; ++i)
      body(i, row0 + i / 4 / kFragsN * 16 + i / 2 % 2 * 8, column0 + i / 4 % kFragsN * 8 + i % 2);
  }

  template <bool kWhole, class Stage>
  static __device__ __forceinline__ void add(Sums& sums, const Stage& stage, int thread, int count) {
    const int lane = thread % kWarp, warp = thread / kWarp;
    const int row0 = warp / kWarpsN * kFragsM * 16, column0 = warp % kWarpsN * kFragsN * 8;
#pragma unroll
    for (int k = 0; k < kTileK; k += 16) {
      if (!kWhole && k >= count) break;  // up to 15 products with zeros, which change no sum
      MmaA a[kFragsM];
#pragma unroll
      for (int i = 0; i < kFragsM; ++i) load_fragments(stage.a, lane, row0 + i * 16, k, a[i].r);
#pragma unroll
      for (int j = 0; j < kFragsN; j += 2) {
        unsigned b[4];
        load_fragments(stage.b, lane, column0 + j * 8, k, b);
#pragma unroll
        for (int i = 0; i < kFragsM; ++i) {
          add_product(sums, i * kFragsN + j, a[i], {{b[0], b[2]}});
          add_product(sums, i * kFragsN + j + 1, a[i], {{b[1], b[3]}});
        }
      }
    }
  }

 private:
  static __device__ __forceinline__ void add_product(Sums& sums, int fragment, const MmaA& a, const MmaB& b) {
    float* const v = sums.v + 4 * fragment;
    MmaC c = {{v[0], v[1], v[2], v[3]}};
    mma(c, a, b);
    for (int i = 0; i < 4; ++i) v[i] = c.r[i];
  }
};

template <bool kAlongA, bool kAlongB>
struct Bf16Kinds {
  using Many = Bf16Kind<kAlongA, kAlongB, 2, 4, 4, 4, 1, 32, 4>;  // 128 x 128, a warp 64 x 32
  using Few = Bf16Kind<kAlongA, kAlongB, 1, 1, 1, 4, 4, 64, 3>;   // 16 x 32, four chains at a time
};

}  // namespace

Status matmul_bf16(Stream& stream, const MatmulArgs& args) { return launch_matmul<Bf16Kinds>(stream, args); }

}  // namespace llmops::cuda
