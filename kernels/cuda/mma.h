// Tensor cores: the warp-wide product mma.m16n8k16 of bf16 with f32 sums, and ldmatrix, which brings its operands from
// shared memory into registers. PTX stands in this file and in copy.h only; under the SIMT shim each function has a twin
// that moves the same elements between the same lanes, so a wrong index gives a wrong result there too.
//
// Which lane holds what (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type"), for lane = 4 * g + t:
//   a [16 rows m, 16 k]    r[0] (g, 2t) (g, 2t+1)    r[1] (g+8, 2t) ..    r[2] (g, 2t+8) ..    r[3] (g+8, 2t+8) ..
//   b [16 k, 8 columns n]  r[0] (2t, g) (2t+1, g)    r[1] (2t+8, g) ..
//   c [16 rows m, 8 n]     r[0] (g, 2t)    r[1] (g, 2t+1)    r[2] (g+8, 2t)    r[3] (g+8, 2t+1)
// A register of a and b holds two bf16, the one with the lower index in its low half.
#pragma once

#include "kernels/cuda/device.h"

#if defined(__CUDACC__) || defined(LLMOPS_SIMT)

namespace llmops::cuda {

struct MmaA {
  unsigned r[4];
};
struct MmaB {
  unsigned r[2];
};
struct MmaC {
  float r[4];
};

#ifdef LLMOPS_SIMT
namespace twin {

struct Mma {
  MmaC* c;
  const MmaA* a;
  const MmaB* b;
};

inline float half_of(unsigned pair, int high) { return widen(bf16{static_cast<uint16_t>(pair >> 16 * high)}); }

// Tensor cores round once or several times in 16 products, in an order that is not documented; the twin rounds once.
inline const char* mma_warp(void* const (&lanes)[kWarp]) {
  const auto lane = [&](int i) -> const Mma& { return *static_cast<const Mma*>(lanes[i]); };
  float a[16][16], b[16][8];
  for (int i = 0; i < kWarp; ++i) {
    const int g = i / 4, t = i % 4;
    for (int r = 0; r < 4; ++r)
      for (int high = 0; high < 2; ++high)
        a[g + r % 2 * 8][2 * t + r / 2 * 8 + high] = half_of(lane(i).a->r[r], high);
    for (int r = 0; r < 2; ++r)
      for (int high = 0; high < 2; ++high) b[2 * t + r * 8 + high][g] = half_of(lane(i).b->r[r], high);
  }
  for (int i = 0; i < kWarp; ++i)
    for (int r = 0; r < 4; ++r) {
      const int m = i / 4 + r / 2 * 8, n = i % 4 * 2 + r % 2;
      double sum = lane(i).c->r[r];
      for (int k = 0; k < 16; ++k) sum += double{a[m][k]} * double{b[k][n]};
      lane(i).c->r[r] = static_cast<float>(sum);
    }
  return nullptr;
}

struct LoadMatrices {
  unsigned* r;
  const void* row;
};

template <bool kTransposed>
const char* load_matrices_warp(void* const (&lanes)[kWarp]) {
  const auto lane = [&](int i) -> const LoadMatrices& { return *static_cast<const LoadMatrices*>(lanes[i]); };
  for (int i = 0; i < kWarp; ++i)
    if (reinterpret_cast<uintptr_t>(lane(i).row) % 16 != 0) return "a row does not start on 16 bytes";
  const auto element = [&](int matrix, int row, int column) {
    return unsigned{static_cast<const uint16_t*>(lane(8 * matrix + row).row)[column]};
  };
  unsigned loaded[kWarp][4];
  for (int i = 0; i < kWarp; ++i)
    for (int x = 0; x < 4; ++x) {
      const int g = i / 4, t = i % 4;
      loaded[i][x] = kTransposed ? element(x, 2 * t, g) | element(x, 2 * t + 1, g) << 16
                                 : element(x, g, 2 * t) | element(x, g, 2 * t + 1) << 16;
    }
  for (int i = 0; i < kWarp; ++i) std::memcpy(lane(i).r, loaded[i], sizeof loaded[i]);
  return nullptr;
}

}  // namespace twin
#endif

// c += a * b. The whole warp calls it.
__device__ __forceinline__ void mma(MmaC& c, const MmaA& a, const MmaB& b) {
#ifdef LLMOPS_SIMT
  static constexpr simt::WarpCall kCall = {"mma", twin::mma_warp};
  twin::Mma mine = {&c, &a, &b};
  simt::warp_call(kCall, &mine);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c.r[0]), "+f"(c.r[1]), "+f"(c.r[2]), "+f"(c.r[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
#endif
}

// Loads four 8x8 matrices of bf16 from shared memory. Lane i gives the address, on 16 bytes, of row i % 8 of matrix
// i / 8; r[x] gets matrix x: lane 4 * g + t its elements (g, 2t) and (g, 2t+1), or (2t, g) and (2t+1, g) when
// kTransposed. The whole warp calls it.
//   a stored [m,k]: matrices (0,0) (8,0) (0,8) (8,8) of (m,k) are r of MmaA; stored [k,m]: the same, transposed
//   b stored [n,k]: matrices (0,0) (0,8) of (n,k) are r of MmaB; stored [k,n]: (0,0) (8,0) of (k,n), transposed
template <bool kTransposed>
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], const void* row) {
#ifdef LLMOPS_SIMT
  static constexpr simt::WarpCall kCall = {"ldmatrix", twin::load_matrices_warp<kTransposed>};
  twin::LoadMatrices mine = {r, row};
  simt::warp_call(kCall, &mine);
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  }
#endif
}

}  // namespace llmops::cuda

#endif
