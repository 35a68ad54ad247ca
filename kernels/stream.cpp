// Stream and Event of the CPU: inline by default, late and in a seeded order in deferred test mode.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/run.h"
#include "kernels/runtime_state.h"

namespace llmops {

bool Event::complete() const {
  // A host that polls must see progress: in deferred mode each look runs one item of the device.
  if (state_ && !state_->done) state_->device->run_one();
  return !state_ || state_->done;
}

Stream::Stream(Device& device) : device_(device), state_(std::make_unique<State>()) {
  device.state_->streams.push_back(this);
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

Event Stream::record() {
  Event event;
  event.state_ = std::make_shared<Event::State>();
  event.state_->device = &device_;
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

Status Stream::sync(double deadline_s) {
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
