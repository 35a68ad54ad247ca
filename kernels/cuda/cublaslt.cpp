#include "kernels/cuda/cublaslt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "kernels/cuda/cublaslt_api.h"
#include "kernels/cuda/device.h"

namespace llmops::cuda {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;  // what cuBLAS advises for sm_90; split sums need it

Status status_of(lt::Code code, const char* what) {
  if (code == lt::Code::success) return {};
  return peer_error(fmt::format("cuBLASLt: {} gave status {}", what, static_cast<int>(code)));
}

// Rows of our out are columns of the library's D: D[n,m] = A[n,k] B[k,m] with A from our b and B from our a.
struct Plan {
  lt::Desc desc = nullptr;
  lt::Layout a = nullptr, b = nullptr, c = nullptr, d = nullptr;
  bool found = false;
  lt::Algo algo = {};
};

// All that the choice of an algorithm may depend on.
using Key = std::array<int64_t, 18>;

struct Library {
  const lt::Api* api;
  lt::Handle handle;
  std::map<Key, Plan> plans;
};

// One a device. They live as long as the process: the driver may be gone before a destructor would run.
struct Libraries {
  std::mutex mutex;
  std::map<int, Library> of;
};
Libraries& libraries() {
  static auto* const all = new Libraries;
  return *all;
}

Result<Library*> library_of(int device) {
  auto& all = libraries().of;
  if (const auto found = all.find(device); found != all.end()) return &found->second;
  LLMOPS_ASSIGN(const lt::Api* const api, lt::api());
  Library library = {api, nullptr, {}};
  LLMOPS_TRY(cuda::status_of(cudaSetDevice(device), "CUDA device"));
  LLMOPS_TRY(status_of(api->Create(&library.handle), "cublasLtCreate"));
  return &all.emplace(device, std::move(library)).first->second;
}

lt::Type type_of(DType dtype) { return dtype == DType::f32 ? lt::Type::f32 : lt::Type::bf16; }

int32_t epilogue_of(const MatmulArgs& a) {
  if (a.act_backward.present()) return lt::epilogue::dgelu | lt::epilogue::aux;
  if (a.a_sums.present()) return lt::epilogue::sums_of_b;  // our a is the library's B
  if (a.b_sums.present()) return lt::epilogue::sums_of_a;
  int32_t flags = 0;
  if (a.bias.present()) flags |= lt::epilogue::bias;
  if (a.act != Activation::none) flags |= lt::epilogue::gelu;
  if (a.aux.present()) flags |= lt::epilogue::aux;
  return flags != 0 ? flags : lt::epilogue::none;
}

const void* aux_of(const MatmulArgs& a) { return a.act_backward.present() ? a.act_backward.data : a.aux.data; }
const void* vector_of(const MatmulArgs& a) {
  const TensorView sums = sums_of(a).dbias;
  return sums.present() ? sums.data : a.bias.data;
}
int64_t aux_ld_of(const MatmulArgs& a) { return (a.act_backward.present() ? a.act_backward.stride : a.aux.stride)[0]; }

// What is added before the epilogue: the residual, or the old out.
ConstTensorView added(const MatmulArgs& a) { return a.residual.present() ? a.residual : ConstTensorView(a.out); }

// A matrix of one row or column may have any stride; the library wants one that its rows fit into.
int64_t ld_of(const ConstTensorView& view) { return std::max(view.stride[0], std::max<int64_t>(view.dim[1], 1)); }

int64_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return data == nullptr ? 256 : static_cast<int64_t>(std::min<uintptr_t>(256, address & (~address + 1)));
}

Key key_of(const MatmulArgs& a) {
  const ConstTensorView c = added(a);
  return {a.out.dim[0], a.out.dim[1], a.a.dim[a.a_trans ? 0 : 1], a.a_trans, a.b_trans, int64_t(a.a.dtype),
          int64_t(a.out.dtype), epilogue_of(a), ld_of(a.a), ld_of(a.b.data), ld_of(c), ld_of(a.out),
          aux_of(a) != nullptr ? aux_ld_of(a) : 0, alignment_of(a.a.data), alignment_of(a.b.data.data),
          alignment_of(c.data), alignment_of(a.out.data), std::min(alignment_of(vector_of(a)), alignment_of(aux_of(a)))};
}

template <class Value>
Status set(const lt::Api& api, lt::Desc desc, lt::DescField field, const Value& value) {
  return status_of(api.MatmulDescSetAttribute(desc, field, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
}

// The pointers of the epilogue, which may change from call to call.
Status set_pointers(const lt::Api& api, lt::Desc desc, const MatmulArgs& a) {
  if (vector_of(a) != nullptr) LLMOPS_TRY(set(api, desc, lt::DescField::bias, vector_of(a)));
  if (aux_of(a) != nullptr) LLMOPS_TRY(set(api, desc, lt::DescField::aux, aux_of(a)));
  return {};
}

Status make_layout(const lt::Api& api, lt::Layout& layout, const ConstTensorView& view) {
  const auto rows = static_cast<uint64_t>(view.dim[1]), columns = static_cast<uint64_t>(view.dim[0]);
  return status_of(api.MatrixLayoutCreate(&layout, type_of(view.dtype), rows, columns, ld_of(view)),
                   "cublasLtMatrixLayoutCreate");
}

Status choose(const Library& library, const MatmulArgs& a, lt::Preference preference, Plan& plan) {
  const lt::Api& api = *library.api;
  const auto prefer = [&](lt::PreferenceField field, auto value) {
    return status_of(api.MatmulPreferenceSetAttribute(preference, field, &value, sizeof value),
                     "cublasLtMatmulPreferenceSetAttribute");
  };
  const auto align = [&](lt::PreferenceField field, const void* data) {
    return prefer(field, static_cast<uint32_t>(alignment_of(data)));
  };
  LLMOPS_TRY(prefer(lt::PreferenceField::workspace_bytes_max, static_cast<uint64_t>(kWorkspaceBytes)));
  LLMOPS_TRY(align(lt::PreferenceField::align_a, a.b.data.data));
  LLMOPS_TRY(align(lt::PreferenceField::align_b, a.a.data));
  LLMOPS_TRY(align(lt::PreferenceField::align_c, added(a).data));
  LLMOPS_TRY(align(lt::PreferenceField::align_d, a.out.data));
  lt::Choice choice = {};
  int count = 0;
  const lt::Code code = api.MatmulAlgoGetHeuristic(library.handle, plan.desc, plan.a, plan.b, plan.c, plan.d,
                                                   preference, 1, &choice, &count);
  if (code != lt::Code::not_supported) LLMOPS_TRY(status_of(code, "cublasLtMatmulAlgoGetHeuristic"));
  plan.found = code == lt::Code::success && count > 0 && choice.state == lt::Code::success;
  plan.algo = choice.algo;
  return {};
}

Status choose(const Library& library, const MatmulArgs& a, Plan& plan) {
  const lt::Api& api = *library.api;
  lt::Preference preference = nullptr;
  LLMOPS_TRY(status_of(api.MatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate"));
  const Status chosen = choose(library, a, preference, plan);
  const Status ended = status_of(api.MatmulPreferenceDestroy(preference), "cublasLtMatmulPreferenceDestroy");
  return chosen.ok() ? ended : chosen;
}

Status make_plan(const Library& library, const MatmulArgs& a, Plan& plan) {
  const lt::Api& api = *library.api;
  LLMOPS_TRY(status_of(api.MatmulDescCreate(&plan.desc, lt::Compute::f32, lt::Type::f32), "cublasLtMatmulDescCreate"));
  // b stored [n,k] is, by columns, [k,n]: transposed.
  LLMOPS_TRY(set(api, plan.desc, lt::DescField::trans_a, int32_t{a.b_trans}));
  LLMOPS_TRY(set(api, plan.desc, lt::DescField::trans_b, int32_t{a.a_trans}));
  LLMOPS_TRY(set(api, plan.desc, lt::DescField::epilogue, epilogue_of(a)));
  if (aux_of(a) != nullptr) LLMOPS_TRY(set(api, plan.desc, lt::DescField::aux_ld, aux_ld_of(a)));
  LLMOPS_TRY(set_pointers(api, plan.desc, a));
  LLMOPS_TRY(make_layout(api, plan.a, a.b.data));
  LLMOPS_TRY(make_layout(api, plan.b, a.a));
  LLMOPS_TRY(make_layout(api, plan.c, added(a)));
  LLMOPS_TRY(make_layout(api, plan.d, a.out));
  return choose(library, a, plan);
}

}  // namespace

Result<std::string> cublaslt_open(int device) {
  const std::lock_guard lock(libraries().mutex);
  LLMOPS_ASSIGN(const Library* const library, library_of(device));
  return fmt::format("cuBLASLt {}", lt::text_of_version(library->api->GetVersion()));
}

bool cublaslt_takes(const MatmulArgs& a) {
  const bool act = a.act != Activation::none, same = a.out.dtype == a.a.dtype;
  const bool more = act || a.bias.present() || a.residual.present();
  if (a.a.dim[a.a_trans ? 0 : 1] == 0 || (more && !same)) return false;
  if (act && (a.act != Activation::gelu_tanh || a.residual.present())) return false;
  if (sums_of(a).dbias.present() && (more || a.accumulate || a.out.dtype != DType::f32)) return false;
  return aux_of(a) == nullptr || (aux_ld_of(a) % 8 == 0 && alignment_of(aux_of(a)) >= 16);
}

Result<bool> cublaslt_matmul(Stream& stream, const MatmulArgs& a) {
  LLMOPS_ASSIGN(void* const workspace, stream.workspace(kWorkspaceBytes));
  const std::lock_guard lock(libraries().mutex);  // a plan's descriptor holds the pointers of one call
  LLMOPS_ASSIGN(Library* const library, library_of(stream.device().id().cuda));
  const Key key = key_of(a);
  auto at = library->plans.find(key);
  if (at == library->plans.end()) {
    at = library->plans.emplace(key, Plan()).first;  // it also keeps what an error leaves half made, as not found
    LLMOPS_TRY(make_plan(*library, a, at->second));
  }
  const Plan& plan = at->second;
  if (!plan.found) return false;
  LLMOPS_TRY(set_pointers(*library->api, plan.desc, a));
  const float alpha = 1, beta = a.accumulate || a.residual.present() ? 1 : 0;
  LLMOPS_TRY(status_of(
      library->api->Matmul(library->handle, plan.desc, &alpha, a.b.data.data, plan.a, a.a.data, plan.b, &beta,
                           added(a).data, plan.c, a.out.data, plan.d, &plan.algo, workspace,
                           static_cast<size_t>(kWorkspaceBytes), stream.native()),
      "cublasLtMatmul"));
  return true;
}

}  // namespace llmops::cuda
