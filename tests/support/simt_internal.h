// Between simt_block.cpp, which runs a kernel, and simt_device.cpp, which has memory, streams and events.
#pragma once

#include <random>
#include <vector>

#include "support/simt.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

namespace simt {

constexpr size_t kThreadsMax = 1024;           // of a block
constexpr size_t kSharedBytesMax = 163 << 10;  // of a block, on sm_80; sm_90 and sm_100 have more

struct Launch {
  std::string name;
  dim3 grid, block;
  size_t shared_bytes;
  std::function<void()> kernel;
};

// Every choice of order: 0, 1, ... count - 1 as the schedule has it. The seeded generator goes on from call to call.
std::vector<unsigned> in_order(unsigned count);
// Whether a warp that can go on does so before others have their turn: always, or drawn where the order is seeded.
bool goes_on();

// Runs all blocks; "" or the report of what went wrong.
std::string run(const Launch& launch);

}  // namespace simt
