// Runs a program as a person would and gives back exactly what it said: exit code, stdout, stderr. For cli tests;
// header only, so that any test can include it.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace llmops::test {

// A folder that goes away with the test.
class ScratchDir {
 public:
  ScratchDir() {
    std::string name = (std::filesystem::temp_directory_path() / "llmops-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~ScratchDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(*this / name, std::ios::binary) << content;
  }
  std::string read(const std::string& name) const {
    std::ifstream in(*this / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  std::string path_;
};

enum class Stdout { capture, full_disk, closed_pipe, closed };

struct RunOptions {
  std::string stdin_text;
  std::vector<std::pair<std::string, std::string>> env;  // before PATH, HOME and the sanitizers' options
  std::string dir;                                       // working folder; empty: ours
  Stdout to = Stdout::capture;
  double timeout_s = 120;     // then SIGKILL
  double signal_after_s = 0;  // > 0: send `signal` then
  std::string signal_at;      // a path in `dir`: send it when this is there
  int signal = SIGTERM;
};

struct RunResult {
  int code = -1;         // exit code; 128 + n when signal n ended it
  std::string out, err;  // of a terminal: all in `out`
  double wall_s = 0;
};

namespace detail {

inline std::vector<std::string> environment(const RunOptions& options) {
  std::vector<std::string> env;
  for (const auto& [name, value] : options.env) env.push_back(name + "=" + value);  // the first of a name counts
  for (const char* name :
       {"PATH", "HOME", "LD_LIBRARY_PATH", "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "LSAN_OPTIONS"})
    if (const char* value = getenv(name)) env.push_back(std::string(name) + "=" + value);
  return env;
}

inline std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  for (std::string& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline int code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

// Feeds and drains the child's pipes until both outputs end or the time is over. Any descriptor may be -1.
inline void talk(pid_t child, int in, std::string_view text, int out, std::string* out_text, int err,
                 std::string* err_text, const RunOptions& options, double start_s) {
  bool is_signalled = options.signal_after_s <= 0 && options.signal_at.empty();
  const std::string signal_at = options.dir + "/" + options.signal_at;
  while (out >= 0 || err >= 0) {
    if (in >= 0 && text.empty()) close(std::exchange(in, -1));
    pollfd fds[3] = {{in, POLLOUT, 0}, {out, POLLIN, 0}, {err, POLLIN, 0}};
    poll(fds, 3, 20);
    const double elapsed_s = now_s() - start_s;
    if (!is_signalled && (options.signal_at.empty() ? elapsed_s > options.signal_after_s
                                                    : access(signal_at.c_str(), F_OK) == 0))
      is_signalled = true, kill(child, options.signal);
    if (elapsed_s > options.timeout_s) kill(child, SIGKILL);
    if (in >= 0 && fds[0].revents != 0) {
      const ssize_t written = write(in, text.data(), text.size());
      if (written > 0) text.remove_prefix(static_cast<size_t>(written));
      else if (errno != EAGAIN) close(std::exchange(in, -1));
    }
    auto drain = [](int& fd, short events, std::string* into) {
      if (fd < 0 || events == 0) return;
      char buffer[65536];
      const ssize_t bytes = read(fd, buffer, sizeof buffer);
      if (bytes > 0) into->append(buffer, static_cast<size_t>(bytes));
      else if (bytes == 0 || errno != EINTR) close(std::exchange(fd, -1));  // a terminal's end is EIO
    };
    drain(out, fds[1].revents, out_text);
    drain(err, fds[2].revents, err_text);
  }
  if (in >= 0) close(in);
}

}  // namespace detail

// `words[0]` is the program.
inline RunResult run_program(std::vector<std::string> words, const RunOptions& options = {}) {
  signal(SIGPIPE, SIG_IGN);  // a child that does not read its stdin must not end the test
  int in[2], out[2] = {-1, -1}, err[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
  fcntl(in[1], F_SETFL, O_NONBLOCK);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (!options.dir.empty()) posix_spawn_file_actions_addchdir_np(&actions, options.dir.c_str());
  posix_spawn_file_actions_adddup2(&actions, in[0], 0);
  posix_spawn_file_actions_adddup2(&actions, err[1], 2);
  if (options.to == Stdout::full_disk) posix_spawn_file_actions_addopen(&actions, 1, "/dev/full", O_WRONLY, 0);
  else if (options.to == Stdout::closed) posix_spawn_file_actions_addclose(&actions, 1);
  else if (pipe2(out, O_CLOEXEC) == 0) posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  if (options.to == Stdout::closed_pipe) close(std::exchange(out[0], -1));

  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t defaults;
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGPIPE);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);

  std::vector<std::string> env = detail::environment(options);
  const double start_s = detail::now_s();
  pid_t child = -1;
  const int failed = posix_spawnp(&child, words[0].c_str(), &actions, &attributes, detail::pointers(words).data(),
                                  detail::pointers(env).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(in[0]);
  close(err[1]);
  if (out[1] >= 0) close(out[1]);
  if (failed != 0) throw std::runtime_error("cannot start " + words[0]);

  RunResult result;
  detail::talk(child, in[1], options.stdin_text, out[0], &result.out, err[0], &result.err, options, start_s);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  result.code = detail::code_of(status);
  result.wall_s = detail::now_s() - start_s;
  return result;
}

// On a terminal of 100 columns: stdin, stdout and stderr are one, and lines end in "\r\n". With `stdout_to_pipe` only
// stderr is the terminal: `err` is what it showed.
inline RunResult run_in_terminal(std::vector<std::string> words, const RunOptions& options = {},
                                 bool stdout_to_pipe = false) {
  int out[2] = {-1, -1};
  if (stdout_to_pipe && pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
  std::vector<std::string> env = detail::environment(options);
  std::vector<char*> argv = detail::pointers(words), envp = detail::pointers(env);
  winsize size = {40, 100, 0, 0};
  int terminal = -1;
  const double start_s = detail::now_s();
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child < 0) throw std::runtime_error("forkpty failed");
  if (child == 0) {
    if (!options.dir.empty() && chdir(options.dir.c_str()) != 0) _exit(126);
    if (stdout_to_pipe) dup2(out[1], 1);
    execvpe(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  if (out[1] >= 0) close(out[1]);
  RunResult result;
  std::string* shown = stdout_to_pipe ? &result.err : &result.out;
  detail::talk(child, -1, {}, out[0], &result.out, terminal, shown, options, start_s);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  result.code = detail::code_of(status);
  result.wall_s = detail::now_s() - start_s;
  return result;
}

}  // namespace llmops::test
