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

// Work recorded from a queue.
class QueueGraph {
 public:
  virtual ~QueueGraph() = default;
};

class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;
  virtual void* native() = 0;  // cudaStream_t
  virtual Status copy(void* to, const void* from, int64_t bytes) = 0;
  virtual Status copy_rows(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t row_bytes,
                           int64_t rows) = 0;
  virtual Result<std::shared_ptr<QueueMark>> mark() = 0;
  virtual Status wait(QueueMark& mark) = 0;  // later work of this queue comes after the mark
  virtual Status begin_capture() = 0;
  virtual Result<std::unique_ptr<QueueGraph>> end_capture() = 0;
  virtual Status launch(QueueGraph& graph) = 0;
  virtual Status drain() = 0;                // blocks until all work is done; its first failure
  virtual cuda::Faults& faults() = 0;        // what kernels report to (kernels/cuda/faults.h)
};

class Accelerator {
 public:
  virtual ~Accelerator() = default;
  virtual DeviceId id() const = 0;
  virtual Result<std::string> open_fast_matmul() = 0;  // the library's name, or what was looked for
  virtual std::string name() const = 0;
  virtual std::string room() const = 0;  // "1.00 GiB of 80.0 GiB are free on NVIDIA H100", for messages
  // Memory in the order of the queues: what they are given from now on finds it zeroed, and what they were given before
  // release() may still use it. At least 64-byte aligned; null when memory is out, a Status when the device has failed.
  virtual Result<void*> alloc_zeroed(int64_t bytes) = 0;
  virtual void release(void* data) = 0;
  // Zeroed memory of the host that the device copies from and to directly. Released when no queue has work any more.
  virtual Result<void*> alloc_pinned(int64_t bytes) = 0;
  virtual void release_pinned(void* data) = 0;
  virtual Result<std::unique_ptr<DeviceQueue>> new_queue() = 0;  // must not outlive the Accelerator
  // The device has failed, or has work that never ends: nothing waits for it any more, and its memory is left to the end of
  // the process.
  virtual void abandon() = 0;
};

}  // namespace llmops
