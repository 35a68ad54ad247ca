#include "kernels/cuda/faults.h"

#include <algorithm>

#include "kernels/accelerator.h"
#include "kernels/faults.h"

namespace llmops::cuda {
namespace {

Status wrong_id(const FaultKind& kind, int64_t row, int32_t value) {
  return id_error(kind.op, kind.tensor, row, value, kind.limit, kind.ignore_negative);
}

}  // namespace

Result<std::shared_ptr<Faults>> Faults::open() {
  void* word = nullptr;
  LLMOPS_TRY(status_of(cudaHostAlloc(&word, sizeof(FaultWord), cudaHostAllocDefault), "CUDA pinned memory"));
  *static_cast<FaultWord*>(word) = {0, ~0ull};
  return std::shared_ptr<Faults>(new Faults(static_cast<FaultWord*>(word)));
}

Faults::~Faults() { (void)cudaFreeHost(word_); }

FaultPlace Faults::place(const FaultKind& kind) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find(kinds_.begin(), kinds_.end(), kind);
  const auto index = static_cast<unsigned>(found - kinds_.begin());
  if (found == kinds_.end()) kinds_.push_back(kind);
  return {word_, index + 1};
}

// A kernel that still runs may have written the first half only: a later look sees both.
Status Faults::status() {
  const unsigned place = __atomic_load_n(&word_->place, __ATOMIC_ACQUIRE);
  const unsigned long long first = __atomic_load_n(&word_->first, __ATOMIC_ACQUIRE);
  if (place == 0 || first == ~0ull) return {};
  const std::lock_guard lock(mutex_);
  const FaultKind& kind = kinds_[place - 1];
  return kind.error(kind, static_cast<int64_t>(first >> 32), static_cast<int32_t>(first & 0xffffffffu));
}

FaultPlace fault_place(Stream& stream, const FaultKind& kind) { return stream.queue()->faults().place(kind); }

FaultPlace id_place(Stream& stream, const char* op, const char* tensor, int64_t limit, bool ignore_negative) {
  return fault_place(stream, {wrong_id, op, tensor, limit, ignore_negative});
}

}  // namespace llmops::cuda
