#include "comm/nccl_calls.h"

#include <fmt/format.h>

namespace llmops::nccl {
namespace {

// In a group each call only joins it; the first that fails counts, and the group is closed all the same. Without blocking
// a call within a group may say that it is in progress: the end of the group tells.
class Group {
 public:
  explicit Group(const Api& api) : api_(api), first_(api.GroupStart()) {}
  void add(Code code) {
    if (first_ == Code::success && code != Code::in_progress) first_ = code;
  }
  Code end() {
    const Code code = api_.GroupEnd();
    return first_ == Code::success ? code : first_;
  }

 private:
  const Api& api_;
  Code first_;
};

}  // namespace

Parts::Parts(std::span<const int64_t> elems, int64_t elem_bytes) : elem_bytes_(elem_bytes) {
  for (int64_t count : elems) at_.push_back(at_.back() + count * elem_bytes);
}

bool Parts::equal() const {
  for (int r = 1; r < ranks(); ++r)
    if (bytes(r) != bytes(0)) return false;
  return true;
}

Result<Type> reducible(const char* call, DType dtype) {
  switch (dtype) {
    case DType::f32: return Type::f32;
    case DType::f64: return Type::f64;
    case DType::i64: return Type::i64;
    default: return usage_error(fmt::format("{}: found {}, expected F32, F64 or I64", call, info(dtype).name));
  }
}

Reduction reduction(ReduceOp op) {
  return op == ReduceOp::sum ? Reduction::sum : op == ReduceOp::max ? Reduction::max : Reduction::min;
}

Status copy_unless_there(Stream& stream, void* to, const void* from, int64_t bytes) {
  if (to != from) stream.copy(to, from, bytes);
  return {};
}

Code gather(const Api& api, Comm comm, const void* mine, void* all, const Parts& parts, int rank, void* stream) {
  if (parts.equal()) return api.AllGather(mine, all, size_t(parts.bytes(0)), Type::u8, comm, stream);
  Group group(api);
  for (int r = 0; r < parts.ranks(); ++r) {
    void* const to = parts.at(all, r);
    if (parts.bytes(r) > 0)
      group.add(api.Broadcast(r == rank ? mine : to, to, size_t(parts.bytes(r)), Type::u8, r, comm, stream));
  }
  return group.end();
}

Code scatter(const Api& api, Comm comm, const void* in, void* mine, const Parts& parts, int rank, Type type,
             Reduction op, void* stream) {
  const auto count = [&](int r) { return size_t(parts.bytes(r) / parts.elem_bytes()); };
  if (parts.equal()) return api.ReduceScatter(in, mine, count(0), type, op, comm, stream);
  Group group(api);
  for (int r = 0; r < parts.ranks(); ++r)
    if (count(r) > 0)
      group.add(api.Reduce(parts.at(in, r), r == rank ? mine : nullptr, count(r), type, op, r, comm, stream));
  return group.end();
}

Code exchange(const Api& api, Comm comm, const void* in, void* out, const Parts& give, const Parts& take, void* stream) {
  Group group(api);
  for (int r = 0; r < give.ranks(); ++r) {
    if (give.bytes(r) > 0) group.add(api.Send(give.at(in, r), size_t(give.bytes(r)), Type::u8, r, comm, stream));
    if (take.bytes(r) > 0) group.add(api.Recv(take.at(out, r), size_t(take.bytes(r)), Type::u8, r, comm, stream));
  }
  return group.end();
}

}  // namespace llmops::nccl
