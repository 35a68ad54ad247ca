// See simt_cublaslt.h. What is checked is what cublasLt.h and the cuBLAS guide demand of cublasLtMatmul().
#include "support/simt_cublaslt.h"

#include <cmath>
#include <cstdlib>
#include <deque>
#include <string_view>

#include "base/dtype.h"
#include "kernels/cuda/cublaslt_api.h"
#include "support/simt.h"

namespace llmops::cuda::lt {

struct HandleData {
  int unused;
};
struct LayoutData {
  Type type;
  uint64_t rows, columns;
  int64_t ld;
};
struct DescData {
  int32_t trans_a = 0, trans_b = 0, epilogue = epilogue::none;
  const void* bias = nullptr;
  void* aux = nullptr;
  int64_t aux_ld = 0;
};
struct PreferenceData {
  uint64_t workspace_bytes = 0;
  uint32_t align[4] = {256, 256, 256, 256};  // of a, b, c, d
};

namespace {

constexpr uint64_t kAlgoMark = 0x6c74;          // an Algo that this library has made
constexpr size_t kWorkspaceNeeded = 64 << 10;

// Handles, descriptors and layouts live to the end, as llmops keeps them.
std::deque<HandleData> handles;
std::deque<DescData> descs;
std::deque<LayoutData> layouts;

simt::CublasLt library;
simt::CublasLtCalls calls;

// An algorithm is good for the problem that it was searched for.
uint64_t problem_of(const DescData& desc, const LayoutData& a, const LayoutData& b, const LayoutData& c,
                    const LayoutData& d) {
  uint64_t hash = kAlgoMark;
  const auto mix = [&](uint64_t value) { hash = (hash ^ value) * 0x9e3779b97f4a7c15u; };
  for (const LayoutData* layout : {&a, &b, &c, &d})
    for (uint64_t value : {uint64_t(layout->type), layout->rows, layout->columns, uint64_t(layout->ld)}) mix(value);
  for (int64_t value : {int64_t(desc.trans_a), int64_t(desc.trans_b), int64_t(desc.epilogue), desc.aux_ld})
    mix(static_cast<uint64_t>(value));
  return hash;
}

bool aligned(const void* data, uint64_t bytes) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; }

// Shapes that fit together, and types and epilogues that exist together.
Code check(const DescData& desc, const LayoutData& a, const LayoutData& b, const LayoutData& c, const LayoutData& d) {
  const uint64_t m = desc.trans_a ? a.columns : a.rows, k = desc.trans_a ? a.rows : a.columns;
  const uint64_t k_of_b = desc.trans_b ? b.columns : b.rows, n = desc.trans_b ? b.rows : b.columns;
  if (k != k_of_b || d.rows != m || d.columns != n || c.rows != m || c.columns != n) return Code::invalid_value;
  if (a.type != b.type || c.type != d.type) return Code::not_supported;
  if (a.type == Type::f32 && d.type != Type::f32) return Code::not_supported;
  const bool sums = desc.epilogue == epilogue::sums_of_a || desc.epilogue == epilogue::sums_of_b;
  if (!sums && desc.epilogue >= epilogue::sums_of_a) return Code::invalid_value;  // beside another
  if (sums && !library.bias_gradients) return Code::not_supported;
  if (sums && desc.bias == nullptr) return Code::invalid_value;
  const bool bias = desc.epilogue & epilogue::bias, aux = desc.epilogue & epilogue::aux;
  if ((bias || aux) && a.type != d.type) return Code::not_supported;  // theirs would be that of D, ours is that of A
  if (bias && desc.bias == nullptr) return Code::invalid_value;
  if (aux && (desc.aux == nullptr || !aligned(desc.aux, 16) || desc.aux_ld % 8 != 0 || desc.aux_ld < int64_t(m))) return Code::invalid_value;
  return Code::success;
}

double get(const void* data, Type type, int64_t i) {
  return type == Type::f32 ? static_cast<const float*>(data)[i] : to_f32(static_cast<const bf16*>(data)[i]);
}
void put(void* data, Type type, int64_t i, double x) {
  if (type == Type::f32) static_cast<float*>(data)[i] = static_cast<float>(x);
  else static_cast<bf16*>(data)[i] = to_bf16(static_cast<float>(x));
}

// GELU in the tanh form, which is the library's, and its derivative.
double tanh_of(double x) { return std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)); }
double gelu(double x) { return 0.5 * x * (1 + tanh_of(x)); }
double gelu_slope(double x) {
  const double t = tanh_of(x);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

struct Product {
  DescData desc;
  LayoutData a_layout, b_layout, c_layout, d_layout;
  const void *a, *b, *c;
  void* d;
  float alpha, beta;

  int64_t k() const { return static_cast<int64_t>(desc.trans_a ? a_layout.rows : a_layout.columns); }
  double a_at(int64_t m, int64_t i) const {
    return get(a, a_layout.type, desc.trans_a ? m * a_layout.ld + i : i * a_layout.ld + m);
  }
  double b_at(int64_t i, int64_t n) const {
    return get(b, b_layout.type, desc.trans_b ? i * b_layout.ld + n : n * b_layout.ld + i);
  }
  double sum(int64_t m, int64_t n) const {
    double sum = 0;
    for (int64_t i = 0; i < k(); ++i) sum += a_at(m, i) * b_at(i, n);
    return sum;
  }
  // Bias gradients: overwritten, whatever beta is.
  void run_sums() const {
    const bool of_a = desc.epilogue == epilogue::sums_of_a;
    const auto count = static_cast<int64_t>(of_a ? d_layout.rows : d_layout.columns);
    for (int64_t j = 0; j < count; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < k(); ++i) sum += of_a ? a_at(j, i) : b_at(i, j);
      put(const_cast<void*>(desc.bias), d_layout.type, j, sum);
    }
  }
  void finish(int64_t m, int64_t n, double x) const {
    if (desc.epilogue & epilogue::bias) x += get(desc.bias, d_layout.type, m);
    const int64_t aux = n * desc.aux_ld + m;
    if (desc.epilogue & epilogue::dgelu) {
      x *= gelu_slope(get(desc.aux, d_layout.type, aux));
    } else if (desc.epilogue & epilogue::gelu) {
      if (desc.epilogue & epilogue::aux) put(desc.aux, d_layout.type, aux, x);
      x = gelu(x);
    }
    put(d, d_layout.type, n * d_layout.ld + m, x);
  }
  void run() const {
    for (int64_t n = 0; n < int64_t(d_layout.columns); ++n)
      for (int64_t m = 0; m < int64_t(d_layout.rows); ++m) {
        const double old = beta != 0 ? beta * get(c, c_layout.type, n * c_layout.ld + m) : 0;  // 0: C is not read
        finish(m, n, alpha * sum(m, n) + old);
      }
  }
};

Code Create(Handle* handle) { return *handle = &handles.emplace_back(), Code::success; }

Code MatmulDescCreate(Desc* desc, Compute compute, Type scale) {
  if (compute != Compute::f32 || scale != Type::f32) return Code::not_supported;
  return *desc = &descs.emplace_back(), Code::success;
}

template <class Value>
Code read(Value& field, const void* value, size_t bytes) {
  if (value == nullptr || bytes != sizeof field) return Code::invalid_value;
  return std::memcpy(&field, value, bytes), Code::success;
}

Code MatmulDescSetAttribute(Desc desc, DescField field, const void* value, size_t bytes) {
  switch (field) {
    case DescField::trans_a: return read(desc->trans_a, value, bytes);
    case DescField::trans_b: return read(desc->trans_b, value, bytes);
    case DescField::epilogue: return read(desc->epilogue, value, bytes);
    case DescField::bias: return read(desc->bias, value, bytes);
    case DescField::aux: return read(desc->aux, value, bytes);
    case DescField::aux_ld: return read(desc->aux_ld, value, bytes);
  }
  return Code::invalid_value;
}

Code MatrixLayoutCreate(Layout* layout, Type type, uint64_t rows, uint64_t columns, int64_t ld) {
  if (rows == 0 || columns == 0 || ld < int64_t(rows)) return Code::invalid_value;
  return *layout = &layouts.emplace_back(LayoutData{type, rows, columns, ld}), Code::success;
}

Code MatmulPreferenceCreate(Preference* preference) { return *preference = new PreferenceData, Code::success; }
Code MatmulPreferenceDestroy(Preference preference) { return delete preference, Code::success; }
Code MatmulPreferenceSetAttribute(Preference preference, PreferenceField field, const void* value, size_t bytes) {
  if (field == PreferenceField::workspace_bytes_max) return read(preference->workspace_bytes, value, bytes);
  const int matrix = static_cast<int>(field) - static_cast<int>(PreferenceField::align_a);
  return matrix < 0 || matrix > 3 ? Code::invalid_value : read(preference->align[matrix], value, bytes);
}

Code MatmulAlgoGetHeuristic(Handle handle, Desc desc, Layout a, Layout b, Layout c, Layout d, Preference preference,
                            int asked, Choice* choices, int* found) {
  ++calls.searches;
  *found = 0;
  if (handle == nullptr || asked < 1) return Code::invalid_value;
  if (const Code code = check(*desc, *a, *b, *c, *d); code != Code::success) return code;
  if (preference->workspace_bytes < kWorkspaceNeeded) return Code::not_supported;
  choices[0] = {.workspace_bytes = kWorkspaceNeeded, .state = Code::success, .waves = 1};
  choices[0].algo.data[0] = problem_of(*desc, *a, *b, *c, *d);
  for (int i = 0; i < 4; ++i) choices[0].algo.data[1 + i] = preference->align[i];
  return *found = 1, Code::success;
}

Code Matmul(Handle handle, Desc desc, const void* alpha, const void* a, Layout a_layout, const void* b,
            Layout b_layout, const void* beta, const void* c, Layout c_layout, void* d, Layout d_layout,
            const Algo* algo, void* workspace, size_t workspace_bytes, void* stream) {
  ++calls.products;
  if (desc != nullptr && desc->epilogue >= epilogue::sums_of_a) ++calls.bias_gradients;
  if (handle == nullptr || algo == nullptr) return Code::invalid_value;
  if (const Code code = check(*desc, *a_layout, *b_layout, *c_layout, *d_layout); code != Code::success) return code;
  if (algo->data[0] != problem_of(*desc, *a_layout, *b_layout, *c_layout, *d_layout)) return Code::invalid_value;
  const void* const matrices[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i)
    if (!aligned(matrices[i], algo->data[1 + i])) return Code::invalid_value;  // less than the search was promised
  if (workspace_bytes < kWorkspaceNeeded || !aligned(workspace, 16)) return Code::invalid_value;
  const Product product = {*desc, *a_layout, *b_layout, *c_layout, *d_layout, a, b, c, d,
                           *static_cast<const float*>(alpha), *static_cast<const float*>(beta)};
  const cudaError_t error = simt::launch(static_cast<cudaStream_t>(stream), 1, 1, 0, "cublasLtMatmul", [=] {
    std::memset(workspace, 0xff, kWorkspaceNeeded);  // it belongs to the product until it is done
    product.run();
    if (product.desc.epilogue >= epilogue::sums_of_a) product.run_sums();
  });
  return error == cudaSuccess ? Code::success : Code::execution_failed;
}

size_t GetVersion() { return library.version; }

}  // namespace
}  // namespace llmops::cuda::lt

namespace simt {

void* dlopen(const char* name, int) {
  namespace lt = llmops::cuda::lt;
  const bool present = lt::library.present && std::getenv("LLMOPS_SIMT_NO_CUBLASLT") == nullptr;
  return present && std::string_view(name) == "libcublasLt.so.13" ? &lt::library : nullptr;
}

void* dlsym(void*, const char* name) {
  namespace lt = llmops::cuda::lt;
  if (std::string_view(name) == lt::library.missing) return nullptr;
#define X(call, parameters) \
  if (std::string_view(name) == "cublasLt" #call) return reinterpret_cast<void*>(&lt::call);
  LLMOPS_CUBLASLT_CALLS(X)
#undef X
  return std::string_view(name) == "cublasLtGetVersion" ? reinterpret_cast<void*>(&lt::GetVersion) : nullptr;
}

void set_cublaslt(CublasLt library) { llmops::cuda::lt::library = library; }
CublasLtCalls cublaslt_calls() { return llmops::cuda::lt::calls; }

}  // namespace simt
