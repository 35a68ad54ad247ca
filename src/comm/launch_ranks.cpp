#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "base/run.h"
#include "comm/launch.h"
#include "comm/launch_env.h"
#include "comm/local.h"

namespace llmops {
namespace {

constexpr double kRepeat_s = 0.2;  // timeout(1) signals a process and then its group: that is one wish, not two
constexpr timespec kPoll = {0, 100'000'000};

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& s : strings) result.push_back(s.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> environment(const RunOptions& options, const std::string& member) {
  std::vector<std::string> env;
  for (char** e = environ; *e != nullptr; ++e)
    if (strncmp(*e, kMemberVariable, strlen(kMemberVariable)) != 0) env.push_back(*e);
  env.insert(env.end(), options.env.begin(), options.env.end());
  env.push_back(fmt::format("{}={}", kMemberVariable, member));
  return env;
}

// In the child, between fork and exec: only async-signal-safe calls.
[[noreturn]] void become_rank(bool lead, int memory_fd, int null_fd, pid_t parent, const sigset_t& mask, char** argv,
                              char** env) {
  setpgid(0, 0);
  signal(SIGTTOU, SIG_IGN);  // in the background of its terminal, and still the one that writes to it (stty tostop)
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(exit_code(Code::peer));  // it died before the line above
  if (!lead || isatty(STDIN_FILENO)) dup2(null_fd, STDIN_FILENO);
  if (!lead) dup2(null_fd, STDOUT_FILENO);
  fcntl(memory_fd, F_SETFD, 0);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  execve("/proc/self/exe", argv, env);
  constexpr char kMessage[] = "llmops: /proc/self/exe: cannot be executed, so --ranks cannot start ranks\n";
  if (write(STDERR_FILENO, kMessage, sizeof kMessage - 1) < 0) _exit(exit_code(Code::io));
  _exit(exit_code(Code::io));
}

// The signals that the parent takes from a queue while ranks run; restored at the end.
class SignalQueue {
 public:
  SignalQueue() {
    sigemptyset(&set_);
    for (int s : {SIGCHLD, SIGINT, SIGTERM, SIGTSTP}) sigaddset(&set_, s);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~SignalQueue() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  const sigset_t& before() const { return before_; }
  int next() const { return sigtimedwait(&set_, nullptr, &kPoll); }  // -1: none for a while

 private:
  sigset_t set_, before_;
};

class RankGroup {
 public:
  RankGroup(std::shared_ptr<Segment> segment, const RunOptions& options)
      : segment_(std::move(segment)), options_(options), children_(segment_->world()) {}
  ~RankGroup() {
    kill_all(SIGKILL);
    for (Child& child : children_)
      if (child.running) waitpid(child.pid, &child.status, 0);
  }

  Status start(const std::vector<std::string>& args) {
    const int low_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    const int null_fd = low_fd < 0 ? -1 : fcntl(low_fd, F_DUPFD_CLOEXEC, 3);  // above what become_rank() replaces
    if (low_fd >= 0) close(low_fd);
    if (null_fd < 0) return io_error(fmt::format("/dev/null: cannot be opened: {}", strerror(errno)));
    Status status;
    for (int rank = 0; rank < segment_->world() && status.ok(); ++rank) status = start(rank, args, null_fd);
    close(null_fd);
    return status;
  }

  // Until all ranks have ended.
  int watch() {
    while (reap()) {
      const int signal = signals_.next();
      if (signal == SIGTSTP) suspend();
      if (signal == SIGINT || signal == SIGTERM) forward(signal);
      if (failed_at_s_ > 0 && monotonic_s() - failed_at_s_ > options_.grace_s) give_up();
    }
    std::vector<int> statuses;
    for (const Child& child : children_) statuses.push_back(child.status);
    return group_exit_code(statuses, forwarded_);
  }

 private:
  struct Child {
    pid_t pid = 0;
    bool running = false;
    int status = 0;
  };

  Status start(int rank, std::vector<std::string> args, int null_fd) {
    const std::string member = fmt::format("{}:{}:{}:{}", rank, segment_->world(), segment_->fd(), getpid());
    std::vector<std::string> env = environment(options_, member);
    const std::vector<char*> argv = pointers(args), envp = pointers(env);
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid == 0)
      become_rank(rank == 0, segment_->fd(), null_fd, parent, signals_.before(), const_cast<char**>(argv.data()),
                  const_cast<char**>(envp.data()));
    if (pid < 0) return io_error(fmt::format("rank {}: cannot be started: {}", rank, strerror(errno)));
    children_[rank] = {pid, true, 0};
    return Status();
  }

  // Collects the ranks that have ended; false when none is left.
  bool reap() {
    bool any = false;
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      Child& child = children_[rank];
      if (!child.running) continue;
      if (waitpid(child.pid, &child.status, WNOHANG) == child.pid) {
        child.running = false;
        note_end(fmt::format("rank {} (pid {})", rank, child.pid), child.status);
      }
      any = any || child.running;
    }
    return any;
  }

  void note_end(const std::string& who, int status) {
    std::string what;
    if (WIFSIGNALED(status)) {
      what = fmt::format("{} was killed by signal {} ({})", who, WTERMSIG(status), strsignal(WTERMSIG(status)));
      if (WTERMSIG(status) != forwarded_ && !gave_up_) warn(what);
    } else if (const int code = WEXITSTATUS(status); code != 0 && code != 1 && code != exit_code(Code::interrupted)) {
      what = fmt::format("{} ended with code {}", who, code);
    }
    if (what.empty()) return;
    segment_->abort(what);
    if (failed_at_s_ == 0) failed_at_s_ = monotonic_s();
  }

  void forward(int signal) {
    const double now_s = monotonic_s();
    if (signal == forwarded_ && now_s - forwarded_at_s_ < kRepeat_s) return;
    forwarded_ = signal;
    forwarded_at_s_ = now_s;
    kill_all(signal);
  }

  // Ctrl-Z: the ranks are in groups of their own, so the terminal stopped only us.
  void suspend() {
    kill_all(SIGSTOP);
    raise(SIGSTOP);
    kill_all(SIGCONT);
  }

  void give_up() {
    for (size_t rank = 0; rank < children_.size(); ++rank)
      if (children_[rank].running && !gave_up_)
        warn(fmt::format("rank {} (pid {}) did not end within {} s after a peer failed: killing it", rank,
                         children_[rank].pid, options_.grace_s));
    gave_up_ = true;
    kill_all(SIGKILL);
  }

  void kill_all(int signal) {
    for (const Child& child : children_)
      if (child.running) kill(child.pid, signal);
  }

  SignalQueue signals_;
  std::shared_ptr<Segment> segment_;
  const RunOptions& options_;
  std::vector<Child> children_;
  int forwarded_ = 0;
  double forwarded_at_s_ = 0, failed_at_s_ = 0;
  bool gave_up_ = false;
};

}  // namespace

Result<int> run_ranks(int ranks, const std::vector<std::string>& args, const RunOptions& options) {
  if (const int signal = cancel_signal(); signal != 0) return 128 + signal;
  LLMOPS_ASSIGN(std::shared_ptr<Segment> segment, create_group(ranks));
  RankGroup group(std::move(segment), options);
  LLMOPS_TRY(group.start(args));
  return group.watch();
}

int group_exit_code(const std::vector<int>& wait_statuses, int forwarded_signal) {
  bool ended_with[256] = {};
  bool killed = false, killed_by_us = false;
  for (int status : wait_statuses) {
    if (WIFEXITED(status)) ended_with[WEXITSTATUS(status)] = true;
    else if (forwarded_signal != 0 && WTERMSIG(status) == forwarded_signal) killed_by_us = true;
    else killed = true;
  }
  if (killed_by_us) return 128 + forwarded_signal;
  if (killed) return exit_code(Code::peer);
  for (int code : {4, 3, 2, 5})
    if (ended_with[code]) return code;
  for (int code = 0; code < 256; ++code)
    if (ended_with[code] && code != 0 && code != 1 && code != 75) return exit_code(Code::peer);
  return ended_with[1] ? 1 : ended_with[75] ? 75 : 0;
}

}  // namespace llmops
