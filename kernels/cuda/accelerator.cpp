// Device, Buffer, Stream and Event of CUDA behind kernels/accelerator.h. cudart is linked statically and opens the driver
// at the first call, so the same binary starts where there is none.
#include "kernels/accelerator.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>

#include "base/text.h"
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

struct CapturedGraph final : QueueGraph {
  ~CapturedGraph() override {
    if (executable != nullptr) (void)cudaGraphExecDestroy(executable);
  }
  cudaGraphExec_t executable = nullptr;
};

class CudaAccelerator;

class Queue final : public DeviceQueue {
 public:
  Queue(CudaAccelerator& owner, cudaStream_t stream, std::shared_ptr<Faults> faults)
      : owner_(owner), stream_(stream), faults_(std::move(faults)) {}
  ~Queue() override;

  cudaStream_t stream() const { return stream_; }
  void* native() override { return stream_; }
  Status copy(void* to, const void* from, int64_t bytes) override {
    return status_of(cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDefault, stream_), "CUDA copy");
  }
  Status copy_rows(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t row_bytes,
                   int64_t rows) override {
    return status_of(cudaMemcpy2DAsync(to, size_t(to_pitch), from, size_t(from_pitch), size_t(row_bytes), size_t(rows),
                                       cudaMemcpyDefault, stream_),
                     "CUDA copy of rows");
  }
  Result<std::shared_ptr<QueueMark>> mark() override;
  Status wait(QueueMark& mark) override {
    return status_of(cudaStreamWaitEvent(stream_, static_cast<Mark&>(mark).event(), 0), "CUDA event");
  }
  Status begin_capture() override {
    return status_of(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "CUDA graph");
  }
  Result<std::unique_ptr<QueueGraph>> end_capture() override {
    cudaGraph_t graph = nullptr;
    LLMOPS_TRY(status_of(cudaStreamEndCapture(stream_, &graph), "CUDA graph"));
    auto made = std::make_unique<CapturedGraph>();
    const cudaError_t error = cudaGraphInstantiate(&made->executable, graph, 0);
    (void)cudaGraphDestroy(graph);
    LLMOPS_TRY(status_of(error, "CUDA graph"));
    return std::unique_ptr<QueueGraph>(std::move(made));
  }
  Status launch(QueueGraph& graph) override {
    return status_of(cudaGraphLaunch(static_cast<CapturedGraph&>(graph).executable, stream_), "CUDA graph");
  }
  Status drain() override {
    LLMOPS_TRY(status_of(cudaStreamSynchronize(stream_), "CUDA stream"));
    return faults_->status();
  }
  Faults& faults() override { return *faults_; }

 private:
  CudaAccelerator& owner_;
  cudaStream_t stream_;
  std::shared_ptr<Faults> faults_;
};

Result<std::shared_ptr<Mark>> mark_of(cudaStream_t stream, const std::shared_ptr<Faults>& faults) {
  cudaEvent_t event = nullptr;
  LLMOPS_TRY(status_of(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "CUDA event"));
  auto mark = std::make_shared<Mark>(event, faults);
  LLMOPS_TRY(status_of(cudaEventRecord(event, stream), "CUDA event"));
  return mark;
}

// Memory comes from CUDA's stream-ordered pool by a stream of its own. Queues wait, on the device, for what that stream
// has zeroed; it waits for the queues before it takes memory back. The pool keeps what it has: the next allocation of a
// run finds it there.
class CudaAccelerator final : public Accelerator {
 public:
  static Result<std::unique_ptr<CudaAccelerator>> open(int index, const CudaInfo& info) {
    std::unique_ptr<CudaAccelerator> made(new CudaAccelerator(index, info));
    cudaMemPool_t pool = nullptr;
    uint64_t keep_bytes = UINT64_MAX;
    LLMOPS_TRY(status_of(cudaSetDevice(index), "CUDA device"));
    LLMOPS_ASSIGN(made->faults_, Faults::open());
    LLMOPS_TRY(status_of(cudaDeviceGetDefaultMemPool(&pool, index), "CUDA memory pool"));
    LLMOPS_TRY(status_of(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep_bytes), "CUDA memory pool"));
    LLMOPS_TRY(status_of(cudaStreamCreateWithFlags(&made->memory_, cudaStreamNonBlocking), "CUDA stream"));
    return made;
  }
  ~CudaAccelerator() override {
    if (memory_ == nullptr || abandoned_) return;
    (void)cudaStreamSynchronize(memory_);
    (void)cudaStreamDestroy(memory_);
  }

  DeviceId id() const override { return {static_cast<int8_t>(index_)}; }
  Result<std::string> open_fast_matmul() override { return cublaslt_open(index_); }
  std::string name() const override { return info_.name; }
  std::string room() const override {
    size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) return "";
    return fmt::format("{} of {} are free on CUDA device {} ({})", format_bytes(int64_t(free)),
                       format_bytes(int64_t(total)), index_, info_.name);
  }

  Result<void*> alloc_zeroed(int64_t bytes) override {
    void* data = nullptr;
    const size_t size = bytes > 0 ? size_t(bytes) : 1;  // CUDA gives null for 0
    LLMOPS_TRY(status_of(cudaSetDevice(index_), "CUDA device"));
    const cudaError_t error = cudaMallocAsync(&data, size, memory_);
    if (error == cudaErrorMemoryAllocation) return (void)cudaGetLastError(), static_cast<void*>(nullptr);
    LLMOPS_TRY(status_of(error, "CUDA memory"));
    if (Status status = zero(data, size); !status.ok()) return (void)cudaFreeAsync(data, memory_), status;
    return data;
  }
  void release(void* data) override {
    if (abandoned_) return;
    (void)cudaSetDevice(index_);
    for (Queue* queue : queues_)
      if (const auto used = mark_of(queue->stream(), faults_); used.ok())
        (void)cudaStreamWaitEvent(memory_, (*used)->event(), 0);
    (void)cudaFreeAsync(data, memory_);
  }

  Result<void*> alloc_pinned(int64_t bytes) override {
    void* data = nullptr;
    const size_t size = bytes > 0 ? size_t(bytes) : 1;
    LLMOPS_TRY(status_of(cudaSetDevice(index_), "CUDA device"));
    const cudaError_t error = cudaHostAlloc(&data, size, cudaHostAllocDefault);
    if (error == cudaErrorMemoryAllocation) return (void)cudaGetLastError(), static_cast<void*>(nullptr);
    LLMOPS_TRY(status_of(error, "CUDA pinned memory"));
    std::memset(data, 0, size);
    return data;
  }
  void release_pinned(void* data) override {
    if (abandoned_) return;
    (void)cudaSetDevice(index_);
    (void)cudaFreeHost(data);
  }

  Result<std::unique_ptr<DeviceQueue>> new_queue() override {
    cudaStream_t stream = nullptr;
    LLMOPS_TRY(status_of(cudaSetDevice(index_), "CUDA device"));
    LLMOPS_TRY(status_of(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "CUDA stream"));
    auto queue = std::make_unique<Queue>(*this, stream, faults_);
    queues_.push_back(queue.get());
    LLMOPS_ASSIGN(const std::shared_ptr<Mark> zeroed, mark_of(memory_, faults_));
    LLMOPS_TRY(queue->wait(*zeroed));
    return std::unique_ptr<DeviceQueue>(std::move(queue));
  }
  void abandon() override {
    static auto* const kept = new std::vector<std::shared_ptr<Faults>>;  // a kernel may still write there
    if (!abandoned_) kept->push_back(faults_);
    abandoned_ = true;
  }
  void forget(Queue* queue) { std::erase(queues_, queue); }
  int index() const { return index_; }

 private:
  CudaAccelerator(int index, CudaInfo info) : index_(index), info_(std::move(info)) {}
  Status zero(void* data, size_t bytes) {
    LLMOPS_TRY(status_of(cudaMemsetAsync(data, 0, bytes, memory_), "CUDA memory"));
    LLMOPS_ASSIGN(const std::shared_ptr<Mark> zeroed, mark_of(memory_, faults_));
    for (Queue* queue : queues_) LLMOPS_TRY(queue->wait(*zeroed));
    return {};
  }
  int index_;
  CudaInfo info_;
  cudaStream_t memory_ = nullptr;
  std::vector<Queue*> queues_;
  bool abandoned_ = false;
  std::shared_ptr<Faults> faults_;
};

Queue::~Queue() {
  owner_.forget(this);
  (void)cudaStreamDestroy(stream_);
}

Result<std::shared_ptr<QueueMark>> Queue::mark() {
  LLMOPS_TRY(status_of(cudaSetDevice(owner_.index()), "CUDA device"));
  LLMOPS_ASSIGN(std::shared_ptr<Mark> mark, mark_of(stream_, faults_));
  return std::shared_ptr<QueueMark>(std::move(mark));
}

// Error 35 is what a machine without a driver gives, 100 one without a GPU.
Status no_device(cudaError_t error) {
  if (error == cudaErrorInsufficientDriver)
    return io_error(fmt::format("no NVIDIA driver for CUDA {}.{} was found (libcuda.so.1; cudaGetDeviceCount gave error "
                                "35): install or update the driver",
                                CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10));
  if (error == cudaErrorNoDevice || error == cudaSuccess) {
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return io_error(fmt::format("the driver (libcuda.so.1) sees no GPU (cudaGetDeviceCount gave error 100; "
                                "CUDA_VISIBLE_DEVICES is {})",
                                visible != nullptr ? "\"" + escape_control(visible) + "\"" : "not set"));
  }
  return {Code::io, status_of(error, "cudaGetDeviceCount").message()};
}

Status or_cpu(const Status& status) { return {status.code(), status.message() + "; the CPU works without one"}; }

// As nvidia-smi prints it.
std::string text_of(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

}  // namespace
}  // namespace cuda

Result<std::vector<CudaInfo>> Device::list_cuda() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) return cuda::no_device(error);
  std::vector<CudaInfo> list;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    LLMOPS_TRY(cuda::status_of(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties"));
    list.push_back({properties.name, cuda::text_of(properties.uuid), static_cast<int64_t>(properties.totalGlobalMem),
                    10 * properties.major + properties.minor});
  }
  return list;
}

bool Device::has_cuda_driver() {
  int version = 0;  // it stays 0 without libcuda.so.1
  return cudaDriverGetVersion(&version) == cudaSuccess && version > 0;
}

Result<std::unique_ptr<Device>> Device::open_cuda(int index, int threads) {
  auto list = list_cuda();
  if (!list.ok()) return cuda::or_cpu(list.status()).in(fmt::format("CUDA device {}", index));
  if (index < 0 || index >= std::ssize(*list))
    return io_error(fmt::format("CUDA device {}: this machine has {}, numbered from 0", index, list->size()));
  if (const Status usable = (*list)[size_t(index)].usable(index); !usable.ok()) return cuda::or_cpu(usable);
  LLMOPS_ASSIGN(auto accelerator, cuda::CudaAccelerator::open(index, (*list)[size_t(index)]));
  return open(std::move(accelerator), *op_table_cuda(), threads);
}

}  // namespace llmops
