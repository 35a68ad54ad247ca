// Stream and Event: inline on the host, late and in a seeded order in deferred test mode; on a CUDA device the order and
// the waiting are the device's.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/run.h"
#include "kernels/runtime_state.h"

namespace llmops {

bool Event::complete() const {
  if (!state_ || state_->done) return true;
  if (state_->mark) {
    const Result<bool> reached = state_->mark->reached();
    if (!reached.ok() && state_->failure.ok()) state_->failure = reached.status();
    return state_->done = !reached.ok() || *reached;
  }
  // A host that polls must see progress: in deferred mode each look runs one item of the device.
  state_->device->run_one();
  return state_->done;
}

Stream::Stream(Device& device) : device_(device), state_(std::make_unique<State>()) {
  device.state_->streams.push_back(this);
  if (!device.state_->accelerator) return;
  auto queue = device.state_->accelerator->new_queue();
  if (queue.ok()) state_->accelerated = queue.take();
  else state_->failure = queue.status();
}

Stream::~Stream() {
  (void)sync();  // events recorded here must complete
  std::erase(device_.state_->streams, this);
}

void Stream::run(const std::function<Status()>& work, std::string_view what) {
  if (!state_->failure.ok()) return;
  if (Status status = work(); !status.ok()) state_->failure = status.in(std::string(what));
}

void Stream::enqueue(std::function<Status()> work, const char* what) {
  if (device_.state_->options.deferred_seed == 0) return run(work, what);
  state_->queue.push_back({State::Item::Kind::work, std::move(work), what, {}});
}

void Stream::copy(void* to, const void* from, int64_t bytes) {
  enqueue(
      [=, this]() -> Status {
        if (state_->accelerated) return state_->accelerated->copy(to, from, bytes);
        if (bytes > 0) std::memcpy(to, from, size_t(bytes));
        return {};
      },
      "copy");
}

DeviceQueue* Stream::queue() const { return state_->accelerated.get(); }

void* Stream::native() const { return state_->accelerated ? state_->accelerated->native() : nullptr; }

Event Stream::record() {
  Event event;
  event.state_ = std::make_shared<Event::State>();
  event.state_->device = &device_;
  if (state_->accelerated && state_->failure.ok()) {
    auto mark = state_->accelerated->mark();
    if (mark.ok()) event.state_->mark = mark.take();
    else state_->failure = mark.status();
  }
  if (event.state_->mark) return event;
  if (device_.state_->options.deferred_seed == 0) {
    event.state_->failure = state_->failure;
    event.state_->done = true;
  } else {
    state_->queue.push_back({State::Item::Kind::record, {}, {}, event});
  }
  return event;
}

void Stream::wait(const Event& event) {
  if (!event.state_) return;
  if (event.state_->device == &device_ && state_->accelerated && event.state_->mark) {
    if (state_->failure.ok()) state_->failure = state_->accelerated->wait(*event.state_->mark);
    return;
  }
  if (event.state_->device == &device_ && device_.state_->options.deferred_seed != 0) {
    state_->queue.push_back({State::Item::Kind::wait, {}, {}, event});
    return;
  }
  while (!event.complete()) {
  }
  if (state_->failure.ok()) state_->failure = event.state_->failure;
}

bool Stream::ready() const {
  if (state_->queue.empty()) return false;
  const State::Item& item = state_->queue.front();
  return item.kind != State::Item::Kind::wait || item.event.state_->done;
}

void Stream::run_oldest() {
  const State::Item item = std::move(state_->queue.front());
  state_->queue.pop_front();
  switch (item.kind) {
    case State::Item::Kind::work:
      return run(item.work, item.what);
    case State::Item::Kind::record:
      item.event.state_->failure = state_->failure;
      item.event.state_->done = true;
      return;
    case State::Item::Kind::wait:
      if (state_->failure.ok()) state_->failure = item.event.state_->failure;
  }
}

// CUDA has no wait with a deadline: a mark is polled.
Status Stream::sync_accelerated(double deadline_s) {
  if (!state_->accelerated) return state_->failure;
  Status status;
  if (deadline_s <= 0) {
    status = state_->accelerated->drain();
  } else {
    LLMOPS_ASSIGN(const std::shared_ptr<QueueMark> end, state_->accelerated->mark());
    const double begin_s = monotonic_s();
    for (Result<bool> reached = false; reached.ok() && !*reached;) {
      if (monotonic_s() - begin_s > deadline_s)
        return peer_error(fmt::format("a stream still has work after the deadline of {} s", deadline_s));
      reached = end->reached();
      status = reached.status();
    }
  }
  if (state_->failure.ok()) state_->failure = status;
  return state_->failure;
}

Status Stream::sync(double deadline_s) {
  if (device_.state_->accelerator) return sync_accelerated(deadline_s);
  const double begin_s = monotonic_s();
  while (!state_->queue.empty()) {
    if (deadline_s > 0 && monotonic_s() - begin_s > deadline_s)
      return peer_error(fmt::format("a stream still has {} items of work after the deadline of {} s",
                                    state_->queue.size(), deadline_s));
    device_.run_one();  // an event is recorded before it can be waited for, so some item can always run
  }
  return state_->failure;
}

Result<void*> Stream::workspace(int64_t bytes) {
  Buffer& buffer = state_->workspace;
  if (bytes > buffer.bytes()) {
    buffer = Buffer();  // the old one goes first: the peak is the larger, not the sum
    LLMOPS_ASSIGN(buffer, device_.alloc(bytes, Category::workspace));
  }
  // Nobody may count on what an earlier op left: tests see NaN in f32 and bf16, -1 in integers.
  if (device_.state_->options.deferred_seed != 0 && bytes > 0) std::memset(buffer.data(), 0xff, size_t(bytes));
  return buffer.data();
}

}  // namespace llmops
