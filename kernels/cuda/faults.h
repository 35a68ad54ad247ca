// Errors that only a running kernel can see: an id outside its table, a NaN logit. The kernel reports the row to a word in
// pinned host memory, which costs nothing unless it happens, and the host looks at the word whenever it waits for the
// device. The first op that reports, in the order of a stream, is the one that is named, with its lowest row. As with CUDA's
// own errors, a device that has failed stays failed.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/runtime.h"

namespace llmops::cuda {

struct FaultWord {
  unsigned place;            // 0: nothing reported; else 1 + an index of Faults::kinds_
  unsigned long long first;  // row << 32 | value, the lowest so far
};

// Where a kernel reports to; passed to it by value.
struct FaultPlace {
  FaultWord* word;
  unsigned place;
};

// What an op may find, and its words: error(*this, row, value).
struct FaultKind {
  Status (*error)(const FaultKind& kind, int64_t row, int32_t value);
  const char *op, *tensor;
  int64_t limit;
  bool ignore_negative;
  friend bool operator==(const FaultKind&, const FaultKind&) = default;
};

// Of one device.
class Faults {
 public:
  static Result<std::shared_ptr<Faults>> open();
  ~Faults();
  FaultPlace place(const FaultKind& kind);
  Status status();  // of all work that the host has waited for

 private:
  explicit Faults(FaultWord* word) : word_(word) {}
  FaultWord* word_;
  std::mutex mutex_;  // streams of one device may belong to several host threads
  std::vector<FaultKind> kinds_;
};

FaultPlace fault_place(Stream& stream, const FaultKind& kind);
// Of tensor[n] i32 with values in [0, limit).
FaultPlace id_place(Stream& stream, const char* op, const char* tensor, int64_t limit, bool ignore_negative = false);

#if defined(__CUDACC__) || defined(LLMOPS_SIMT)

__device__ __forceinline__ void report(FaultPlace at, int64_t row, int value) {
  const unsigned before = atomicCAS(&at.word->place, 0u, at.place);
  if (before != 0 && before != at.place) return;
  atomicMin(&at.word->first, static_cast<unsigned long long>(row) << 32 | static_cast<unsigned>(value));
}

__device__ __forceinline__ bool id_fits(int id, int64_t limit) { return id >= 0 && id < limit; }

#endif

}  // namespace llmops::cuda
