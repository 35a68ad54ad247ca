// Collectives of the local transport. After all ranks have shown their notices, each reads the inputs of its peers
// where they lie: in place when the input is shared memory, else piece by piece in the stages ("windows").
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "comm/fold.h"
#include "comm/local.h"

namespace llmops {
namespace {

int64_t elem_bytes(DType dtype) { return info(dtype).block_bytes; }

Notice call_of(Call call, ConstTensorView in, int64_t part, ReduceOp op = ReduceOp::sum, int root = 0) {
  Notice notice = {};
  notice.call = call;
  notice.dtype = in.dtype;
  notice.op = op;
  notice.root = root;
  notice.elems = in.elems();
  notice.part = part;
  return notice;
}

}  // namespace

// One piece of every rank's input, at the same byte offset in each.
struct LocalCommunicator::Window {
  int64_t begin;                  // bytes
  int64_t bytes[kRanksMax];       // less at the end of an input, or none
  const char* source[kRanksMax];  // where anyone reads rank r's piece
  char* staged;                   // my piece in my stage; null: it is read in place
};

Status check_view(const char* call, const ConstTensorView& view) {
  if (view.device != DeviceId{})
    return usage_error(fmt::format("{}: found CUDA memory, expected host memory for ranks of the CPU", call));
  if (!view.contiguous()) return usage_error(fmt::format("{}: found a strided view, expected a dense one", call));
  if (!view.present() && view.elems() != 0) return usage_error(fmt::format("{}: found no data", call));
  if (info(view.dtype).block_elems != 1) return usage_error(fmt::format("{}: found a block-quantised dtype", call));
  return Status();
}

Status LocalCommunicator::enqueue(Stream& stream, const Notice& shape, ConstTensorView in, TensorView out) {
  Notice call = shape;
  call.number = ++calls_issued_;
  const bool shows_input = call.call != Call::broadcast || call.root == rank_;
  if (in.present() && shows_input)
    call.direct = segment_->offset_of(in.data, static_cast<uint64_t>(call.elems * elem_bytes(call.dtype))).value_or(0);
  const char* from = static_cast<const char*>(in.data);
  char* to = static_cast<char*>(out.data);
  stream.enqueue([this, call, from, to] { return timed([&] { return run(call, from, to); }); }, "comm");
  return Status();
}

Status LocalCommunicator::all_reduce(Stream& stream, TensorView data, ReduceOp op) {
  LLMOPS_TRY(check_view("all_reduce", data));
  if (!is_reducible(data.dtype))
    return usage_error(fmt::format("all_reduce: found {}, expected F32, F64 or I64", info(data.dtype).name));
  return enqueue(stream, call_of(Call::all_reduce, data, data.elems(), op), data, data);
}

Status LocalCommunicator::all_gather(Stream& stream, ConstTensorView mine, TensorView all) {
  LLMOPS_TRY(check_view("all_gather", mine));
  LLMOPS_TRY(check_view("all_gather", all));
  if (mine.dtype != all.dtype) return usage_error("all_gather: found two dtypes, expected one");
  return enqueue(stream, call_of(Call::all_gather, mine, all.elems()), mine, all);
}

Status LocalCommunicator::reduce_scatter(Stream& stream, ConstTensorView in, TensorView mine, ReduceOp op) {
  LLMOPS_TRY(check_view("reduce_scatter", in));
  LLMOPS_TRY(check_view("reduce_scatter", mine));
  if (in.dtype != mine.dtype || !is_reducible(in.dtype))
    return usage_error(fmt::format("reduce_scatter: found {} and {}, expected one of F32, F64, I64",
                                   info(in.dtype).name, info(mine.dtype).name));
  return enqueue(stream, call_of(Call::reduce_scatter, in, mine.elems(), op), in, mine);
}

Status LocalCommunicator::broadcast(Stream& stream, TensorView data, int root) {
  LLMOPS_TRY(check_view("broadcast", data));
  if (root < 0 || root >= world_)
    return usage_error(fmt::format("broadcast: found root {}, expected 0 to {}", root, world_ - 1));
  return enqueue(stream, call_of(Call::broadcast, data, data.elems(), ReduceOp::sum, root), data, data);
}

Status LocalCommunicator::all_to_all(Stream& stream, ConstTensorView in, TensorView out,
                                     std::span<const int64_t> send_counts) {
  LLMOPS_TRY(check_view("all_to_all", in));
  LLMOPS_TRY(check_view("all_to_all", out));
  if (in.dtype != out.dtype) return usage_error("all_to_all: found two dtypes, expected one");
  Notice call = call_of(Call::all_to_all, in, out.elems());
  if (!send_counts.empty() && std::ssize(send_counts) != world_)
    return usage_error(fmt::format("all_to_all: found {} counts, expected {}", send_counts.size(), world_));
  int64_t sum = 0;
  for (int r = 0; r < world_; ++r) {
    call.send_elems[r] = send_counts.empty() ? call.elems / world_ : send_counts[r];
    if (call.send_elems[r] < 0) return usage_error(fmt::format("all_to_all: found a negative count for rank {}", r));
    sum += call.send_elems[r];
  }
  if (sum != call.elems)
    return usage_error(fmt::format("all_to_all: found {} elements for {} ranks, expected {}", call.elems, world_,
                                   send_counts.empty() ? "a multiple" : fmt::format("{} as counted", sum)));
  return enqueue(stream, call, in, out);
}

Status LocalCommunicator::barrier(Stream& stream) {
  return enqueue(stream, call_of(Call::barrier, ConstTensorView{}, 0), {}, {});
}

Status LocalCommunicator::run(const Notice& call, const char* in, char* out) {
  Notice mine = call;
  const int64_t bytes = call.elems * elem_bytes(call.dtype);
  if (call.call == Call::all_reduce && bytes <= Notice::kInlineBytes && bytes > 0)
    std::memcpy(mine.data, in, static_cast<size_t>(bytes));
  LLMOPS_TRY(arrive(mine));
  switch (call.call) {
    case Call::all_reduce: return run_all_reduce(mine, out);
    case Call::all_gather: return run_all_gather(mine, in, out);
    case Call::reduce_scatter: return run_reduce_scatter(mine, in, out);
    case Call::broadcast: return run_broadcast(mine, out);
    case Call::all_to_all: return run_all_to_all(mine, in, out);
    default: return Status();  // barrier: arriving was all
  }
}

template <class Visit>
Status LocalCommunicator::for_windows(const Notice& mine, const char* in, const Visit& visit) {
  int64_t bytes[kRanksMax], longest = 0;
  const char* direct[kRanksMax];
  bool staged = false;
  for (int r = 0; r < world_; ++r) {
    const Notice& theirs = notice(r, mine.number);
    const bool has_input = mine.call != Call::broadcast || r == mine.root;
    bytes[r] = has_input ? theirs.elems * elem_bytes(theirs.dtype) : 0;
    direct[r] = nullptr;
    if (theirs.direct != 0 && bytes[r] > 0) {
      LLMOPS_ASSIGN(direct[r], segment_->at(theirs.direct, static_cast<uint64_t>(bytes[r])));
    }
    longest = std::max(longest, bytes[r]);
    staged = staged || (bytes[r] > 0 && direct[r] == nullptr);
  }
  const int64_t step = staged ? kStageBytes : longest;
  for (int64_t begin = 0; begin < longest; begin += step) {
    Window window = {.begin = begin, .staged = direct[rank_] == nullptr ? stage(rank_) : nullptr};
    for (int r = 0; r < world_; ++r) {
      window.bytes[r] = std::clamp(bytes[r] - begin, int64_t{0}, step);
      window.source[r] = direct[r] != nullptr ? direct[r] + begin : stage(r);
    }
    if (window.staged != nullptr && window.bytes[rank_] > 0)
      copy_bytes(device_.pool(), window.staged, in + begin, window.bytes[rank_]);
    if (staged) LLMOPS_TRY(meet(mine));
    LLMOPS_TRY(visit(window));
    LLMOPS_TRY(meet(mine));  // peers have read what I may now overwrite
  }
  return Status();
}

Status LocalCommunicator::run_all_reduce(const Notice& mine, char* data) {
  const int64_t size = elem_bytes(mine.dtype);
  const void* sources[kRanksMax];
  for (int r = 0; r < world_; ++r) {
    const Notice& theirs = notice(r, mine.number);
    if (theirs.elems != mine.elems)
      return fail([&] { return fmt::format("all_reduce #{}", mine.number); },
                  fmt::format("{} gave {} elements, I gave {}", name_of(r), theirs.elems, mine.elems));
    sources[r] = theirs.data;
  }
  if (mine.elems * size <= Notice::kInlineBytes) {
    fold_ranks(device_.pool(), mine.dtype, mine.op, sources, world_, data, mine.elems);
    return Status();
  }
  return for_windows(mine, data, [&](const Window& window) -> Status {
    const Bucket slices = even_bucket(0, window.bytes[rank_] / size, world_, 64);
    const int64_t at = slices.cut[rank_] * size;
    for (int r = 0; r < world_; ++r) sources[r] = window.source[r] + at;
    char* piece = window.staged != nullptr ? window.staged : data + window.begin;
    fold_ranks(device_.pool(), mine.dtype, mine.op, sources, world_, piece + at,
               slices.cut[rank_ + 1] - slices.cut[rank_]);
    LLMOPS_TRY(meet(mine));
    for (int r = 0; r < world_; ++r)
      copy_bytes(device_.pool(), data + window.begin + slices.cut[r] * size, window.source[r] + slices.cut[r] * size,
                 (slices.cut[r + 1] - slices.cut[r]) * size);
    return Status();
  });
}

Status LocalCommunicator::run_all_gather(const Notice& mine, const char* in, char* out) {
  const int64_t size = elem_bytes(mine.dtype);
  int64_t at[kRanksMax], total = 0;
  for (int r = 0; r < world_; ++r) {
    at[r] = total * size;
    total += notice(r, mine.number).elems;
  }
  if (total != mine.part)
    return fail([&] { return fmt::format("all_gather #{}", mine.number); },
                fmt::format("found {} elements in all, expected the {} of my output", total, mine.part));
  return for_windows(mine, in, [&](const Window& window) -> Status {
    for (int r = 0; r < world_; ++r)
      copy_bytes(device_.pool(), out + at[r] + window.begin, window.source[r], window.bytes[r]);
    return Status();
  });
}

Status LocalCommunicator::run_reduce_scatter(const Notice& mine, const char* in, char* out) {
  const int64_t size = elem_bytes(mine.dtype);
  int64_t begin = 0, total = 0;  // bytes of my slice; elements
  bool same = true;
  for (int r = 0; r < world_; ++r) {
    if (r == rank_) begin = total * size;
    total += notice(r, mine.number).part;
    same = same && notice(r, mine.number).elems == mine.elems;
  }
  if (!same || total != mine.elems)
    return fail([&] { return fmt::format("reduce_scatter #{}", mine.number); },
                fmt::format("found slices of {} elements in all, expected my input's {} on every rank", total,
                            mine.elems));
  const int64_t end = begin + mine.part * size;
  return for_windows(mine, in, [&](const Window& window) -> Status {
    const int64_t from = std::max(begin, window.begin);
    const int64_t to = std::min(end, window.begin + window.bytes[rank_]);
    if (from >= to) return Status();
    const void* sources[kRanksMax];
    for (int r = 0; r < world_; ++r) sources[r] = window.source[r] + (from - window.begin);
    fold_ranks(device_.pool(), mine.dtype, mine.op, sources, world_, out + (from - begin), (to - from) / size);
    return Status();
  });
}

Status LocalCommunicator::run_broadcast(const Notice& mine, char* data) {
  for (int r = 0; r < world_; ++r)
    if (notice(r, mine.number).elems != mine.elems)
      return fail([&] { return fmt::format("broadcast #{}", mine.number); },
                  fmt::format("{} gave {} elements, I gave {}", name_of(r), notice(r, mine.number).elems, mine.elems));
  return for_windows(mine, data, [&](const Window& window) -> Status {
    if (rank_ != mine.root)
      copy_bytes(device_.pool(), data + window.begin, window.source[mine.root], window.bytes[mine.root]);
    return Status();
  });
}

Status LocalCommunicator::run_all_to_all(const Notice& mine, const char* in, char* out) {
  const int64_t size = elem_bytes(mine.dtype);
  int64_t part_begin[kRanksMax], part_end[kRanksMax];  // my part within rank r's input, bytes
  int64_t at[kRanksMax], total = 0;                    // its place in my output, bytes; elements
  for (int r = 0; r < world_; ++r) {
    const Notice& theirs = notice(r, mine.number);
    part_begin[r] = 0;
    for (int to = 0; to < rank_; ++to) part_begin[r] += theirs.send_elems[to] * size;
    part_end[r] = part_begin[r] + theirs.send_elems[rank_] * size;
    at[r] = total * size;
    total += theirs.send_elems[rank_];
  }
  // A rank whose output does not fit leaves; its peers learn of it at their next meeting.
  if (total != mine.part)
    return fail([&] { return fmt::format("all_to_all #{}", mine.number); },
                fmt::format("peers send {} elements, expected the {} of my output", total, mine.part));
  return for_windows(mine, in, [&](const Window& window) -> Status {
    for (int r = 0; r < world_; ++r) {
      const int64_t from = std::max(part_begin[r], window.begin);
      const int64_t to = std::min(part_end[r], window.begin + window.bytes[r]);
      if (from < to)
        copy_bytes(device_.pool(), out + at[r] + (from - part_begin[r]), window.source[r] + (from - window.begin),
                   to - from);
    }
    return Status();
  });
}

}  // namespace llmops
