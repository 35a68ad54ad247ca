#include "kernels/cuda/cublaslt_api.h"

#include <fmt/format.h>

#ifdef LLMOPS_SIMT
#include "support/simt_cublaslt.h"
#else
#include <dlfcn.h>
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#endif
#endif

namespace llmops::cuda::lt {
namespace {

#ifdef CUBLAS_VERSION
static_assert(int(Code::invalid_value) == CUBLAS_STATUS_INVALID_VALUE);
static_assert(int(Code::alloc_failed) == CUBLAS_STATUS_ALLOC_FAILED);
static_assert(int(Code::not_supported) == CUBLAS_STATUS_NOT_SUPPORTED);
static_assert(int(Code::execution_failed) == CUBLAS_STATUS_EXECUTION_FAILED);
static_assert(int(Type::f32) == CUDA_R_32F && int(Type::bf16) == CUDA_R_16BF);
static_assert(int(Compute::f32) == CUBLAS_COMPUTE_32F);
static_assert(int(DescField::trans_a) == CUBLASLT_MATMUL_DESC_TRANSA);
static_assert(int(DescField::trans_b) == CUBLASLT_MATMUL_DESC_TRANSB);
static_assert(int(DescField::epilogue) == CUBLASLT_MATMUL_DESC_EPILOGUE);
static_assert(int(DescField::bias) == CUBLASLT_MATMUL_DESC_BIAS_POINTER);
static_assert(int(DescField::aux) == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
static_assert(int(DescField::aux_ld) == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD && CUBLAS_OP_T == 1);
static_assert(epilogue::none == CUBLASLT_EPILOGUE_DEFAULT && epilogue::bias == CUBLASLT_EPILOGUE_BIAS);
static_assert((epilogue::gelu | epilogue::aux | epilogue::bias) == CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
static_assert((epilogue::dgelu | epilogue::aux) == CUBLASLT_EPILOGUE_DGELU);
static_assert(epilogue::sums_of_a == CUBLASLT_EPILOGUE_BGRADA && epilogue::sums_of_b == CUBLASLT_EPILOGUE_BGRADB);
static_assert(int(PreferenceField::workspace_bytes_max) == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(int(PreferenceField::align_a) == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(int(PreferenceField::align_d) == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
static_assert(sizeof(Algo) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(Choice) == sizeof(cublasLtMatmulHeuristicResult_t));
#endif

#ifdef LLMOPS_SIMT
using simt::dlopen, simt::dlsym, simt::RTLD_LOCAL, simt::RTLD_NOW;
#endif

constexpr const char* kLibraries[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
constexpr size_t kVersionMin = 120000, kVersionEnd = 140000;

}  // namespace

std::string text_of_version(size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

Result<Api> load() {
  void* library = nullptr;
  for (const char* name : kLibraries)
    if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);  // never closed
  if (library == nullptr)
    return io_error(fmt::format("cuBLASLt: neither {} nor {} can be opened; install cuBLAS, or set LD_LIBRARY_PATH to "
                                "its folder",
                                kLibraries[0], kLibraries[1]));
  Api found;
  const auto find = [&](auto& function, const char* name) -> Status {
    void* const symbol = dlsym(library, name);
    if (symbol == nullptr)
      return io_error(fmt::format("cuBLASLt: the library has no {}: expected cuBLAS 12 or 13", name));
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
    return {};
  };
#define X(name, parameters) LLMOPS_TRY(find(found.name, "cublasLt" #name));
  LLMOPS_CUBLASLT_CALLS(X)
#undef X
  LLMOPS_TRY(find(found.GetVersion, "cublasLtGetVersion"));
  const size_t version = found.GetVersion();
  if (version < kVersionMin || version >= kVersionEnd)
    return io_error(fmt::format("cuBLASLt: the library is version {}, expected cuBLAS 12 or 13", text_of_version(version)));
  return found;
}

Result<const Api*> api() {
  static const Result<Api> loaded = load();
  LLMOPS_TRY(loaded.status());
  return &*loaded;
}

}  // namespace llmops::cuda::lt
