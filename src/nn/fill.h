// Device memory filled from the host: by the device's pool, in place on the CPU, through pinned memory of bounded size
// elsewhere.
#pragma once

#include <functional>
#include <vector>

#include "kernels/runtime.h"

namespace llmops {

class DeviceFill {
 public:
  // A piece of a range; write() gets the address of its first byte and runs on any thread of the pool.
  struct Part {
    int64_t at;  // bytes from the start of the range
    std::function<Status(void* out)> write;
  };
  explicit DeviceFill(Device& device) : device_(device) {}
  // A range is filled by the next flush() at the latest. On a device other than the CPU, what no part writes becomes 0.
  Status add(void* data, int64_t bytes, std::vector<Part> parts);
  Status flush();  // all is there when it returns

 private:
  struct Range {
    void* data;
    int64_t bytes;
    std::vector<Part> parts;
  };
  Device& device_;
  std::vector<Range> pending_;
  int64_t pending_bytes_ = 0;
};

// All of a table into the start of `buffer`; it is there when this returns.
Status fill_from(Device& device, const Buffer& buffer, const std::vector<float>& table);

}  // namespace llmops
