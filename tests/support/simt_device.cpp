// The device of the shim: memory in an arena that is closed to the host, streams whose work runs late, events.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <thread>

#include "support/simt_internal.h"

namespace simt {

// Records count up; a wait is for the record that was the newest when it was called.
struct Event {
  uint64_t recorded = 0, reached = 0;
};

struct Item {
  enum class Kind : uint8_t { work, record, wait, external } kind;
  std::function<std::string()> work;  // "" or a report
  std::shared_ptr<Event> event;
  uint64_t count = 0;  // of the record
  std::shared_ptr<External> external = nullptr;
  bool started = false;  // of the external work
};
// Recorded work, which is started by being queued again.
struct Graph {
  std::vector<std::function<std::string()>> work;
};
struct Stream {
  std::deque<Item> queue;
  std::unique_ptr<Graph> recording = nullptr;
  bool destroyed = false;
};

namespace {

constexpr size_t kArenaBytes = size_t{4} << 30;  // of address space
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kRedZone = 256;
constexpr size_t kAlign = 256;  // as cudaMallocAsync

// What the whole program is told from outside, as a machine would have it. Tests of kernels say it themselves.
size_t number_from_env(const char* name, size_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// LLMOPS_SIMT_SCHEDULE=forward, reverse, or the seed of a shuffled order.
Schedule schedule_from_env() {
  const char* const text = std::getenv("LLMOPS_SIMT_SCHEDULE");
  const std::string_view order = text != nullptr ? text : "forward";
  if (order == "forward") return {};
  if (order == "reverse") return {Order::reverse, 0};
  return {Order::seeded, std::strtoull(text, nullptr, 10)};
}

size_t padded(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// LLMOPS_SIMT_INJECT=launch@DEVICE:N, hang@DEVICE:N or alloc@DEVICE:N: what fails, or never ends, when it comes to the N-th
// on that device.
struct Injection {
  std::string what;
  int device = -1;
  int64_t number = 0;
  bool is(const char* name, int on, int64_t count) const { return what == name && device == on && number == count; }
};
Injection injection() {
  const char* const text = std::getenv("LLMOPS_SIMT_INJECT");
  char what[8] = {};
  int device = 0;
  long number = 0;
  if (text == nullptr || std::sscanf(text, "%7[a-z]@%d:%ld", what, &device, &number) != 3) return {};
  return {what, device, number};
}

struct State {
  State();
  std::byte* arena;
  size_t used = 0;                    // reused only when all is free, so that a use after free is found
  std::map<std::byte*, size_t> live;  // bytes of each allocation
  std::set<void*> pinned;             // of the host; what a failed device leaves is no leak
  Stream default_stream;
  std::vector<Stream*> streams = {&default_stream};
  std::map<Event*, std::shared_ptr<Event>> events;
  Schedule schedule = schedule_from_env();
  std::mt19937_64 random{schedule.seed};
  int devices = static_cast<int>(number_from_env("LLMOPS_SIMT_DEVICES", 0));
  size_t memory_bytes = std::min(kArenaBytes, number_from_env("LLMOPS_SIMT_MEMORY_BYTES", kArenaBytes));
  Injection inject = injection();
  int device = 0;  // that is set
  int64_t launches = 0, allocations = 0;
  bool blocking = number_from_env("CUDA_LAUNCH_BLOCKING", 0) != 0;
  cudaError_t count_error = std::getenv("LLMOPS_SIMT_DEVICES") != nullptr ? cudaSuccess : cudaErrorInsufficientDriver;
  std::string report;  // of the first failure; it sticks
  struct sigaction before;
};
State& state() {
  static State& s = *new State;  // what a failed device leaves is no leak
  return s;
}

// Names the allocation that the host touched. The access is then repeated and ends as it would have.
void tell_host_access(int, siginfo_t* info, void*) {
  const auto* at = static_cast<std::byte*>(info->si_addr);
  const State& s = state();
  if (at >= s.arena && at < s.arena + kArenaBytes) {
    char text[160] = "simt: host code touched device memory outside of every allocation\n";
    for (const auto& [data, bytes] : s.live)
      if (at >= data && at < data + bytes)
        std::snprintf(text, sizeof text, "simt: host code touched device memory: byte %zu of an allocation of %zu\n",
                      static_cast<size_t>(at - data), bytes);
    [[maybe_unused]] const ssize_t written = write(2, text, std::strlen(text));
  }
  sigaction(SIGSEGV, &s.before, nullptr);
}

State::State() {
  // In huge pages: all that is in use is opened and closed around every queued item.
  void* map = mmap(nullptr, kArenaBytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) std::perror("simt: mmap"), std::abort();
  arena = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(map) + kHugePage - 1) / kHugePage * kHugePage);
  madvise(arena, kArenaBytes, MADV_HUGEPAGE);
}

// Again at each allocation: doctest takes the signal for itself in every test case.
void watch_host_access() {
  struct sigaction action = {};
  action.sa_sigaction = tell_host_access;
  action.sa_flags = SA_SIGINFO;
  struct sigaction old;
  sigaction(SIGSEGV, &action, &old);
  if (old.sa_sigaction != tell_host_access) state().before = old;
}

void protect(int protection) {
  State& s = state();
  const size_t bytes = (s.used + kHugePage - 1) / kHugePage * kHugePage;
  if (bytes > 0 && mprotect(s.arena, bytes, protection) != 0) std::perror("simt: mprotect"), std::abort();
}

// "" or the first allocation with a byte written beside it. AddressSanitizer needs no such look, and forbids it.
std::string written_outside() {
#if !defined(__SANITIZE_ADDRESS__)
  for (const auto& [data, bytes] : state().live) {
    const std::byte* const zones[][2] = {{data - kRedZone, data}, {data + bytes, data + padded(bytes) + kRedZone}};
    for (const auto& [begin, end] : zones)
      for (const std::byte* p = begin; p < end; ++p)
        if (*p != std::byte{0xff})
          return "byte " + std::to_string(p - data) + " of an allocation of " + std::to_string(bytes) + " was written";
  }
#endif
  return "";
}

void run_open(const std::function<std::string()>& work) {
  State& s = state();
  protect(PROT_READ | PROT_WRITE);
  s.report = work();
  if (s.report.empty()) s.report = written_outside();
  protect(PROT_NONE);
}

void run_item(Stream& stream) {
  State& s = state();
  if (Item& first = stream.queue.front(); first.kind == Item::Kind::external && !first.started && s.report.empty()) {
    first.started = true;
    return run_open(first.external->start);
  }
  Item item = std::move(stream.queue.front());
  stream.queue.pop_front();
  if (item.kind == Item::Kind::record) item.event->reached = std::max(item.event->reached, item.count);
  if (!s.report.empty()) return;
  if (item.kind == Item::Kind::work) run_open(item.work);
  if (item.kind == Item::Kind::external) run_open(item.external->finish);
}

bool ready(const Stream& stream) {
  if (stream.queue.empty()) return false;
  const Item& item = stream.queue.front();
  if (item.kind == Item::Kind::external)
    return !state().report.empty() || !item.started || item.external->done();
  return item.kind != Item::Kind::wait || item.event->reached >= item.count;
}

// A stream that was destroyed lives until its work is done.
void end_if_done(Stream* stream) {
  if (!stream->destroyed || !stream->queue.empty()) return;
  std::erase(state().streams, stream);
  delete stream;
}

// Runs one item of the stream that comes first in the schedule's order. When none can run, all streams wait, at last, for
// external work: an event is recorded before it can be waited for.
bool run_one() {
  State& s = state();
  for (const unsigned i : in_order(static_cast<unsigned>(s.streams.size()))) {
    if (!ready(*s.streams[i])) continue;
    run_item(*s.streams[i]);
    end_if_done(s.streams[i]);
    return true;
  }
  return false;
}

cudaError_t drain(const Stream& stream) {
  while (!stream.queue.empty())
    if (!run_one()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  return state().report.empty() ? cudaSuccess : cudaErrorLaunchFailure;
}

Stream& stream_of(cudaStream_t stream) { return stream != nullptr ? *stream : state().default_stream; }

cudaError_t enqueue(cudaStream_t stream, std::function<std::string()> work) {
  if (!state().report.empty()) return cudaErrorLaunchFailure;
  if (Graph* const recording = stream_of(stream).recording.get()) {
    recording->work.push_back(std::move(work));
    return cudaSuccess;
  }
  stream_of(stream).queue.push_back({Item::Kind::work, std::move(work), nullptr, 0});
  return cudaSuccess;
}

}  // namespace

std::vector<unsigned> in_order(unsigned count) {
  State& s = state();
  std::vector<unsigned> order(count);
  for (unsigned i = 0; i < count; ++i) order[i] = s.schedule.order == Order::reverse ? count - 1 - i : i;
  if (s.schedule.order == Order::seeded) std::shuffle(order.begin(), order.end(), s.random);
  return order;
}

bool goes_on() { return state().schedule.order != Order::seeded || (state().random() & 1) != 0; }

void set_schedule(Schedule schedule) {
  state().schedule = schedule;
  state().random.seed(schedule.seed);
}

cudaError_t enqueue_external(cudaStream_t stream, External external) {
  if (!state().report.empty()) return cudaErrorLaunchFailure;
  Item item{Item::Kind::external, {}, nullptr, 0};
  item.external = std::make_shared<External>(std::move(external));
  stream_of(stream).queue.push_back(std::move(item));
  return cudaSuccess;
}

std::string outside_memory(const void* data, size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  for (const auto& [begin, size] : state().live)
    if (at >= begin && at + bytes <= begin + size) return "";
  return bytes == 0 ? "" : std::to_string(bytes) + " bytes that lie in no allocation of the device";
}

void set_device_count(int devices) {
  state().devices = devices;
  state().count_error = cudaSuccess;
}
bool emulated() { return true; }

void set_device_count_error(cudaError_t error) { state().count_error = error; }

void reset() {
  State& s = state();
  for (Stream* stream : s.streams) stream->queue.clear();
  if (s.report.empty()) return;
  s.report.clear();
  s.live.clear();  // a device that failed gives nothing back
  s.used = 0;
}

int64_t launches() { return state().launches; }

cudaError_t launch(cudaStream_t stream, dim3 grid, dim3 size, size_t shared_bytes, const char* name,
                   std::function<void()> kernel) {
  const uint64_t threads = uint64_t{size.x} * size.y * size.z;
  const bool fits = threads >= 1 && threads <= kThreadsMax && grid.x >= 1 && grid.x <= INT32_MAX && grid.y >= 1 &&
                    grid.y <= 65535 && grid.z >= 1 && grid.z <= 65535 && shared_bytes <= kSharedBytesMax;
  if (!fits) return cudaErrorInvalidConfiguration;
  State& s = state();
  ++s.launches;
  if (s.inject.is("hang", s.device, s.launches))
    return enqueue_external(stream, {[] { return std::string(); }, [] { return false; }, [] { return std::string(); }});
  if (s.inject.is("launch", s.device, s.launches)) return enqueue(stream, [] { return std::string("injected failure"); });
  const cudaError_t error =
      enqueue(stream, [run_it = Launch{name, grid, size, shared_bytes, std::move(kernel)}] { return run(run_it); });
  return error == cudaSuccess && state().blocking ? drain(stream_of(stream)) : error;
}

}  // namespace simt

using simt::state;

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
  }
  return "unknown";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? state().report.c_str() : cudaGetErrorName(error);
}
cudaError_t cudaGetLastError() { return state().report.empty() ? cudaSuccess : cudaErrorLaunchFailure; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = state().count_error == cudaSuccess ? state().devices : 0;
  if (state().count_error != cudaSuccess) return state().count_error;
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = state().count_error == cudaErrorInsufficientDriver ? 0 : CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int index) {
  if (index < 0 || index >= state().devices) return cudaErrorInvalidValue;
  return state().device = index, cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
  if (index < 0 || index >= state().devices) return cudaErrorInvalidValue;
  const int capability = static_cast<int>(simt::number_from_env("LLMOPS_SIMT_CAPABILITY", 80));
  *properties = {"SIMT shim", {}, state().memory_bytes, capability / 10, capability % 10};
  properties->uuid.bytes[15] = static_cast<char>(index);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = state().memory_bytes;
  *free = *total - std::min(*total, state().used);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  cudaError_t error = cudaSuccess;
  for (simt::Stream* stream : state().streams) error = std::max(error, simt::drain(*stream));
  return error;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int index) {
  *pool = nullptr;
  return index >= 0 && index < state().devices ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }

// The memory is there at once; what is in it, and its end, come in the stream's order.
cudaError_t cudaMallocAsync(void** data, size_t bytes, cudaStream_t) {
  auto& s = state();
  if (!s.report.empty()) return cudaErrorLaunchFailure;
  if (bytes == 0) return *data = nullptr, cudaSuccess;
  if (s.inject.is("alloc", s.device, ++s.allocations)) return cudaErrorMemoryAllocation;
  if (bytes > s.memory_bytes || s.used + 2 * simt::kRedZone + simt::padded(bytes) > s.memory_bytes)
    return cudaErrorMemoryAllocation;
  simt::watch_host_access();
  std::byte* const zone = s.arena + s.used;
  const size_t whole = 2 * simt::kRedZone + simt::padded(bytes);
  s.used += whole;
  simt::protect(PROT_READ | PROT_WRITE);
  ASAN_UNPOISON_MEMORY_REGION(zone, whole);  // freed earlier
  std::memset(zone, 0xff, whole);            // fresh memory holds NaN
  simt::protect(PROT_NONE);
  std::byte* const begin = zone + simt::kRedZone;
  ASAN_POISON_MEMORY_REGION(zone, simt::kRedZone);
  ASAN_POISON_MEMORY_REGION(begin + bytes, zone + whole - (begin + bytes));
  s.live[begin] = bytes;
  *data = begin;
  return cudaSuccess;
}

cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  if (data == nullptr) return cudaSuccess;
  if (!state().live.contains(static_cast<std::byte*>(data))) return cudaErrorInvalidValue;
  return simt::enqueue(stream, [=] {
    auto& s = state();
    const auto found = s.live.find(static_cast<std::byte*>(data));
    std::memset(found->first, 0xff, found->second);  // who still uses it reads NaN, without AddressSanitizer too
    ASAN_POISON_MEMORY_REGION(found->first, found->second);
    s.live.erase(found);
    if (s.live.empty()) s.used = 0;
    return std::string();
  });
}

// Plain memory: host and kernels reach it. Fresh, it holds what it happens to; a test shall not see zeros by chance.
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  *data = std::aligned_alloc(simt::kAlign, simt::padded(bytes));
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*data, 0xff, bytes);
  state().pinned.insert(*data);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
  if (state().pinned.erase(data) == 0) return cudaErrorInvalidValue;
  return std::free(data), cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  return simt::enqueue(stream, [=] { return std::memset(data, value, bytes), std::string(); });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return simt::enqueue(stream, [=] { return std::memcpy(to, from, bytes), std::string(); });
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind, cudaStream_t stream) {
  if (width > to_pitch || width > from_pitch) return cudaErrorInvalidValue;
  return simt::enqueue(stream, [=] {
    for (size_t row = 0; row < height; ++row)
      std::memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
    return std::string();
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new simt::Stream;
  state().streams.push_back(*stream);
  return cudaSuccess;
}
// As with CUDA, work that is left goes on; its stream then stays.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  stream->destroyed = true;
  simt::end_if_done(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (simt::stream_of(stream).recording != nullptr) return cudaErrorStreamCaptureUnsupported;
  return simt::drain(simt::stream_of(stream));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream == nullptr || stream->recording != nullptr) return cudaErrorStreamCaptureUnsupported;
  stream->recording = std::make_unique<simt::Graph>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = stream->recording.release();
  return *graph != nullptr ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new simt::Graph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  for (const auto& work : executable->work)
    if (const cudaError_t error = simt::enqueue(stream, work); error != cudaSuccess) return error;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { return delete executable, cudaSuccess; }

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (simt::stream_of(stream).recording != nullptr) return cudaErrorStreamCaptureUnsupported;
  simt::stream_of(stream).queue.push_back({simt::Item::Kind::wait, {}, state().events.at(event), event->recorded});
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  auto made = std::make_shared<simt::Event>();
  *event = made.get();
  state().events[made.get()] = made;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (simt::stream_of(stream).recording != nullptr) return cudaErrorStreamCaptureUnsupported;
  ++event->recorded;
  simt::stream_of(stream).queue.push_back({simt::Item::Kind::record, {}, state().events.at(event), event->recorded});
  return cudaSuccess;
}
// A host that polls sees progress: each look runs one item.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event->reached < event->recorded) simt::run_one();
  if (!state().report.empty()) return cudaErrorLaunchFailure;
  return event->reached >= event->recorded ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return state().events.erase(event), cudaSuccess; }
