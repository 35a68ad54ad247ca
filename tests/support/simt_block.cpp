// A kernel on fibres: one per thread of the block, one block after the other.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "support/simt_internal.h"

#ifndef __x86_64__
#error "the fibres of the SIMT shim are written for x86-64"
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

// simt_switch(save, to): leaves the caller's stack, its pointer in *save, for the one at `to`. The registers that a call
// preserves (System V ABI) lie on the stack that is left.
extern "C" void simt_switch(void** save, void* to);
asm(R"(
.text
.globl simt_switch
.type simt_switch, @function
simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_switch, . - simt_switch
)");

namespace simt {
namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr unsigned kWarp = 32;

enum class At : uint8_t { ready, barrier, warp, done, short_of_shared, misaligned_copy };

struct Copy {
  void* to;
  const void* from;
  size_t bytes;  // the rest of kCopyBytes is zero
};
constexpr size_t kCopyBytes = 16;

struct Thread {
  At at;
  uint3 index;
  void* stack_pointer;
  void* fake_stack;  // ASan's
  // At::warp: what it brings to the rendezvous, and what it takes away. At::short_of_shared: value is the bytes it wants.
  WarpOp op;
  unsigned mask;
  uint64_t value;
  int argument, width;
  const WarpCall* call;
  std::vector<Copy> copies;     // not yet waited for
  std::vector<size_t> groups;   // how many of them each group has; the last is open
};

struct Block {
  std::vector<Thread> threads;
  unsigned current;
  void* scheduler_pointer;
  void* scheduler_fake_stack;
  const void* scheduler_bottom;
  size_t scheduler_bytes;
  const Launch* launch;
  std::string failure;
};
Block block;

std::byte* memory_of(size_t bytes) {
  void* map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) std::perror("simt: mmap"), std::abort();
  return static_cast<std::byte*>(map);
}
std::byte* stack_of(unsigned thread) {
  static std::byte* const stacks = memory_of(kThreadsMax * kStackBytes);
  return stacks + thread * kStackBytes;
}
std::byte* shared_memory() {
  static std::byte* const memory = memory_of(kSharedBytesMax);
  return memory;
}

// What AddressSanitizer must know of a switch: the stack that is entered, and where the one that is left keeps its frames
// (null: it is left for good).
void leaving([[maybe_unused]] void** fake_stack, [[maybe_unused]] const void* bottom, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fake_stack, bottom, bytes);
#endif
}
void arrived([[maybe_unused]] void* fake_stack, [[maybe_unused]] const void** bottom, [[maybe_unused]] size_t* bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, bottom, bytes);
#endif
}

// Back to the scheduler, until this thread is resumed.
void pause(At at) {
  Thread& self = block.threads[block.current];
  self.at = at;
  leaving(at == At::done ? nullptr : &self.fake_stack, block.scheduler_bottom, block.scheduler_bytes);
  simt_switch(&self.stack_pointer, block.scheduler_pointer);
  arrived(self.fake_stack, &block.scheduler_bottom, &block.scheduler_bytes);
}

[[noreturn]] void thread_main() {
  arrived(nullptr, &block.scheduler_bottom, &block.scheduler_bytes);
  block.launch->kernel();
  pause(At::done);
  std::abort();
}

void start(unsigned id, const dim3& size) {
  Thread& thread = block.threads[id];
  thread = {};
  thread.groups = {0};
  thread.index = {id % size.x, id / size.x % size.y, id / size.x / size.y};
  std::byte* const stack = stack_of(id);
  ASAN_UNPOISON_MEMORY_REGION(stack, kStackBytes);  // frames of a block that failed
  // As simt_switch leaves a stack: six registers and a return address, which a call finds at 16 n + 8.
  auto** top = reinterpret_cast<void**>(stack + kStackBytes);
  std::fill(top - 8, top, nullptr);
  top[-2] = reinterpret_cast<void*>(&thread_main);
  thread.stack_pointer = top - 8;
}

void resume(unsigned id) {
  Thread& thread = block.threads[id];
  block.current = id;
  threadIdx = thread.index;
  leaving(&block.scheduler_fake_stack, stack_of(id), kStackBytes);
  simt_switch(&block.scheduler_pointer, thread.stack_pointer);
  arrived(block.scheduler_fake_stack, nullptr, nullptr);
}

const char* name_of(WarpOp op) {
  constexpr const char* kNames[] = {"__syncwarp",       "__shfl_sync",     "__shfl_up_sync",
                                    "__shfl_down_sync", "__shfl_xor_sync", "__ballot_sync"};
  return kNames[static_cast<int>(op)];
}
const char* name_of(const Thread& t) { return t.op == WarpOp::call ? t.call->name : name_of(t.op); }
std::string text_of(unsigned id, const Thread& t) {
  char text[160];
  const char* const state = t.at == At::warp      ? name_of(t)
                            : t.at == At::barrier ? "__syncthreads"
                            : t.at == At::done    ? "done"
                                                  : "copy_async";
  std::snprintf(text, sizeof text, "thread (%u,%u,%u), lane %u of warp %u: %s", t.index.x, t.index.y, t.index.z,
                id % kWarp, id / kWarp, state);
  std::string full = text;
  if (t.at == At::warp) std::snprintf(text, sizeof text, " of lanes %08x", t.mask), full += text;
  return full;
}

// The lane whose value `lane` gets.
unsigned source_of(const Thread& t, unsigned lane) {
  const int width = t.width, first = static_cast<int>(lane) & ~(width - 1), last = first + width - 1;
  int from = static_cast<int>(lane);
  switch (t.op) {
    case WarpOp::shfl_idx: from = first + (t.argument & (width - 1)); break;
    case WarpOp::shfl_up: from -= t.argument; break;
    case WarpOp::shfl_down: from += t.argument; break;
    case WarpOp::shfl_xor: from ^= t.argument; break;
    default: break;
  }
  const bool outside = from > last || (t.op == WarpOp::shfl_up && from < first);
  return outside ? lane : static_cast<unsigned>(from);
}

// All lanes of the warp of thread `id` have come to this call.
void run_call(const WarpCall& call, unsigned id) {
  Thread* const first = &block.threads[id / kWarp * kWarp];
  void* lanes[kWarp];
  for (unsigned lane = 0; lane < kWarp; ++lane) lanes[lane] = reinterpret_cast<void*>(first[lane].value);
  if (const char* const wrong = call.run(lanes)) block.failure = text_of(id, block.threads[id]) + ": " + wrong;
  for (unsigned lane = 0; lane < kWarp; ++lane) first[lane].at = At::ready;
}

// When every lane of the mask has come with the same operation: hands out the results and lets them go on.
void meet(unsigned id) {
  const Thread& caller = block.threads[id];
  const unsigned first = id / kWarp * kWarp;
  const auto in_mask = [&](unsigned lane) { return (caller.mask >> lane & 1) != 0; };
  if (!in_mask(id - first)) return void(block.failure = text_of(id, caller) + ", which leave the caller out");
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if (!in_mask(lane)) continue;
    if (first + lane >= block.threads.size())
      return void(block.failure = text_of(id, caller) + ", but the block has no lane " + std::to_string(lane));
    const Thread& other = block.threads[first + lane];
    const bool differs =
        other.at == At::warp && (other.op != caller.op || other.mask != caller.mask || other.call != caller.call);
    if (other.at == At::done || differs)
      return void(block.failure = text_of(id, caller) + "; but " + text_of(first + lane, other));
    if (other.at != At::warp) return;
  }
  if (caller.op == WarpOp::call) return run_call(*caller.call, id);
  unsigned votes = 0;
  uint64_t values[kWarp];
  std::fill_n(values, kWarp, ~uint64_t{0});  // a lane outside the mask has no value: NaN
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if (!in_mask(lane)) continue;
    values[lane] = block.threads[first + lane].value;
    if (values[lane] != 0) votes |= 1u << lane;
  }
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if (!in_mask(lane)) continue;
    Thread& thread = block.threads[first + lane];
    thread.value = thread.op == WarpOp::ballot ? votes : values[source_of(thread, lane)];
    thread.at = At::ready;
  }
}

// Threads that ended count as arrived, as on a GPU.
void open_barrier() {
  for (const Thread& t : block.threads)
    if (t.at != At::barrier && t.at != At::done) return;
  for (Thread& t : block.threads)
    if (t.at == At::barrier) t.at = At::ready;
}

bool all_done() {
  return std::all_of(block.threads.begin(), block.threads.end(), [](const Thread& t) { return t.at == At::done; });
}

// One line for each kind of waiting, with the first thread that does it.
std::string deadlock() {
  std::string report = "deadlock";
  std::string seen;
  for (unsigned id = 0; id < block.threads.size(); ++id) {
    const Thread& t = block.threads[id];
    const std::string kind = t.at == At::warp ? name_of(t) : t.at == At::barrier ? "__syncthreads" : "done";
    if (t.at == At::done || seen.find(kind) != std::string::npos) continue;
    seen += kind + " ";
    report += "; " + text_of(id, t);
  }
  return report;
}

// Runs each thread of a warp that is ready until it waits or ends. False when none was.
bool run_warp(const Launch& launch, unsigned warp) {
  bool moved = false;
  const unsigned first = warp * kWarp, count = static_cast<unsigned>(block.threads.size()) - first;
  for (const unsigned lane : in_order(std::min(count, kWarp))) {
    const unsigned id = first + lane;
    Thread& thread = block.threads[id];
    if (thread.at != At::ready || !block.failure.empty()) continue;
    moved = true;
    resume(id);
    if (thread.at == At::warp) meet(id);
    if (thread.at == At::short_of_shared)
      block.failure = std::to_string(thread.value) + " bytes of shared memory are used, but the launch gives " +
                      std::to_string(launch.shared_bytes);
    if (thread.at == At::misaligned_copy) block.failure = text_of(id, thread) + ": a side is not on 16 bytes";
  }
  return moved;
}

std::string run_block(const Launch& launch) {
  block.failure.clear();
  const unsigned count = launch.block.x * launch.block.y * launch.block.z;
  block.threads.resize(count);
  for (unsigned id = 0; id < count; ++id) start(id, launch.block);
  ASAN_UNPOISON_MEMORY_REGION(shared_memory(), kSharedBytesMax);
  std::memset(shared_memory(), 0xff, launch.shared_bytes);  // NaN until it is written
  ASAN_POISON_MEMORY_REGION(shared_memory() + launch.shared_bytes, kSharedBytesMax - launch.shared_bytes);
  while (!all_done()) {
    bool moved = false;
    // A warp goes on past its own warp operations, or these would be barriers for all warps.
    for (const unsigned warp : in_order((count + kWarp - 1) / kWarp)) {
      while (run_warp(launch, warp)) {
        moved = true;
        if (!goes_on()) break;
      }
      if (!block.failure.empty()) return block.failure;
    }
    if (!moved) return deadlock();
    open_barrier();
  }
  return "";
}

}  // namespace

std::string run(const Launch& launch) {
  block.launch = &launch;
  gridDim = launch.grid;
  blockDim = launch.block;
  for (const unsigned id : in_order(launch.grid.x * launch.grid.y * launch.grid.z)) {
    blockIdx = {id % launch.grid.x, id / launch.grid.x % launch.grid.y, id / launch.grid.x / launch.grid.y};
    const std::string failure = run_block(launch);
    if (failure.empty()) continue;
    char place[96];
    std::snprintf(place, sizeof place, ", block (%u,%u,%u): ", blockIdx.x, blockIdx.y, blockIdx.z);
    return launch.name + place + failure;
  }
  return "";
}

// A thread that cannot go on is left on its stack, so that it must own nothing: the scheduler words the report.
void* block_shared(size_t bytes) {
  if (bytes > block.launch->shared_bytes) {
    block.threads[block.current].value = bytes;
    pause(At::short_of_shared);
  }
  return shared_memory();
}

uint64_t warp(WarpOp op, unsigned mask, uint64_t value, int argument, int width) {
  Thread& self = block.threads[block.current];
  self.op = op, self.mask = mask, self.value = value, self.argument = argument, self.width = width;
  self.call = nullptr;
  pause(At::warp);
  return self.value;
}

void warp_call(const WarpCall& call, void* mine) {
  Thread& self = block.threads[block.current];
  self.op = WarpOp::call, self.mask = ~0u, self.value = reinterpret_cast<uintptr_t>(mine);
  self.call = &call;
  pause(At::warp);
}

void copy_async(void* to, const void* from, int bytes) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % kCopyBytes != 0) pause(At::misaligned_copy);
  Thread& self = block.threads[block.current];
  self.copies.push_back({to, from, static_cast<size_t>(bytes)});
  ++self.groups.back();
  std::memset(to, 0xff, kCopyBytes);
}

void copy_commit() { block.threads[block.current].groups.push_back(0); }

void copy_wait(int pending) {
  Thread& self = block.threads[block.current];
  while (self.groups.size() > static_cast<size_t>(pending) + 1) {
    for (auto copy = self.copies.begin(); copy != self.copies.begin() + std::ptrdiff_t(self.groups.front()); ++copy) {
      std::memset(copy->to, 0, kCopyBytes);
      if (copy->bytes > 0) std::memcpy(copy->to, copy->from, copy->bytes);
    }
    self.copies.erase(self.copies.begin(), self.copies.begin() + std::ptrdiff_t(self.groups.front()));
    self.groups.erase(self.groups.begin());
  }
}

}  // namespace simt

void __syncthreads() { simt::pause(simt::At::barrier); }
