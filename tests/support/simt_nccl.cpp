// NCCL over the SIMT shim, for tests only: a libnccl.so.2 with the calls of src/comm/nccl_api.h. Data moves through the
// ranks' shared memory (the local transport of src/comm); a call waits for its peers beside the emulated device, as a
// kernel of NCCL does, and like one it never ends by itself when a peer does not come.
//
// Without blocking, every third call and each finalisation says that it is in progress, and is through when it has been
// asked about a few times: not before is the call in its stream.
//
// LLMOPS_SIMT_NCCL=WHAT@RANK:CALL in the environment is how that call of that rank (counted from 1; 0: joining) goes wrong:
//   error: it ends in an asynchronous error;        hang: it never begins, or joining is never through;
//   late: it returns after some seconds;            blind: it is in progress, and asking about it fails.
// LLMOPS_SIMT_NCCL_VERSION is the library's version, if not 22800.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "comm/local.h"
#include "comm/nccl_api.h"
#include "support/simt.h"

namespace llmops::nccl {
namespace {

// One call of NCCL, or one within a group.
struct Op {
  enum class Kind : uint8_t { all_reduce, reduce, reduce_scatter, all_gather, broadcast, send, recv } kind;
  const void* in;
  void* out;
  int64_t in_elems, out_elems;
  DType dtype;
  ReduceOp reduction = ReduceOp::sum;
  int peer = 0;  // root, or the other end
  std::vector<char> staged_in = {}, staged_out = {};

  // Only its root is given the result of a reduction.
  bool gives(int rank) const { return kind != Kind::send && (kind != Kind::reduce || peer == rank); }
  int64_t in_bytes() const { return in_elems * info(dtype).block_bytes; }
  int64_t out_bytes() const { return out_elems * info(dtype).block_bytes; }
};

enum class JobState : uint8_t { waiting, through, lost };
struct Job {
  std::vector<Op> ops;
  std::atomic<JobState> state{JobState::waiting};
};

// What goes wrong at this call of this rank; "" for nothing.
std::string injected(int at_rank, int64_t at_call) {
  char what[8] = {};
  int rank = 0;
  long call = 0;
  const char* const text = std::getenv("LLMOPS_SIMT_NCCL");
  if (text == nullptr || std::sscanf(text, "%7[a-z]@%d:%ld", what, &rank, &call) != 3) return "";
  return rank == at_rank && call == at_call ? what : "";
}

constexpr int64_t kInProgressEvery = 3;  // calls
constexpr int kAsked = 4;                // times until such a call is through

DType dtype_of(Type type) {
  switch (type) {
    case Type::f32: return DType::f32;
    case Type::f64: return DType::f64;
    case Type::i64: return DType::i64;
    case Type::u8: return DType::u8;
  }
  std::abort();
}
ReduceOp reduction_of(Reduction op) {
  return op == Reduction::sum ? ReduceOp::sum : op == Reduction::max ? ReduceOp::max : ReduceOp::min;
}

ConstTensorView view_in(const Op& op) {
  return dense_view(static_cast<const void*>(op.staged_in.data()), op.dtype, {op.in_elems});
}
TensorView view_out(Op& op) {
  return dense_view(static_cast<void*>(op.staged_out.data()), op.dtype, {op.out_elems});
}

}  // namespace

// The ranks meet, and move what was staged, on a thread of the communicator: NCCL has such threads too.
struct CommHandle {
  int rank = 0, ranks = 1;
  UniqueId id;
  std::unique_ptr<Device> host;
  std::unique_ptr<Communicator> local;
  std::shared_ptr<Segment> segment;
  std::atomic<Code> state{Code::in_progress};
  std::atomic<bool> aborted{false};
  int64_t calls = 0;
  // Of a call that is in progress: how often it is still asked about, and what then comes.
  int asked = 0;
  std::function<Code()> then;
  bool blind = false;
  enum class Life : uint8_t { lives, ends, ended } life = Life::lives;
  std::string last_error;
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::shared_ptr<Job>> jobs;
  bool ends = false;
  std::thread thread;

  // Rank 0 makes the memory file, and says in a file that the id names where it is.
  Status meet() {
    LLMOPS_ASSIGN(host, Device::open_cpu({.threads = 1}));
    if (rank == 0) {
      LLMOPS_ASSIGN(segment, create_group(ranks));
      const std::string part = std::string(id.bytes) + ".part";
      std::ofstream(part) << "/proc/" << getpid() << "/fd/" << segment->fd();
      std::rename(part.c_str(), id.bytes);
    } else {
      std::string place;
      while (place.empty() && !aborted) {
        std::getline(std::ifstream(id.bytes), place);
        if (place.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      const int fd = open(place.c_str(), O_RDWR | O_CLOEXEC);
      if (fd < 0) return peer_error("no such group");
      LLMOPS_ASSIGN(segment, Segment::attach(fd));
    }
    if (aborted) segment->abort("aborted");
    LLMOPS_ASSIGN(local, LocalCommunicator::open(segment, rank, *host, {.deadline_s = 1e6}));
    if (rank == 0) unlink(id.bytes);
    return {};
  }

  Status move(Op& op) {
    Stream& stream = host->compute();
    switch (op.kind) {
      case Op::Kind::all_reduce:
      case Op::Kind::reduce:
        std::memcpy(op.staged_out.data(), op.staged_in.data(), op.staged_in.size());
        return local->all_reduce(stream, view_out(op), op.reduction);
      case Op::Kind::reduce_scatter: return local->reduce_scatter(stream, view_in(op), view_out(op), op.reduction);
      case Op::Kind::all_gather: return local->all_gather(stream, view_in(op), view_out(op));
      case Op::Kind::broadcast:
        if (rank == op.peer) std::memcpy(op.staged_out.data(), op.staged_in.data(), op.staged_in.size());
        return local->broadcast(stream, view_out(op), op.peer);
      case Op::Kind::send: return local->send(stream, view_in(op), op.peer);
      case Op::Kind::recv: return local->recv(stream, view_out(op), op.peer);
    }
    std::abort();
  }

  // Messages of a group go edge by edge in one order for all ranks, the lower rank of an edge sending first: then ranks
  // that wait for each other never do so in a circle. To oneself: a copy.
  Status run(Job& job) {
    for (Op& op : job.ops)
      if (op.kind == Op::Kind::send && op.peer == rank) {
        const auto recv = std::find_if(job.ops.begin(), job.ops.end(), [&](const Op& o) {
          return o.kind == Op::Kind::recv && o.peer == rank;
        });
        if (recv != job.ops.end()) recv->staged_out = op.staged_in;
      }
    std::vector<Op*> order;
    for (Op& op : job.ops)
      if (op.kind < Op::Kind::send || op.peer != rank) order.push_back(&op);
    const auto place = [this](const Op* op) {
      if (op->kind < Op::Kind::send) return std::tuple(0, 0, 0);
      return std::tuple(std::min(rank, op->peer), std::max(rank, op->peer),
                        static_cast<int>((op->kind == Op::Kind::send) != (rank < op->peer)));
    };
    std::stable_sort(order.begin(), order.end(), [&](const Op* a, const Op* b) { return place(a) < place(b); });
    for (Op* op : order) LLMOPS_TRY(move(*op));
    return host->compute().sync();
  }

  void work() {
    if (injected(rank, 0) == "hang")
      while (!aborted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const Status met = meet();
    state = met.ok() ? Code::success : Code::system_error;
    while (met.ok()) {
      std::shared_ptr<Job> job;
      {
        std::unique_lock lock(mutex);
        wake.wait(lock, [this] { return ends || !jobs.empty(); });
        if (jobs.empty()) return;
        job = jobs.front();
        jobs.pop_front();
      }
      job->state = run(*job).ok() ? JobState::through : JobState::lost;
    }
  }

  void end() {
    {
      const std::lock_guard lock(mutex);
      ends = true;
    }
    wake.notify_one();
    if (thread.joinable()) thread.join();
  }
};

namespace {

thread_local int group_depth = 0;
thread_local std::vector<Op> group_ops;
thread_local Comm group_comm = nullptr;
thread_local cudaStream_t group_stream = nullptr;

Code in_progress(Comm comm, std::function<Code()> then) {
  comm->asked = kAsked;
  comm->then = std::move(then);
  comm->state = Code::in_progress;
  return Code::in_progress;
}

// In the stream's turn: inputs are read, the ranks move them, outputs are written.
Code enqueue(Comm comm, cudaStream_t stream, std::vector<Op> ops) {
  auto job = std::make_shared<Job>();
  job->ops = std::move(ops);
  const int64_t number = ++comm->calls;
  simt::External external;
  external.start = [comm, job, number]() -> std::string {
    for (Op& op : job->ops) {
      if (std::string why = simt::outside_memory(op.in, size_t(op.in_bytes())); !why.empty()) return "NCCL input: " + why;
      const size_t given = op.gives(comm->rank) ? size_t(op.out_bytes()) : 0;
      if (std::string why = simt::outside_memory(op.out, given); !why.empty()) return "NCCL output: " + why;
      op.staged_in.resize(size_t(op.in_bytes()));
      op.staged_out.resize(size_t(op.out_bytes()));
      if (op.in_bytes() > 0) std::memcpy(op.staged_in.data(), op.in, op.staged_in.size());
    }
    const std::string wrong = injected(comm->rank, number);
    if (wrong == "error") comm->last_error = "injected", comm->state = Code::system_error;
    if (wrong == "error" || wrong == "hang") return "";
    const std::lock_guard lock(comm->mutex);
    comm->jobs.push_back(job);
    comm->wake.notify_one();
    return "";
  };
  external.done = [comm, job] { return comm->aborted || job->state == JobState::through; };
  external.finish = [comm, job]() -> std::string {
    const bool through = job->state == JobState::through;
    for (Op& op : job->ops)
      if (through && op.gives(comm->rank) && op.out_bytes() > 0)
        std::memcpy(op.out, op.staged_out.data(), op.staged_out.size());
    return "";
  };
  const auto issue = [stream, external = std::move(external)] {
    return simt::enqueue_external(stream, external) == cudaSuccess ? Code::success : Code::unhandled_cuda_error;
  };
  comm->blind = injected(comm->rank, number) == "blind";
  return number % kInProgressEvery == 0 || comm->blind ? in_progress(comm, issue) : issue();
}

Code call(Comm comm, void* stream, Op op) {
  if (comm->state != Code::success) return Code::invalid_usage;
  if ((op.in_bytes() > 0 && op.in == nullptr && op.kind != Op::Kind::recv) ||
      (op.out_bytes() > 0 && op.out == nullptr && op.kind != Op::Kind::send && op.kind != Op::Kind::reduce))
    return Code::invalid_argument;
  if (op.peer < 0 || op.peer >= comm->ranks) return Code::invalid_argument;
  if (group_depth == 0) return enqueue(comm, static_cast<cudaStream_t>(stream), {op});
  group_ops.push_back(op);
  group_comm = comm;
  group_stream = static_cast<cudaStream_t>(stream);
  return Code::success;
}

using Kind = Op::Kind;

std::atomic<int> open_comms = 0;

}  // namespace


extern "C" {

// For tests: communicators of this process that were neither destroyed nor aborted.
int simt_nccl_open() { return open_comms; }

Code ncclGetVersion(int* version) {
  const char* const text = std::getenv("LLMOPS_SIMT_NCCL_VERSION");
  return *version = text != nullptr ? std::atoi(text) : 22800, Code::success;
}

Code ncclGetUniqueId(UniqueId* id) {
  static std::atomic<int> count = 0;
  // A process that was killed leaves its file behind, and another one gets its number: the time tells them apart.
  const int64_t now = std::chrono::system_clock::now().time_since_epoch().count();
  std::snprintf(id->bytes, sizeof id->bytes, "/tmp/llmops-simt-nccl-%d-%d-%lld", int(getpid()), ++count,
                static_cast<long long>(now));
  return Code::success;
}

Code ncclCommInitRankConfig(Comm* comm, int ranks, UniqueId id, int rank, Config* config) {
  if (config->size != sizeof(Config) || config->magic != Config().magic || config->blocking != 0 || rank >= ranks)
    return Code::invalid_argument;
  ++open_comms;
  *comm = new CommHandle;
  (*comm)->rank = rank;
  (*comm)->ranks = ranks;
  (*comm)->id = id;
  if (injected(rank, 0) == "late") std::this_thread::sleep_for(std::chrono::seconds(4));
  (*comm)->thread = std::thread([made = *comm] { made->work(); });
  return Code::in_progress;
}

Code ncclCommGetAsyncError(Comm comm, Code* error) {
  if (comm->blind) return Code::internal_error;
  if (comm->asked > 0 && --comm->asked == 0) {
    Code now = Code::in_progress;  // an error may have come since
    comm->state.compare_exchange_strong(now, comm->then());
  }
  return *error = comm->state, Code::success;
}
Code ncclCommFinalize(Comm comm) {
  if (comm->state != Code::success) return Code::invalid_usage;
  comm->life = CommHandle::Life::ends;
  return in_progress(comm, [comm] { return comm->life = CommHandle::Life::ended, Code::success; });
}
Code ncclCommDestroy(Comm comm) {
  if (comm->life != CommHandle::Life::ended) {
    std::fputs("simt: ncclCommDestroy before ncclCommFinalize is through\n", stderr);
    std::abort();
  }
  comm->end();
  delete comm;
  --open_comms;
  return Code::success;
}
// Its work is dropped; peers are told nothing. The handle stays: calls on streams look at it.
Code ncclCommAbort(Comm comm) {
  static auto* const kept = new std::vector<Comm>;
  kept->push_back(comm);
  --open_comms;
  comm->aborted = true;
  if (comm->segment != nullptr) comm->segment->abort("aborted");
  comm->end();
  return Code::success;
}

Code ncclGroupStart() { return ++group_depth, Code::success; }
Code ncclGroupEnd() {
  if (group_depth == 0) return Code::invalid_usage;
  if (--group_depth > 0 || group_ops.empty()) return Code::success;
  return enqueue(group_comm, group_stream, std::exchange(group_ops, {}));
}

Code ncclAllReduce(const void* in, void* out, size_t count, Type type, Reduction op, Comm comm, void* stream) {
  return call(comm, stream,
              {Kind::all_reduce, in, out, int64_t(count), int64_t(count), dtype_of(type), reduction_of(op)});
}
Code ncclReduce(const void* in, void* out, size_t count, Type type, Reduction op, int root, Comm comm, void* stream) {
  return call(comm, stream,
              {Kind::reduce, in, out, int64_t(count), int64_t(count), dtype_of(type), reduction_of(op), root});
}
Code ncclReduceScatter(const void* in, void* out, size_t count, Type type, Reduction op, Comm comm, void* stream) {
  return call(comm, stream, {Kind::reduce_scatter, in, out, int64_t(count) * comm->ranks, int64_t(count), dtype_of(type),
                             reduction_of(op)});
}
Code ncclAllGather(const void* in, void* out, size_t count, Type type, Comm comm, void* stream) {
  return call(comm, stream, {Kind::all_gather, in, out, int64_t(count), int64_t(count) * comm->ranks, dtype_of(type)});
}
Code ncclBroadcast(const void* in, void* out, size_t count, Type type, int root, Comm comm, void* stream) {
  return call(comm, stream, {Kind::broadcast, in, out, int64_t(count), int64_t(count), dtype_of(type), ReduceOp::sum, root});
}
Code ncclSend(const void* data, size_t count, Type type, int peer, Comm comm, void* stream) {
  return call(comm, stream, {Kind::send, data, nullptr, int64_t(count), 0, dtype_of(type), ReduceOp::sum, peer});
}
Code ncclRecv(void* data, size_t count, Type type, int peer, Comm comm, void* stream) {
  return call(comm, stream, {Kind::recv, nullptr, data, 0, int64_t(count), dtype_of(type), ReduceOp::sum, peer});
}

const char* ncclGetErrorString(Code code) { return code == Code::system_error ? "unhandled system error" : "error"; }
const char* ncclGetLastError(Comm comm) { return comm->last_error.c_str(); }

}  // extern "C"

}  // namespace llmops::nccl
