// plan.toml: one file for plan, train, infer, ckpt and mfu. Unknown keys are errors with file, line and the nearest
// name.
#pragma once

#include <cstdint>
#include <string>

#include "layout/params.h"

namespace llmops {

struct Plan {
  std::string model;  // [model] descriptor = "gpt2:d12" or config = "DIR/config.json"
  bool model_is_file = false;
  std::string device;  // [cluster] device, nodes, devices_per_node
  int64_t nodes = 1, devices_per_node = 1;
  Parallel parallel;  // [parallel]
  std::string order = "tp-cp-dp-pp", placement;
  int64_t micro_batch = 0, global_batch = 0, seq = 0;  // [train]; 0: not given
  std::string dtype, recompute, schedule;
  int64_t save_every = 0, keep = 0;  // [checkpoint]
  std::string checkpoint_dir;
  double price_per_device_hour = 0;  // [cost] USD
  std::string currency;
};

Result<Plan> plan_from_toml(const std::string& path, std::string_view text);
Result<Plan> plan_from_file(const std::string& path);

}  // namespace llmops
