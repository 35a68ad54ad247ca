// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11).
// A draw is a pure function of (key, counter), so the same stream comes out on CPU and GPU, in any order, for any
// number of threads or ranks. This header is included by CUDA sources too: no standard library calls but <cstdint>.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define LLMOPS_HOST_DEVICE __host__ __device__
#else
#define LLMOPS_HOST_DEVICE
#endif

namespace llmops {

struct Philox {
  uint32_t v[4];
};

// Ten rounds on a 128-bit counter {counter_lo, counter_hi} with a 64-bit key.
LLMOPS_HOST_DEVICE inline Philox philox4x32(uint64_t key, uint64_t counter_lo, uint64_t counter_hi) {
  uint32_t c0 = static_cast<uint32_t>(counter_lo), c1 = static_cast<uint32_t>(counter_lo >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_hi), c3 = static_cast<uint32_t>(counter_hi >> 32);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Uniform in [0, 1) with 24 bits, exact in float.
LLMOPS_HOST_DEVICE inline float uniform_f32(uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

// Uniform in (0, 1) with 52 bits from two words: the odd multiples of 2^-53, all exact; log(x) and log(1 - x) are finite.
LLMOPS_HOST_DEVICE inline double uniform_f64(uint32_t hi, uint32_t lo) {
  const uint64_t bits = (uint64_t{hi} << 32 | lo) >> 12;
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

}  // namespace llmops
