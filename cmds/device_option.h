// --device of every command that computes.
#pragma once

#include <memory>
#include <string>

#include "cmds/command.h"
#include "kernels/runtime.h"

namespace llmops {

void declare_device(std::string* choice, OptionTable& table);

// Where the ranks of a run compute: rank r on the CPU, or on the CUDA device number first + r.
struct DeviceChoice {
  bool is_cuda = false;
  int first = 0;
  std::string note = "";  // for stderr: why `auto` takes the CPU although there is a driver
};
// Code::usage for a choice that is none; Code::io, saying what was looked for, when ranks would be without a device.
Result<DeviceChoice> choose_device(const std::string& choice, int ranks);
// The library whose matmul training takes: cuBLASLt on a CUDA device that has it, else "" for our own kernels.
std::string matmul_library(Device& device);
Result<std::unique_ptr<Device>> open_device(const DeviceChoice& choice, int rank, int threads);

}  // namespace llmops
