// Device, Buffer, Stream, Event: where ops run and where their memory lives.
//
// Every op is enqueued on a Stream. The host may read a result only after sync() or a completed Event. A CPU stream
// runs work inline; in deferred mode (tests) it records the work and runs it late, interleaved with the device's other
// streams in a seeded order that only Events constrain, so that a missing wait gives a wrong result without a GPU. A CUDA
// stream runs an op's host part inline, and that launches kernels.
// Contract errors return at the call; an error of the work itself sticks to the stream and returns at sync().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/pool.h"
#include "base/status.h"
#include "kernels/tensor.h"

namespace llmops {

// What memory is for; peaks are kept per category.
enum class Category : uint8_t { weights, grads, optim, saved, transient, workspace, comm, kv, staging, kCount };
std::string_view name_of(Category category);

class Accelerator;
class Device;
class DeviceQueue;
class QueueGraph;
class QueueMark;
struct OpTable;

// Owns device memory. Move-only; must not outlive its Device.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Category category() const { return category_; }
  template <class T>
  T* as() const { return static_cast<T*>(data_); }
  // A dense view of the first elements; the caller asks for no more than bytes() (checked, aborts otherwise).
  TensorView view(DType dtype, std::initializer_list<int64_t> dims, int64_t byte_offset = 0) const;

 private:
  friend class Device;
  Device* device_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  Category category_ = Category::workspace;
  bool on_host_ = false;  // pinned memory of a CUDA device's host
};

class Stream;

// The host's side of device memory. On a CUDA device that is pinned memory of its own (Category::staging), and push() and
// pull() enqueue copies: the host leaves its side alone until they are done. On the CPU it is the memory itself, and they
// cost nothing. Move-only; must not outlive the memory.
class HostSide {
 public:
  HostSide() = default;
  static Result<HostSide> of(Device& device, void* data, int64_t bytes);
  static Result<HostSide> of(Device& device, const Buffer& buffer) { return of(device, buffer.data(), buffer.bytes()); }
  template <class T>
  T* as() const { return static_cast<T*>(host_); }
  int64_t bytes() const { return bytes_; }
  void push(Stream& stream) const { push(stream, 0, bytes_); }  // to the device
  void push(Stream& stream, int64_t begin, int64_t bytes) const;
  void pull(Stream& stream) const { pull(stream, 0, bytes_); }  // to the host
  void pull(Stream& stream, int64_t begin, int64_t bytes) const;

 private:
  Buffer pinned_;
  void* host_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// A point in a stream's work. Copyable handle. When the stream failed before it, the event completes and hands the
// failure to every stream that waits for it.
class Event {
 public:
  Event() = default;
  bool complete() const;  // true for a default-constructed Event

 private:
  friend class Device;
  friend class Stream;
  struct State;
  std::shared_ptr<State> state_;
};

// Work that was recorded once, to be started again by one call. Its arguments are those of the recording: what changes
// from run to run lies in device memory.
class Graph {
 public:
  Graph();
  Graph(Graph&&) noexcept;
  Graph& operator=(Graph&&) noexcept;
  ~Graph();

 private:
  friend class Stream;
  std::unique_ptr<QueueGraph> made_;
};

class Stream {
 public:
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  Device& device() const { return device_; }
  // Adds work; `what`, a string literal, is the place named when it fails. Inline mode runs it now; once a stream has
  // failed, later work is dropped and sync() returns the first error. One host thread at a time uses a stream.
  void enqueue(std::function<Status()> work, const char* what);
  // Copies bytes between host and device, either way, or within one, in the stream's order. Memory of the host must stay
  // as it is until the copy is done.
  void copy(void* to, const void* from, int64_t bytes);
  // The same for `rows` rows of row_bytes each, which lie to_pitch and from_pitch bytes apart.
  void copy_rows(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t row_bytes, int64_t rows);
  Event record();
  void wait(const Event& event);
  // Waits until all work so far is done; the first error of the stream, if any. deadline_s <= 0: no deadline.
  Status sync(double deadline_s = 0);
  // Scratch for one op at a time, 64-byte aligned, valid until the next call. Grows when a larger size is asked for, so
  // a repeated step allocates nothing.
  Result<void*> workspace(int64_t bytes);
  // How often workspace() has given other memory: a Graph that was recorded before is stale.
  int64_t workspace_moves() const;
  // On a CUDA device: records what `work` enqueues here, without running it. The same work has run before, so that its
  // workspace is there.
  bool captures() const;
  Result<Graph> capture(const std::function<Status()>& work);
  void replay(const Graph& graph);
  void* native() const;  // the cudaStream_t of a CUDA device; null on the host
  DeviceQueue* queue() const;  // what is behind it (kernels/accelerator.h); null on the host

 private:
  friend class Device;
  explicit Stream(Device& device);
  void run(const std::function<Status()>& work, std::string_view what);
  bool ready() const;  // deferred mode: the oldest item may run now
  void run_oldest();
  Status sync_accelerated(double deadline_s);
  Result<bool> wait_watching(QueueMark& end, double deadline_s);
  Status stay_near();
  Status fail_wait(Status status);
  Device& device_;
  struct State;
  std::unique_ptr<State> state_;
};

enum class DeviceKind : uint8_t { cpu, cuda };
// Which instruction set the cpu table uses. `best` = the best one found at run time; the others force a path for tests.
enum class Isa : uint8_t { best, baseline, avx2, avx512, avx512_bf16 };
std::string_view name_of(Isa isa);
Isa isa_best();           // never Isa::best
bool isa_runs(Isa isa);   // can this CPU execute it?

// A CUDA device; its place in the list is its number.
struct CudaInfo {
  std::string name;  // "NVIDIA H200"
  std::string uuid;  // "GPU-01234567-89ab-cdef-0123-456789abcdef"
  int64_t bytes;     // of its memory
  int capability;    // 10 * major + minor: 90 for 9.0

  // kernels/cuda multiplies bf16 on tensor cores and copies into shared memory asynchronously: from 8.0 on.
  static constexpr int kCapabilityMin = 80;
  // Code::io, naming it, when open_cuda(index) does not take it.
  Status usable(int index) const;
};

// One per rank.
class Device {
 public:
  struct Options {
    int threads = 1;
    bool reference = false;        // use the ref table (plain loops in double: the oracle)
    Isa isa = Isa::best;
    uint64_t deferred_seed = 0;    // != 0: deferred test mode with this order
  };
  static Result<std::unique_ptr<Device>> open_cpu(const Options& options);
  // The CUDA devices that CUDA_VISIBLE_DEVICES leaves, in CUDA's order. Code::io when there is none, without a driver, and
  // in a build without CUDA; the message says what was looked for.
  static Result<std::vector<CudaInfo>> list_cuda();
  // Whether there is a driver, of whatever version: a GPU may be expected here. false in a build without CUDA.
  static bool has_cuda_driver();
  // Code::io also without a device `index`. `threads`: of the pool, for host work.
  static Result<std::unique_ptr<Device>> open_cuda(int index, int threads = 1);
  ~Device();

  DeviceKind kind() const;
  DeviceId id() const;
  Isa isa() const;  // what host work on this device's pool uses
  // Lets matmul use cuBLASLt where its epilogues fit, and gives its name and version. Off until it is called, for then
  // the bits of a row depend on the batch: training wants it, inference only on request (--fast-matmul). Code::io on the
  // CPU and without the library, with what was looked for; our own kernels then stay in use.
  Result<std::string> use_fast_matmul();
  bool fast_matmul() const;
  std::string name() const;  // for people and records: "NVIDIA H200", "CPU avx512"
  Pool& pool();     // for host work
  const OpTable& ops() const;

  // 64-byte aligned, zero-filled. Code::io when memory is out, with the category and the sizes in use.
  // On a CUDA device it comes from a pool in the order of the streams: neither alloc nor the Buffer's end waits for them.
  Result<Buffer> alloc(int64_t bytes, Category category);
  // Host memory that copies to and from this device reach at full speed (pinned); alloc() on the CPU.
  Result<Buffer> alloc_host(int64_t bytes, Category category = Category::staging);
  // Counts memory that came from elsewhere (a shared segment) in the peaks.
  void note_external(Category category, int64_t bytes);
  int64_t bytes_in_use(Category category) const;
  int64_t bytes_peak(Category category) const;

  // Asked now and then while the host waits for a stream of an accelerated device: an error ends the wait, and fails the
  // stream. For work that may never end by itself. Returns a number for unwatch().
  int watch(std::function<Status()> look);
  void unwatch(int number);
  // An accelerated device that comes no further for as long has failed; 0, the default: the host waits for ever. It is no
  // limit on how long work takes, as streams are looked at every few calls (kernels/stream.cpp).
  void set_deadline(double deadline_s);

  Stream& compute();                       // the default stream
  std::unique_ptr<Stream> new_stream();    // must not outlive the Device

 private:
  Device();
  // The device that an accelerator (kernels/accelerator.h) makes.
  static Result<std::unique_ptr<Device>> open(std::unique_ptr<Accelerator> accelerator, const OpTable& ops, int threads);
  friend class Buffer;
  friend class Event;
  friend class Stream;
  Result<Buffer> alloc(int64_t bytes, Category category, bool on_host);
  Status out_of_memory(int64_t bytes, Category category) const;
  void release(const Buffer& buffer);
  bool run_one();  // deferred mode: runs one item of a stream drawn by the seed; false when nothing can run
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace llmops
