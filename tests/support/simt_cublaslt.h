// cuBLASLt on the SIMT shim, for tests only: the calls of kernels/cuda/cublaslt_api.h, with the checks that the library
// makes of layouts, epilogues, alignments and the workspace. A product runs late, in its stream's order, like a kernel.
// LLMOPS_SIMT_NO_CUBLASLT in the environment: the machine has none.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simt {

constexpr int RTLD_NOW = 2, RTLD_LOCAL = 0;
void* dlopen(const char* name, int flags);
void* dlsym(void* library, const char* name);

// What the machine has; the default is version 13.1.0.
struct CublasLt {
  bool present = true;
  const char* missing = "";  // a function that the library lacks
  size_t version = 130100;
  bool bias_gradients = true;  // its epilogues: without, no algorithm is found for them
};
void set_cublaslt(CublasLt library);

struct CublasLtCalls {
  int64_t searches = 0, products = 0, bias_gradients = 0;
};
CublasLtCalls cublaslt_calls();  // since the start of the process

}  // namespace simt
