// A config.json as bytes: what is accepted passes the cross checks, and our own description of it reads back the same.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/json.h"
#include "layout/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace llmops;
  const auto json = json_parse(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!json.ok()) return 0;
  const auto config = model_config_from_hf(*json);
  if (!config.ok()) return 0;
  if (!check(*config).ok()) __builtin_trap();
  const auto again = model_config_from_json(to_json(*config));
  if (!again.ok() || !(*again == *config)) __builtin_trap();
  return 0;
}
