// Collectives of NCCL whose ranks may give different counts: one call where the counts are equal, else a group of calls.
#pragma once

#include <span>
#include <vector>

#include "comm/comm.h"
#include "comm/nccl_api.h"

namespace llmops::nccl {

// Contiguous parts of one buffer, by rank.
class Parts {
 public:
  Parts(std::span<const int64_t> elems, int64_t elem_bytes);
  int64_t elem_bytes() const { return elem_bytes_; }
  int64_t total_bytes() const { return at_.back(); }
  int64_t bytes(int rank) const { return at_[size_t(rank) + 1] - at_[size_t(rank)]; }
  bool equal() const;
  int ranks() const { return static_cast<int>(at_.size()) - 1; }
  template <class T>
  T* at(T* base, int rank) const {
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(base) + static_cast<uintptr_t>(at_[size_t(rank)]));
  }

 private:
  int64_t elem_bytes_;
  std::vector<int64_t> at_{0};  // bytes
};

Result<Type> reducible(const char* call, DType dtype);  // f32, f64, i64
Reduction reduction(ReduceOp op);
Status copy_unless_there(Stream& stream, void* to, const void* from, int64_t bytes);

Code gather(const Api& api, Comm comm, const void* mine, void* all, const Parts& parts, int rank, void* stream);
Code scatter(const Api& api, Comm comm, const void* in, void* mine, const Parts& parts, int rank, Type type,
             Reduction op, void* stream);
Code exchange(const Api& api, Comm comm, const void* in, void* out, const Parts& give, const Parts& take, void* stream);

}  // namespace llmops::nccl
