#include "comm/nccl_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace llmops::nccl {
namespace {

constexpr int kVersionMin = 22800, kVersionEnd = 30000;

}  // namespace

Result<Api> load(const char* name) {
  // Never closed: NCCL has threads of its own.
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return io_error(fmt::format("NCCL: {} cannot be opened ({}): ranks on CUDA devices need NCCL 2.28 or later; install it, "
                                "or set LD_LIBRARY_PATH to its folder",
                                name, dlerror()));
  Api found;
  const auto find = [&](auto& function, const char* symbol_name) -> Status {
    void* const symbol = dlsym(library, symbol_name);
    if (symbol == nullptr) return io_error(fmt::format("NCCL: {} has no {}, expected 2.28 or a later 2.x", name, symbol_name));
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
    return {};
  };
  LLMOPS_TRY(find(found.GetVersion, "ncclGetVersion"));  // an old library lacks more, but its version says why
  int version = 0;
  if (found.GetVersion(&version) != Code::success || version < kVersionMin || version >= kVersionEnd)
    return io_error(fmt::format("NCCL: {} is version {}.{}.{}, expected 2.28 or a later 2.x", name, version / 10000,
                                version / 100 % 100, version % 100));
#define X(call, parameters) LLMOPS_TRY(find(found.call, "nccl" #call));
  LLMOPS_NCCL_CALLS(X)
#undef X
  LLMOPS_TRY(find(found.GetErrorString, "ncclGetErrorString"));
  LLMOPS_TRY(find(found.GetLastError, "ncclGetLastError"));
  return found;
}

Result<const Api*> api() {
  static const Result<Api> loaded = load();
  LLMOPS_TRY(loaded.status());
  return &*loaded;
}

}  // namespace llmops::nccl
