// The part of cuBLASLt that llmops calls, out of libcublasLt.so as it is found at first use: the program starts without
// it. Names and numbers are those of cublasLt.h 12 and 13; cublaslt_api.cpp holds them against that file where it is
// installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace llmops::cuda::lt {

using Handle = struct HandleData*;
using Desc = struct DescData*;
using Layout = struct LayoutData*;
using Preference = struct PreferenceData*;

enum class Code : int { success = 0, alloc_failed = 3, invalid_value = 7, execution_failed = 13, not_supported = 15 };
enum class Type : int { f32 = 0, bf16 = 14 };
enum class Compute : int { f32 = 68 };  // products and sums of f32 operands are f32, not TF32

enum class DescField : int {
  trans_a = 3,        // i32, 1: transposed
  trans_b = 4,        // i32
  epilogue = 7,       // i32, Epilogue
  bias = 8,           // pointer, one element a row of D, of D's type; with sums_of_b one a column of D
  aux = 11,           // pointer, of the size of D
  aux_ld = 12,        // i64, a multiple of 8
};
// Sums of flags: out = gelu(sum + bias); aux gets sum + bias, or, with dgelu, out = sum * gelu'(aux). sums_of_a, sums_of_b
// alone (the header's BGRADA, BGRADB): bias gets the sums of A or B over k.
namespace epilogue {
constexpr int32_t none = 1, bias = 4, gelu = 32, dgelu = 64, aux = 128, sums_of_a = 256, sums_of_b = 512;
}
enum class PreferenceField : int { workspace_bytes_max = 1, align_a = 5, align_b = 6, align_c = 7, align_d = 8 };

struct Algo {
  uint64_t data[8];
};
struct Choice {
  Algo algo;
  size_t workspace_bytes;
  Code state;
  float waves;
  int reserved[4];
};

// name without "cublasLt", parameters. Matrices are stored by columns, ld elements apart. `stream` is a cudaStream_t.
#define LLMOPS_CUBLASLT_CALLS(X)                                                                                      \
  X(Create, (Handle * handle))                                                                                        \
  X(MatmulDescCreate, (Desc * desc, Compute compute, Type scale))                                                     \
  X(MatmulDescSetAttribute, (Desc desc, DescField field, const void* value, size_t bytes))                            \
  X(MatrixLayoutCreate, (Layout * layout, Type type, uint64_t rows, uint64_t columns, int64_t ld))                    \
  X(MatmulPreferenceCreate, (Preference * preference))                                                                \
  X(MatmulPreferenceDestroy, (Preference preference))                                                                 \
  X(MatmulPreferenceSetAttribute, (Preference preference, PreferenceField field, const void* value, size_t bytes))    \
  X(MatmulAlgoGetHeuristic, (Handle handle, Desc desc, Layout a, Layout b, Layout c, Layout d, Preference preference, \
                             int asked, Choice* choices, int* found))                                                 \
  X(Matmul, (Handle handle, Desc desc, const void* alpha, const void* a, Layout a_layout, const void* b,              \
             Layout b_layout, const void* beta, const void* c, Layout c_layout, void* d, Layout d_layout,             \
             const Algo* algo, void* workspace, size_t workspace_bytes, void* stream))

struct Api {
#define X(name, parameters) Code(*name) parameters = nullptr;
  LLMOPS_CUBLASLT_CALLS(X)
#undef X
  size_t (*GetVersion)() = nullptr;
};

std::string text_of_version(size_t version);  // "13.1.0"

// Code::io when there is no library, one without a function of ours, or one of another version.
Result<Api> load();
// What load() gave when it was first asked for.
Result<const Api*> api();

}  // namespace llmops::cuda::lt
