// Device and Buffer: the pool, the op table, and memory with its accounting.
#include "kernels/runtime.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/checked.h"
#include "base/rng.h"
#include "base/text.h"
#include "kernels/runtime_state.h"
#include "kernels/tables.h"

namespace llmops {
namespace {

constexpr int64_t kAlign = 64;  // bytes: a cache line, and one AVX-512 register
constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kMapBytesMin = int64_t{256} << 10;  // below this the heap is cheaper than a mapping

bool is_mapped(int64_t bytes) { return bytes >= kMapBytesMin; }
int64_t padded(int64_t bytes) {
  return round_up(std::max<int64_t>(bytes, 1), is_mapped(bytes) ? 4096 : kAlign);
}

// Pages of a fresh mapping are zero and cost nothing until touched. Large ones start on a 2 MiB boundary, where the
// kernel can back them with huge pages: the weights of a matmul miss the TLB less.
void* map_zeroed(int64_t bytes) {
  const int64_t slack = bytes >= kHugePage ? kHugePage : 0;
  void* map = mmap(nullptr, size_t(bytes + slack), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  if (slack == 0) return map;
  char* const begin = static_cast<char*>(map);
  const int64_t skip = -reinterpret_cast<intptr_t>(begin) & (kHugePage - 1);
  if (skip > 0) munmap(begin, size_t(skip));
  if (skip < slack) munmap(begin + skip + bytes, size_t(slack - skip));
  madvise(begin + skip, size_t(bytes), MADV_HUGEPAGE);
  return begin + skip;
}

void* allocate_zeroed(int64_t bytes) {
  if (is_mapped(bytes)) return map_zeroed(padded(bytes));
  void* data = std::aligned_alloc(size_t(kAlign), size_t(padded(bytes)));
  if (data) std::memset(data, 0, size_t(padded(bytes)));
  return data;
}

}  // namespace

std::string_view name_of(Category category) {
  constexpr std::string_view kNames[] = {"weights",   "grads", "optim", "saved",  "transient",
                                         "workspace", "comm",  "kv",    "staging"};
  static_assert(std::size(kNames) == kCategories);
  return kNames[static_cast<size_t>(category)];
}

Buffer::Buffer(Buffer&& other) noexcept { *this = std::move(other); }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  if (data_) device_->release(*this);
  device_ = other.device_;
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  category_ = other.category_;
  on_host_ = other.on_host_;
  return *this;
}

Buffer::~Buffer() {
  if (data_) device_->release(*this);
}

TensorView Buffer::view(DType dtype, std::initializer_list<int64_t> dims, int64_t byte_offset) const {
  const auto elems = checked_product({dims.begin(), dims.size()});
  const auto bytes = elems ? bytes_of(dtype, *elems) : std::nullopt;
  if (!bytes || dims.size() > kRankMax || byte_offset < 0 || *bytes > bytes_ - byte_offset) {
    fmt::print(stderr, "llmops: internal error: a view of {} {} at byte {} of a buffer of {} bytes ({})\n",
               fmt::join(dims, "x"), info(dtype).name, byte_offset, bytes_, name_of(category_));
    std::abort();
  }
  return dense_view(static_cast<void*>(static_cast<char*>(data_) + byte_offset), dtype, dims, device_->id());
}

Result<HostSide> HostSide::of(Device& device, void* data, int64_t bytes) {
  HostSide side;
  side.host_ = side.data_ = data;
  side.bytes_ = bytes;
  if (device.kind() == DeviceKind::cpu) return side;
  LLMOPS_ASSIGN(side.pinned_, device.alloc_host(bytes));
  side.host_ = side.pinned_.data();
  return side;
}

void HostSide::push(Stream& stream, int64_t begin, int64_t bytes) const {
  if (host_ != data_) stream.copy(static_cast<char*>(data_) + begin, static_cast<char*>(host_) + begin, bytes);
}

void HostSide::pull(Stream& stream, int64_t begin, int64_t bytes) const {
  if (host_ != data_) stream.copy(static_cast<char*>(host_) + begin, static_cast<char*>(data_) + begin, bytes);
}

Device::Device() : state_(std::make_unique<State>()) {}

Device::~Device() { state_->compute.reset(); }  // it may still have work that needs the rest

Status CudaInfo::usable(int index) const {
  if (capability >= kCapabilityMin) return {};
  return io_error(fmt::format("CUDA device {} ({}) has compute capability {}.{}, expected {}.{} or later", index,
                              escape_control(name), capability / 10, capability % 10, kCapabilityMin / 10,
                              kCapabilityMin % 10));
}

Result<std::unique_ptr<Device>> Device::open_cpu(const Options& options) {
  if (options.threads < 1)
    return usage_error(fmt::format("a device needs at least 1 thread, not {}", options.threads));
  const Isa isa = options.isa == Isa::best ? isa_best() : options.isa;
  if (!isa_runs(isa))
    return io_error(fmt::format("this CPU cannot run {} code; the best it can run is {}", name_of(isa),
                                name_of(isa_best())));
  std::unique_ptr<Device> device(new Device);
  State& state = *device->state_;
  state.options = options;
  state.options.isa = isa;
  state.ops = options.reference ? &op_table_ref() : &op_table_cpu(isa);
  state.pool.emplace(options.threads);
  state.compute = device->new_stream();
  return device;
}

Result<std::unique_ptr<Device>> Device::open(std::unique_ptr<Accelerator> accelerator, const OpTable& ops,
                                             int threads) {
  std::unique_ptr<Device> device(new Device);
  State& state = *device->state_;
  state.options.isa = isa_best();
  state.ops = &ops;
  state.pool.emplace(threads);
  state.accelerator = std::move(accelerator);
  state.compute = device->new_stream();
  return device;
}

DeviceKind Device::kind() const { return state_->accelerator ? DeviceKind::cuda : DeviceKind::cpu; }
DeviceId Device::id() const { return state_->accelerator ? state_->accelerator->id() : DeviceId{}; }
Isa Device::isa() const { return state_->options.isa; }
bool Device::fast_matmul() const { return state_->fast_matmul; }
Result<std::string> Device::use_fast_matmul() {
  if (!state_->accelerator) return io_error("the CPU has one matmul, its own; cuBLASLt is for CUDA devices");
  LLMOPS_ASSIGN(std::string library, state_->accelerator->open_fast_matmul());
  state_->fast_matmul = true;
  return library;
}
std::string Device::name() const {
  return state_->accelerator ? state_->accelerator->name() : fmt::format("CPU {}", name_of(isa()));
}
Pool& Device::pool() { return *state_->pool; }
const OpTable& Device::ops() const { return *state_->ops; }
Stream& Device::compute() { return *state_->compute; }
std::unique_ptr<Stream> Device::new_stream() { return std::unique_ptr<Stream>(new Stream(*this)); }

Result<Buffer> Device::alloc(int64_t bytes, Category category) { return alloc(bytes, category, false); }

Result<Buffer> Device::alloc_host(int64_t bytes, Category category) {
  return alloc(bytes, category, state_->accelerator != nullptr);
}

Result<Buffer> Device::alloc(int64_t bytes, Category category, bool on_host) {
  if (bytes < 0)
    return invalid_error(fmt::format("a buffer of {} bytes was asked for ({})", bytes, name_of(category)));
  const bool fits = bytes <= INT64_MAX - kHugePage - 4096;
  Accelerator* const accelerator = state_->accelerator.get();
  if (!fits) return out_of_memory(bytes, category);
  LLMOPS_ASSIGN(void* const data, on_host       ? accelerator->alloc_pinned(bytes)
                                  : accelerator ? accelerator->alloc_zeroed(bytes)
                                                : Result<void*>(allocate_zeroed(bytes)));
  if (!data) return out_of_memory(bytes, category);
  Buffer buffer;
  buffer.device_ = this;
  buffer.data_ = data;
  buffer.bytes_ = bytes;
  buffer.category_ = category;
  buffer.on_host_ = on_host;
  note_external(category, bytes);
  return buffer;
}

Status Device::out_of_memory(int64_t bytes, Category category) const {
  std::string sizes;
  for (size_t i = 0; i < kCategories; ++i)
    if (const int64_t used = bytes_in_use(Category(i)); used > 0)
      sizes += fmt::format("{}{} {}", sizes.empty() ? "" : ", ", name_of(Category(i)), format_bytes(used));
  const std::string room = state_->accelerator ? state_->accelerator->room() : "";
  return io_error(fmt::format(
      "out of memory: {} needs {} more; in use: {}{}{}. Use a smaller batch or model, or more ranks", name_of(category),
      format_bytes(bytes), sizes.empty() ? "nothing" : sizes, room.empty() ? "" : "; ", room));
}

void Device::release(const Buffer& buffer) {
  if (buffer.on_host_) {
    // Copies may be on their way. Each wait ends, if need be by a watch: work of a peer that is gone never does by itself.
    for (Stream* stream : state_->streams) (void)stream->sync();
    state_->accelerator->release_pinned(buffer.data_);
  } else if (state_->accelerator)
    state_->accelerator->release(buffer.data_);
  else if (is_mapped(buffer.bytes_))
    munmap(buffer.data_, size_t(padded(buffer.bytes_)));
  else
    std::free(buffer.data_);
  note_external(buffer.category_, -buffer.bytes_);
}

void Device::note_external(Category category, int64_t bytes) {
  const size_t i = static_cast<size_t>(category);
  const std::lock_guard lock(state_->memory);
  state_->in_use[i] += bytes;
  state_->peak[i] = std::max(state_->peak[i], state_->in_use[i]);
}

int64_t Device::bytes_in_use(Category category) const {
  const std::lock_guard lock(state_->memory);
  return state_->in_use[static_cast<size_t>(category)];
}

int64_t Device::bytes_peak(Category category) const {
  const std::lock_guard lock(state_->memory);
  return state_->peak[static_cast<size_t>(category)];
}

int Device::watch(std::function<Status()> look) {
  state_->watches[++state_->watch_count] = std::move(look);
  return state_->watch_count;
}
void Device::unwatch(int number) { state_->watches.erase(number); }
void Device::set_deadline(double deadline_s) { state_->deadline_s = deadline_s; }

bool Device::run_one() {
  std::vector<Stream*> ready;
  for (Stream* stream : state_->streams)
    if (stream->ready()) ready.push_back(stream);
  if (ready.empty()) return false;
  const Philox draw = philox4x32(state_->options.deferred_seed, state_->draws++, 0);
  ready[draw.v[0] % ready.size()]->run_oldest();
  return true;
}

}  // namespace llmops
