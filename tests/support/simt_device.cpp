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

#include "support/simt_internal.h"

namespace simt {

// Records count up; a wait is for the record that was the newest when it was called.
struct Event {
  uint64_t recorded = 0, reached = 0;
};

struct Item {
  enum class Kind : uint8_t { work, record, wait } kind;
  std::function<std::string()> work;  // "" or a report
  std::shared_ptr<Event> event;
  uint64_t count = 0;  // of the record
};
struct Stream {
  std::deque<Item> queue;
};

namespace {

constexpr size_t kArenaBytes = size_t{4} << 30;  // of address space
constexpr size_t kRedZone = 256;
constexpr size_t kAlign = 256;  // as cudaMalloc

size_t padded(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

struct State {
  State();
  std::byte* arena;
  size_t used = 0;                    // reused only when all is free, so that a use after free is found
  std::map<std::byte*, size_t> live;  // bytes of each allocation
  Stream default_stream;
  std::vector<Stream*> streams = {&default_stream};
  std::map<Event*, std::shared_ptr<Event>> events;
  Schedule schedule;
  std::mt19937_64 random;
  cudaError_t count_error = cudaSuccess;
  std::string report;  // of the first failure; it sticks
  struct sigaction before;
};
State& state() {
  static State s;
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
  void* map = mmap(nullptr, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) std::perror("simt: mmap"), std::abort();
  arena = static_cast<std::byte*>(map);
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
  const size_t bytes = (s.used + 4095) / 4096 * 4096;
  if (bytes > 0 && mprotect(s.arena, bytes, protection) != 0) std::perror("simt: mprotect"), std::abort();
}

// "" or the first allocation with a byte written beside it. AddressSanitizer needs no such look, and forbids it.
std::string written_outside() {
#if !defined(__SANITIZE_ADDRESS__)
  for (const auto& [data, bytes] : state().live) {
    const std::byte* const end = data + padded(bytes) + kRedZone;
    for (const std::byte* p = data - kRedZone; p < end; ++p)
      if ((p < data || p >= data + bytes) && *p != std::byte{0xff})
        return "byte " + std::to_string(p - data) + " of an allocation of " + std::to_string(bytes) + " was written";
  }
#endif
  return "";
}

void run_item(Stream& stream) {
  State& s = state();
  Item item = std::move(stream.queue.front());
  stream.queue.pop_front();
  if (item.kind == Item::Kind::record) item.event->reached = std::max(item.event->reached, item.count);
  if (item.kind != Item::Kind::work || !s.report.empty()) return;
  protect(PROT_READ | PROT_WRITE);
  s.report = item.work();
  if (s.report.empty()) s.report = written_outside();
  protect(PROT_NONE);
}

bool ready(const Stream& stream) {
  if (stream.queue.empty()) return false;
  const Item& item = stream.queue.front();
  return item.kind != Item::Kind::wait || item.event->reached >= item.count;
}

// Runs one item of the stream that comes first in the schedule's order. Something can always run: an event is recorded
// before it can be waited for.
bool run_one() {
  State& s = state();
  for (const unsigned i : in_order(static_cast<unsigned>(s.streams.size())))
    if (ready(*s.streams[i])) return run_item(*s.streams[i]), true;
  return false;
}

cudaError_t drain(const Stream& stream) {
  while (!stream.queue.empty() && run_one()) {
  }
  return state().report.empty() ? cudaSuccess : cudaErrorLaunchFailure;
}

Stream& stream_of(cudaStream_t stream) { return stream != nullptr ? *stream : state().default_stream; }

cudaError_t enqueue(cudaStream_t stream, std::function<std::string()> work) {
  if (!state().report.empty()) return cudaErrorLaunchFailure;
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

void set_schedule(Schedule schedule) {
  state().schedule = schedule;
  state().random.seed(schedule.seed);
}

void set_device_count_error(cudaError_t error) { state().count_error = error; }

void reset() {
  for (Stream* stream : state().streams) stream->queue.clear();
  state().report.clear();
}

cudaError_t launch(cudaStream_t stream, dim3 grid, dim3 size, size_t shared_bytes, const char* name,
                   std::function<void()> kernel) {
  const uint64_t threads = uint64_t{size.x} * size.y * size.z;
  const bool fits = threads >= 1 && threads <= kThreadsMax && grid.x >= 1 && grid.x <= INT32_MAX && grid.y >= 1 &&
                    grid.y <= 65535 && grid.z >= 1 && grid.z <= 65535 && shared_bytes <= kSharedBytesMax;
  if (!fits) return cudaErrorInvalidConfiguration;
  return enqueue(stream, [run_it = Launch{name, grid, size, shared_bytes, std::move(kernel)}] { return run(run_it); });
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
  }
  return "unknown";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? state().report.c_str() : cudaGetErrorName(error);
}
cudaError_t cudaGetLastError() { return state().report.empty() ? cudaSuccess : cudaErrorLaunchFailure; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = state().count_error == cudaSuccess ? 1 : 0;
  return state().count_error;
}
cudaError_t cudaSetDevice(int index) { return index == 0 ? cudaSuccess : cudaErrorInvalidValue; }

cudaError_t cudaDeviceSynchronize() {
  cudaError_t error = cudaSuccess;
  for (simt::Stream* stream : state().streams) error = std::max(error, simt::drain(*stream));
  return error;
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  auto& s = state();
  if (bytes == 0) return *data = nullptr, cudaSuccess;
  if (bytes > simt::kArenaBytes || s.used + 2 * simt::kRedZone + simt::padded(bytes) > simt::kArenaBytes)
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

cudaError_t cudaFree(void* data) {
  auto& s = state();
  if (data == nullptr) return cudaSuccess;
  const auto found = s.live.find(static_cast<std::byte*>(data));
  if (found == s.live.end()) return cudaErrorInvalidValue;
  const cudaError_t error = cudaDeviceSynchronize();
  ASAN_POISON_MEMORY_REGION(found->first, found->second);
  s.live.erase(found);
  if (s.live.empty()) s.used = 0;
  return error;
}

// Plain memory: host and kernels reach it. Fresh, it holds what it happens to; a test shall not see zeros by chance.
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  *data = std::aligned_alloc(simt::kAlign, simt::padded(bytes));
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*data, 0xff, bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) { return std::free(data), cudaSuccess; }

cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  return simt::enqueue(nullptr, [=] { return std::memset(data, value, bytes), std::string(); });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return simt::enqueue(stream, [=] { return std::memcpy(to, from, bytes), std::string(); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new simt::Stream;
  state().streams.push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const cudaError_t error = simt::drain(*stream);
  std::erase(state().streams, stream);
  delete stream;
  return error;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return simt::drain(simt::stream_of(stream)); }

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
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
