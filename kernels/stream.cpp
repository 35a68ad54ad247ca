// Stream and Event: inline on the host, late and in a seeded order in deferred test mode; on a CUDA device the order and
// the waiting are the device's.
#include <fmt/format.h>
#include <time.h>

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
  if (state_->accelerated) {
    state_->first = state_->first != nullptr ? state_->first : what;
    state_->last = what;
    ++state_->calls;
  }
  if (device_.state_->options.deferred_seed == 0) {
    run(work, what);
    if (state_->accelerated && state_->failure.ok() && device_.state_->lost.ok())
      if (Status status = stay_near(); !status.ok()) (void)fail_wait(status);
    return;
  }
  state_->queue.push_back({State::Item::Kind::work, std::move(work), what, {}});
}

void Stream::copy(void* to, const void* from, int64_t bytes) {
  enqueue(
      [=, this]() -> Status {
        if (bytes <= 0) return {};
        if (state_->accelerated) return state_->accelerated->copy(to, from, bytes);
        std::memcpy(to, from, size_t(bytes));
        return {};
      },
      "copy");
}

void Stream::copy_rows(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t row_bytes,
                       int64_t rows) {
  enqueue(
      [=, this]() -> Status {
        if (row_bytes <= 0 || rows <= 0) return {};
        if (state_->accelerated) return state_->accelerated->copy_rows(to, to_pitch, from, from_pitch, row_bytes, rows);
        for (int64_t row = 0; row < rows; ++row)
          std::memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch,
                      size_t(row_bytes));
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

// CUDA has no wait with a deadline, and none that hears of a peer's failure: marks are polled. False after deadline_s.
Result<bool> Stream::wait_watching(QueueMark& end, double deadline_s) {
  constexpr double kLookEvery_s = 1e-3;
  constexpr timespec kNap = {0, 20'000};
  const Device::State& device = *device_.state_;
  const double spin_s = device.watches.empty() ? 1e-3 : 20e-6;  // the other ranks may need this core
  const double begin_s = monotonic_s();
  double look_s = begin_s + kLookEvery_s, moved_s = begin_s;
  while (true) {
    LLMOPS_ASSIGN(const bool reached, end.reached());
    if (reached) return true;
    const double now_s = monotonic_s();
    if (deadline_s > 0 && now_s - begin_s > deadline_s) return false;
    if (now_s > look_s) {
      for (const auto& [number, look] : device.watches)
        if (Status status = look(); !status.ok()) {
          if (state_->failure.ok()) state_->failure = status;
          return status;
        }
      for (auto& marks = state_->marks; !marks.empty(); marks.pop_front(), moved_s = now_s) {
        LLMOPS_ASSIGN(const bool passed, marks.front()->reached());
        if (!passed) break;
      }
      if (device.deadline_s > 0 && now_s - moved_s > device.deadline_s)
        return peer_error(fmt::format("the device came no further for {} s", device.deadline_s));
      look_s = now_s + kLookEvery_s;
    }
    if (now_s - begin_s > spin_s) nanosleep(&kNap, nullptr);
  }
}

// A device that hangs would hold the host in a launch, once CUDA's queue of about 1000 is full, and there nobody looks at
// deadlines and watches. So the host is never that far ahead of a device that is watched.
Status Stream::stay_near() {
  constexpr int64_t kCallsPerMark = 64;
  constexpr size_t kMarksAhead = 4;
  if (state_->capturing || ++state_->unmarked < kCallsPerMark) return {};
  state_->unmarked = 0;
  if (device_.state_->deadline_s <= 0 && device_.state_->watches.empty()) return {};
  LLMOPS_ASSIGN(std::shared_ptr<QueueMark> mark, state_->accelerated->mark());
  state_->marks.push_back(std::move(mark));
  if (state_->marks.size() <= kMarksAhead) return {};
  const std::shared_ptr<QueueMark> oldest = state_->marks.front();
  LLMOPS_TRY(wait_watching(*oldest, 0).status());
  if (!state_->marks.empty() && state_->marks.front() == oldest) state_->marks.pop_front();
  return {};
}

// What failed before the wait counts first. A failure that only the wait shows is of some launch since the last one.
Status Stream::fail_wait(Status status) {
  if (state_->failure.ok() && !status.ok()) {
    const bool known = state_->first == nullptr || status.code() != Code::peer;
    state_->failure = known ? status
                            : Status(status.code(), fmt::format("{} (one of {} calls from {} to {}; CUDA_LAUNCH_BLOCKING=1 "
                                                                "in the environment has it named, with its operands)",
                                                                status.message(), state_->calls, state_->first,
                                                                state_->last));
  }
  if (status.code() == Code::peer) {
    device_.state_->lost = state_->failure;
    device_.state_->accelerator->abandon();
  }
  return state_->failure;
}

Status Stream::sync_accelerated(double deadline_s) {
  if (!state_->accelerated) return state_->failure;
  const Device::State& device = *device_.state_;
  if (!device.lost.ok()) return state_->failure.ok() ? state_->failure = device.lost : state_->failure;
  Status status;
  if (deadline_s > 0 || device.deadline_s > 0 || !device.watches.empty()) {
    const Result<std::shared_ptr<QueueMark>> end = state_->accelerated->mark();
    const Result<bool> ended = end.ok() ? wait_watching(**end, deadline_s) : Result<bool>(end.status());
    if (ended.ok() && !*ended)
      return peer_error(fmt::format("a stream still has work after the deadline of {} s", deadline_s));
    status = ended.status();
  } else {
    status = state_->accelerated->drain();
  }
  (void)fail_wait(status);
  state_->first = state_->last = nullptr;
  state_->calls = 0;
  state_->marks.clear();
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

Graph::Graph() = default;
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(Graph&&) noexcept = default;
Graph::~Graph() = default;

int64_t Stream::workspace_moves() const { return state_->workspace_moves; }
bool Stream::captures() const { return state_->accelerated != nullptr; }

// The recording is ended whatever the work says: a stream that records runs nothing.
Result<Graph> Stream::capture(const std::function<Status()>& work) {
  if (!state_->accelerated) return usage_error("a recording: found a stream of the CPU, expected one of a CUDA device");
  LLMOPS_TRY(state_->failure);
  LLMOPS_TRY(state_->accelerated->begin_capture());
  state_->capturing = true;
  const Status status = work();
  state_->capturing = false;
  Graph graph;
  auto made = state_->accelerated->end_capture();
  LLMOPS_TRY(status);
  LLMOPS_TRY(state_->failure);
  LLMOPS_ASSIGN(graph.made_, std::move(made));
  return graph;
}

void Stream::replay(const Graph& graph) {
  enqueue([this, made = graph.made_.get()] { return state_->accelerated->launch(*made); }, "replay");
}

Result<void*> Stream::workspace(int64_t bytes) {
  Buffer& buffer = state_->workspace;
  if (bytes > buffer.bytes()) {
    if (state_->capturing)
      return usage_error(fmt::format("a recording needs {} bytes of workspace, found {}: run the work once before", bytes,
                                     buffer.bytes()));
    ++state_->workspace_moves;
    buffer = Buffer();  // the old one goes first: the peak is the larger, not the sum
    LLMOPS_ASSIGN(buffer, device_.alloc(bytes, Category::workspace));
  }
  // Nobody may count on what an earlier op left: tests see NaN in f32 and bf16, -1 in integers.
  if (device_.state_->options.deferred_seed != 0 && bytes > 0) std::memset(buffer.data(), 0xff, size_t(bytes));
  return buffer.data();
}

}  // namespace llmops
