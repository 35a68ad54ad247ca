#include "comm/nccl_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace llmops::nccl {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";
constexpr int kVersionMin = 22800, kVersionEnd = 30000;

Result<Api> load() {
  // Never closed: NCCL has threads of its own.
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return io_error(fmt::format("NCCL: {} cannot be opened ({}): ranks on CUDA devices need NCCL 2.28 or later; install it, "
                                "or set LD_LIBRARY_PATH to its folder",
                                kLibrary, dlerror()));
  Api found;
  const auto find = [&](auto& function, const char* name) -> Status {
    void* const symbol = dlsym(library, name);
    if (symbol == nullptr) return io_error(fmt::format("NCCL: {} has no {}: expected NCCL 2.28 or later", kLibrary, name));
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
    return {};
  };
#define X(name, parameters) LLMOPS_TRY(find(found.name, "nccl" #name));
  LLMOPS_NCCL_CALLS(X)
#undef X
  LLMOPS_TRY(find(found.GetErrorString, "ncclGetErrorString"));
  LLMOPS_TRY(find(found.GetLastError, "ncclGetLastError"));
  int version = 0;
  if (found.GetVersion(&version) != Code::success || version < kVersionMin || version >= kVersionEnd)
    return io_error(fmt::format("NCCL: {} is version {}.{}.{}, expected 2.28 or a later 2.x", kLibrary, version / 10000,
                                version / 100 % 100, version % 100));
  return found;
}

}  // namespace

Result<const Api*> api() {
  static const Result<Api> loaded = load();
  LLMOPS_TRY(loaded.status());
  return &*loaded;
}

}  // namespace llmops::nccl
