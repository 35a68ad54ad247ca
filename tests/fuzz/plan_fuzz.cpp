// A plan.toml as bytes: accepted, or one message that names the file.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "layout/plan.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto plan = llmops::plan_from_toml("plan.toml", std::string_view(reinterpret_cast<const char*>(data), size));
  if (!plan.ok() && plan.status().message().find("plan.toml") == std::string::npos) __builtin_trap();
  return 0;
}
