#include "cmds/device_option.h"

#include <fmt/format.h>

#include "base/run.h"
#include "base/text.h"

namespace llmops {
namespace {

const std::vector<std::string> kForms = {"cpu", "cuda", "cuda:INDEX", "cuda:UUID", "auto"};

// A number, or the beginning of a UUID.
bool is_device_name(const std::string& name) {
  const bool number = !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
  return number || (name.size() > 4 && name.starts_with("GPU-"));
}

// The device that "1" or the beginning of one UUID ("GPU-5d3f", as in CUDA_VISIBLE_DEVICES) names.
Result<int> find_device(const std::string& name, const std::vector<CudaInfo>& list) {
  std::string known;
  int found = -1, count = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    known += fmt::format("{}{} {} ({})", i > 0 ? ", " : "", i, list[i].uuid, escape_control(list[i].name));
    if (name == std::to_string(i) || list[i].uuid.starts_with(name)) found = int(i), ++count;
  }
  if (count == 1) return found;
  return io_error(fmt::format("--device cuda:{}: found {} such devices, expected one of {}", escape_control(name), count,
                              known));
}

// Why `auto` does not take the first `ranks` devices.
Status usable_by(int ranks, const Result<std::vector<CudaInfo>>& list) {
  if (!list.ok()) return list.status();
  if (std::ssize(*list) < ranks)
    return io_error(fmt::format("{} ranks need a CUDA device each, found {}", ranks, list->size()));
  for (int i = 0; i < ranks; ++i) LLMOPS_TRY((*list)[size_t(i)].usable(i));
  return {};
}

}  // namespace

void declare_device(std::string* choice, OptionTable& table) {
  table
      .text("device", choice,
            "cpu, cuda, cuda:INDEX, cuda:UUID, or auto: CUDA when there is a device for each rank; rank r takes the r-th "
            "from there")
      .meta("NAME")
      .expects(one_of(kForms));
}

Result<DeviceChoice> choose_device(const std::string& choice, int ranks) {
  const bool automatic = choice == "auto", named = choice.starts_with("cuda:") && is_device_name(choice.substr(5));
  if (choice == "cpu") return DeviceChoice{};
  if (!automatic && !named && choice != "cuda")
    return not_a_choice(choice, kForms).in("--device");
  const auto list = Device::list_cuda();
  if (const Status usable = usable_by(ranks, list); automatic && !usable.ok()) {
    const std::string note = "--device auto takes the CPU: " + usable.message();
    if (Device::has_cuda_driver()) return DeviceChoice{.note = note};
    log(LogLevel::verbose, note);
    return DeviceChoice{};
  }
  if (!list.ok())
    return Status(list.status().code(), list.status().message() + "; the CPU works without one (--device cpu)")
        .in("--device " + choice);
  DeviceChoice found{.is_cuda = true};
  if (named) {
    LLMOPS_ASSIGN(found.first, find_device(choice.substr(5), *list));
  }
  if (found.first + ranks > std::ssize(*list))
    return io_error(fmt::format("--device {}: {} ranks need a CUDA device each, found {} from number {} on; give fewer "
                                "--ranks, or --device cpu",
                                choice, ranks, std::ssize(*list) - found.first, found.first));
  return found;
}

Result<std::unique_ptr<Device>> open_device(const DeviceChoice& choice, int rank, int threads) {
  return choice.is_cuda ? Device::open_cuda(choice.first + rank, threads) : Device::open_cpu({.threads = threads});
}

std::string matmul_library(Device& device) {
  if (device.kind() == DeviceKind::cpu) return "";
  auto library = device.use_fast_matmul();
  if (!library.ok()) log(LogLevel::verbose, "matmul: our own kernels, as " + library.status().message());
  return library.ok() ? library.take() : "";
}

}  // namespace llmops
