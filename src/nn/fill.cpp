#include "nn/fill.h"

#include <cstring>

namespace llmops {
namespace {

constexpr int64_t kPinnedBytes = int64_t{256} << 20;  // enough for the small groups of a model to share one flush

}  // namespace

Status DeviceFill::add(void* data, int64_t bytes, std::vector<Part> parts) {
  pending_.push_back({data, bytes, std::move(parts)});
  pending_bytes_ += bytes;
  const bool needs_pinned = device_.kind() != DeviceKind::cpu;
  return needs_pinned && pending_bytes_ >= kPinnedBytes ? flush() : Status();
}

Status DeviceFill::flush() {
  struct Task {
    const Part* part;
    char* out;
  };
  std::vector<HostSide> sides;
  std::vector<Task> tasks;
  for (const Range& range : pending_) {
    LLMOPS_ASSIGN(HostSide side, HostSide::of(device_, range.data, range.bytes));
    for (const Part& part : range.parts) tasks.push_back({&part, side.as<char>() + part.at});
    sides.push_back(std::move(side));
  }
  std::vector<Status> results(tasks.size());
  device_.pool().parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t i, int) {
    results[static_cast<size_t>(i)] = tasks[static_cast<size_t>(i)].part->write(tasks[static_cast<size_t>(i)].out);
  });
  for (const Status& status : results) LLMOPS_TRY(status);
  for (const HostSide& side : sides) side.push(device_.compute());
  LLMOPS_TRY(device_.compute().sync());
  pending_.clear();
  pending_bytes_ = 0;
  return {};
}

Status fill_from(Device& device, const Buffer& buffer, const std::vector<float>& table) {
  const auto bytes = static_cast<int64_t>(table.size() * sizeof(float));
  LLMOPS_ASSIGN(const HostSide side, HostSide::of(device, buffer.data(), bytes));
  std::memcpy(side.as<float>(), table.data(), table.size() * sizeof(float));
  side.push(device.compute());
  return device.compute().sync();
}

}  // namespace llmops
