// What a device other than the host brings: memory, and a queue of its own behind each Stream. kernels/runtime.cpp and
// kernels/stream.cpp know CUDA by this only; kernels/cuda/accelerator.cpp implements it.
#pragma once

#include <memory>

#include "kernels/runtime.h"

namespace llmops {

namespace cuda {
class Faults;
}

// A point in a queue's work.
class QueueMark {
 public:
  virtual ~QueueMark() = default;
  virtual Result<bool> reached() = 0;  // or the failure of the device
};

class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;
  virtual void* native() = 0;  // cudaStream_t
  virtual Status copy(void* to, const void* from, int64_t bytes) = 0;
  virtual Result<std::shared_ptr<QueueMark>> mark() = 0;
  virtual Status wait(QueueMark& mark) = 0;  // later work of this queue comes after the mark
  virtual Status drain() = 0;                // blocks until all work is done; its first failure
  virtual cuda::Faults& faults() = 0;        // what kernels report to (kernels/cuda/faults.h)
};

class Accelerator {
 public:
  virtual ~Accelerator() = default;
  virtual DeviceId id() const = 0;
  virtual Result<std::string> open_fast_matmul() = 0;  // the library's name, or what was looked for
  virtual void* alloc_zeroed(int64_t bytes) = 0;  // at least 64-byte aligned; null when memory is out
  virtual void release(void* data) = 0;           // after all work in flight, which may still use it
  virtual Result<std::unique_ptr<DeviceQueue>> new_queue() = 0;
};

}  // namespace llmops
