// Sums of floats by atomics have no fixed order, so none may be in a kernel: compiled for the shim with FLOAT_ATOMICS
// this file must fail, without it pass.
#include "kernels/cuda/device.h"

__global__ void sum(const float* in, float* out) {
#ifdef FLOAT_ATOMICS
  atomicAdd(out, in[threadIdx.x]);
#else
  out[threadIdx.x] = in[threadIdx.x];
#endif
}
