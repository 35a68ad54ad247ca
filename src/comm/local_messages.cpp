// send and recv of the local transport: a bounded byte stream per pair of ranks.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "comm/local.h"

namespace llmops {
namespace {

struct MessageHead {
  int64_t number;
  int64_t elems;
  DType dtype;
};

}  // namespace

Status LocalCommunicator::write(const Name& name, int to, const void* data, int64_t bytes) {
  Channel& pipe = channel(rank_, to);
  const auto full = [&pipe] { return pipe.written.load() - pipe.taken.load() == Channel::kBytes; };
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    LLMOPS_TRY(await(name, "receive", [&] { return !full(); }, [&](int r) { return r == to && full(); }));
    const uint64_t written = pipe.written.load();
    const uint64_t at = written % Channel::kBytes;
    const uint64_t room = std::min(Channel::kBytes - (written - pipe.taken.load()), Channel::kBytes - at);
    const uint64_t piece = std::min(room, static_cast<uint64_t>(bytes));
    std::memcpy(pipe.data + at, from, piece);
    pipe.written.store(written + piece);
    segment_->ring();
    from += piece;
    bytes -= static_cast<int64_t>(piece);
  }
  return Status();
}

Status LocalCommunicator::read(const Name& name, int from, void* data, int64_t bytes) {
  Channel& pipe = channel(from, rank_);
  const auto empty = [&pipe] { return pipe.written.load() == pipe.taken.load(); };
  char* to = static_cast<char*>(data);
  while (bytes > 0) {
    LLMOPS_TRY(await(name, "send", [&] { return !empty(); }, [&](int r) { return r == from && empty(); }));
    const uint64_t taken = pipe.taken.load();
    const uint64_t at = taken % Channel::kBytes;
    const uint64_t there = std::min(pipe.written.load() - taken, Channel::kBytes - at);
    const uint64_t piece = std::min(there, static_cast<uint64_t>(bytes));
    std::memcpy(to, pipe.data + at, piece);
    pipe.taken.store(taken + piece);
    segment_->ring();
    to += piece;
    bytes -= static_cast<int64_t>(piece);
  }
  return Status();
}

Status LocalCommunicator::send(Stream& stream, ConstTensorView data, int to) {
  LLMOPS_TRY(check_view("send", data));
  if (to < 0 || to >= world_ || to == rank_)
    return usage_error(fmt::format("send: found rank {}, expected another of {} ranks", to, world_));
  const MessageHead head = {++sends_[to], data.elems(), data.dtype};
  stream.enqueue(
      [this, head, to, from = data.data] {
        return timed([&] {
          const Name name = [&] { return fmt::format("send #{} to rank {}", head.number, members_[to]); };
          LLMOPS_TRY(write(name, to, &head, sizeof head));
          return write(name, to, from, head.elems * info(head.dtype).block_bytes);
        });
      },
      "comm");
  return Status();
}

Status LocalCommunicator::recv(Stream& stream, TensorView data, int from) {
  LLMOPS_TRY(check_view("recv", data));
  if (from < 0 || from >= world_ || from == rank_)
    return usage_error(fmt::format("recv: found rank {}, expected another of {} ranks", from, world_));
  const MessageHead want = {++recvs_[from], data.elems(), data.dtype};
  stream.enqueue(
      [this, want, from, to = data.data] {
        return timed([&]() -> Status {
          const Name name = [&] { return fmt::format("recv #{} from rank {}", want.number, members_[from]); };
          MessageHead head = {};
          LLMOPS_TRY(read(name, from, &head, sizeof head));
          if (head.number != want.number)
            return fail(name, fmt::format("message #{} came first: order the streams by an Event", head.number));
          if (head.elems != want.elems || head.dtype != want.dtype)
            return fail(name, fmt::format("found {} elements of {}, expected {} of {}", head.elems,
                                          info(head.dtype).name, want.elems, info(want.dtype).name));
          return read(name, from, to, head.elems * info(head.dtype).block_bytes);
        });
      },
      "comm");
  return Status();
}

}  // namespace llmops
