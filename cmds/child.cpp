#include "cmds/child.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include "base/io.h"

extern char** environ;

namespace llmops {

Result<Child> Child::start(const std::vector<std::string>& args, const std::string& stderr_path) {
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) return errno_status(args[0], "make a pipe for", errno);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], 1);
  posix_spawn_file_actions_addopen(&actions, 2, stderr_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  std::vector<char*> argv;
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> env;  // without settings of ours: the arguments say all
  for (char** variable = environ; *variable != nullptr; ++variable)
    if (!std::string_view(*variable).starts_with("LLMOPS_")) env.push_back(*variable);
  env.push_back(nullptr);
  Child child;
  const int error = posix_spawnp(&child.pid_, argv[0], &actions, nullptr, argv.data(), env.data());
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_fds[1]);
  child.fd_ = pipe_fds[0];
  if (error != 0) {
    child.pid_ = -1;
    return errno_status(args[0], "start", error);
  }
  return child;
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), fd_(std::exchange(other.fd_, -1)), buffer_(std::move(other.buffer_)) {}

Child::~Child() {
  if (pid_ > 0) {
    kill_now();
    wait();
  }
  if (fd_ >= 0) close(fd_);
}

bool Child::next_line(std::string* line) {
  while (true) {
    if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
      line->assign(buffer_, 0, end);
      buffer_.erase(0, end + 1);
      return true;
    }
    char piece[4096];
    const ssize_t n = read(fd_, piece, sizeof piece);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    buffer_.append(piece, static_cast<size_t>(n));
  }
}

void Child::kill_now() {
  if (pid_ > 0) kill(pid_, SIGKILL);
}

int Child::wait() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace llmops
