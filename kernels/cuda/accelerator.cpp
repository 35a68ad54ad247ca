// Device, Buffer, Stream and Event of CUDA behind kernels/accelerator.h. cudart is linked statically and opens the driver
// at the first call, so the same binary starts where there is none.
#include "kernels/accelerator.h"

#include <fmt/format.h>

#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/faults.h"
#include "kernels/tables.h"

namespace llmops {
namespace cuda {

Status status_of(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  const Code code = error == cudaErrorMemoryAllocation ? Code::io : Code::peer;
  return {code, fmt::format("{}: {} ({}): {}", what, cudaGetErrorName(error), int(error), cudaGetErrorString(error))};
}

namespace {

class Mark final : public QueueMark {
 public:
  Mark(cudaEvent_t event, std::shared_ptr<Faults> faults) : event_(event), faults_(std::move(faults)) {}
  ~Mark() override { (void)cudaEventDestroy(event_); }
  cudaEvent_t event() const { return event_; }
  Result<bool> reached() override {
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) return false;
    LLMOPS_TRY(status_of(error, "CUDA event"));
    LLMOPS_TRY(faults_->status());
    return true;
  }

 private:
  cudaEvent_t event_;
  std::shared_ptr<Faults> faults_;
};

class Queue final : public DeviceQueue {
 public:
  Queue(int index, cudaStream_t stream, std::shared_ptr<Faults> faults)
      : index_(index), stream_(stream), faults_(std::move(faults)) {}
  ~Queue() override { (void)cudaStreamDestroy(stream_); }

  void* native() override { return stream_; }
  Status copy(void* to, const void* from, int64_t bytes) override {
    return status_of(cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDefault, stream_), "CUDA copy");
  }
  Result<std::shared_ptr<QueueMark>> mark() override {
    cudaEvent_t event = nullptr;
    LLMOPS_TRY(status_of(cudaSetDevice(index_), "CUDA device"));
    LLMOPS_TRY(status_of(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "CUDA event"));
    auto mark = std::make_shared<Mark>(event, faults_);
    LLMOPS_TRY(status_of(cudaEventRecord(event, stream_), "CUDA event"));
    return std::shared_ptr<QueueMark>(std::move(mark));
  }
  Status wait(QueueMark& mark) override {
    return status_of(cudaStreamWaitEvent(stream_, static_cast<Mark&>(mark).event(), 0), "CUDA event");
  }
  Status drain() override {
    LLMOPS_TRY(status_of(cudaStreamSynchronize(stream_), "CUDA stream"));
    return faults_->status();
  }
  Faults& faults() override { return *faults_; }

 private:
  int index_;
  cudaStream_t stream_;
  std::shared_ptr<Faults> faults_;
};

class CudaAccelerator final : public Accelerator {
 public:
  CudaAccelerator(int index, std::shared_ptr<Faults> faults) : index_(index), faults_(std::move(faults)) {}

  DeviceId id() const override { return {static_cast<int8_t>(index_)}; }
  Result<std::string> open_fast_matmul() override { return cublaslt_open(index_); }
  void* alloc_zeroed(int64_t bytes) override {
    void* data = nullptr;
    const size_t size = bytes > 0 ? size_t(bytes) : 1;  // CUDA gives null for 0
    if (cudaSetDevice(index_) != cudaSuccess || cudaMalloc(&data, size) != cudaSuccess) {
      (void)cudaGetLastError();  // running out is reported by the caller and leaves the device usable
      return nullptr;
    }
    // The memset runs in the default stream, which ours do not wait for.
    if (cudaMemset(data, 0, size) == cudaSuccess && cudaStreamSynchronize(nullptr) == cudaSuccess) return data;
    (void)cudaFree(data);
    return nullptr;
  }
  void release(void* data) override {
    (void)cudaSetDevice(index_);
    (void)cudaDeviceSynchronize();
    (void)cudaFree(data);
  }
  Result<std::unique_ptr<DeviceQueue>> new_queue() override {
    cudaStream_t stream = nullptr;
    LLMOPS_TRY(status_of(cudaSetDevice(index_), "CUDA device"));
    LLMOPS_TRY(status_of(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "CUDA stream"));
    return std::unique_ptr<DeviceQueue>(std::make_unique<Queue>(index_, stream, faults_));
  }

 private:
  int index_;
  std::shared_ptr<Faults> faults_;
};

// Error 35 is what a machine without a driver gives, 100 one without a GPU.
Status no_device(int index, cudaError_t error, int count) {
  if (error == cudaErrorInsufficientDriver)
    return io_error(fmt::format("CUDA device {}: no NVIDIA driver for CUDA {}.{} was found (libcuda.so.1; cudaGetDeviceCount "
                                "gave error 35). Install or update the driver; the CPU does the same work without it",
                                index, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10));
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0))
    return io_error(fmt::format("CUDA device {}: the driver (libcuda.so.1) sees no GPU (cudaGetDeviceCount gave error 100). "
                                "Check CUDA_VISIBLE_DEVICES; the CPU does the same work without one", index));
  if (error != cudaSuccess) return status_of(error, "cudaGetDeviceCount");
  return io_error(fmt::format("CUDA device {}: this machine has {}, numbered from 0", index, count));
}

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<Device>> Device::open_cuda(int index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || index < 0 || index >= count) return cuda::no_device(index, error, count);
  LLMOPS_TRY(cuda::status_of(cudaSetDevice(index), "CUDA device"));
  LLMOPS_ASSIGN(std::shared_ptr<cuda::Faults> faults, cuda::Faults::open());
  return open(std::make_unique<cuda::CudaAccelerator>(index, std::move(faults)), *op_table_cuda());
}

}  // namespace llmops
