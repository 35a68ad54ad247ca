// Ranks as processes: this executable runs itself again; the skipped case "a rank" is what its ranks do.
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/run.h"
#include "comm/launch.h"
#include "unit/comm/ranks.h"

using namespace llmops;
using namespace llmops::test;

namespace {

constexpr const char* kRoleVariable = "TEST_ROLE";
constexpr const char* kFolderVariable = "TEST_FOLDER";

// A folder for the files by which ranks report.
class Folder {
 public:
  Folder() { REQUIRE(mkdtemp(path_) != nullptr); }
  ~Folder() { (void)!system((std::string("rm -r ") + path_).c_str()); }
  std::string path() const { return path_; }
  std::string read(const std::string& name) const {
    std::ifstream file(path() + "/" + name);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // Waits until ranks have written these files; false after 20 s.
  bool wait_for(int ranks) const {
    for (int tries = 0; tries < 2000; ++tries) {
      int there = 0;
      for (int r = 0; r < ranks; ++r) there += !read("pid" + std::to_string(r)).empty();
      if (there == ranks) return true;
      usleep(10000);
    }
    return false;
  }

 private:
  char path_[32] = "/tmp/llmops-comm-XXXXXX";
};

const std::vector<std::string> kRankArgs = {"unit_comm", "--no-skip", "--test-case=a rank"};

Result<int> run_role(const char* role, int ranks, const Folder& folder, double grace_s = 20) {
  RunOptions options;
  options.grace_s = grace_s;
  options.env = {std::string(kRoleVariable) + "=" + role, std::string(kFolderVariable) + "=" + folder.path()};
  return run_ranks(ranks, kRankArgs, options);
}

// Runs the group in a process of its own, so that the test can signal or kill the parent of ranks. Its stderr goes to
// FOLDER/stderr, its stdout to FOLDER/stdout.
pid_t start_parent(const char* role, int ranks, const Folder& folder, double grace_s = 20, bool closed_stdin = false) {
  std::fflush(stdout);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  (void)!freopen((folder.path() + "/stderr").c_str(), "w", stderr);
  (void)!freopen((folder.path() + "/stdout").c_str(), "w", stdout);
  if (closed_stdin) close(STDIN_FILENO);
  const auto code = run_role(role, ranks, folder, grace_s);
  _exit(code.ok() ? *code : 99);
}

int code_of(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path + ".part") << text;
  rename((path + ".part").c_str(), path.c_str());
}

// Has the process ended? A zombie has: nobody in a container may reap an orphan.
bool ended(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t paren = text.rfind(')');
  return paren == std::string::npos || text[paren + 2] == 'Z' || text[paren + 2] == 'X';
}

// All-reduces a stop flag, as a training step does, until it is set or something fails, or for at most 60 s.
int reduce_until_stopped(Communicator& comm, Stream& stream) {
  std::vector<float> x(1000);
  for (const double begin_s = monotonic_s(); monotonic_s() - begin_s < 60;) {
    x[0] = cancel_signal() != 0 ? 1.0f : 0.0f;
    (void)comm.all_reduce(stream, view_of(x), ReduceOp::max);
    if (const Status status = stream.sync(); !status.ok()) {
      std::fprintf(stderr, "%s\n", status.message().c_str());
      return exit_code(status.code());
    }
    if (x[0] != 0) return exit_code(Code::interrupted);
  }
  return 0;
}

int compute(Communicator& comm, Stream& stream, const std::string& folder) {
  const int64_t n = 200001;
  const int rank = comm.rank(), world = comm.world();
  auto shared = comm.alloc(n * 4, Category::grads);
  std::vector<float> own(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) own[static_cast<size_t>(i)] = shared->as<float>()[i] = rough(rank, i);
  (void)comm.all_reduce(stream, view_of(own));
  (void)comm.all_reduce(stream, shared->view(DType::f32, {n}));
  std::vector<int64_t> token = {41};
  if (rank > 0) (void)comm.recv(stream, view_of(token), rank - 1);
  ++token[0];
  if (rank + 1 < world) (void)comm.send(stream, view_of(token), rank + 1);
  if (!stream.sync().ok()) return 50;
  if (std::memcmp(own.data(), shared->data(), static_cast<size_t>(n) * 4) != 0) return 51;
  for (int64_t i = 0; i < n; ++i)
    if (own[static_cast<size_t>(i)] != rough_sum(0, world, i)) return 52;
  std::printf("stdout of rank %d\n", rank);
  std::fflush(stdout);
  write_file(folder + "/token" + std::to_string(rank), std::to_string(token[0]));
  return 0;
}

int be_rank(const std::string& role, const std::string& folder) {
  install_signal_handlers();
  const auto launch = parse_launch_env(std::nullopt);
  if (!launch.ok() || launch->role != Launch::Role::member) return 60;
  if (role == "late" && launch->rank == 1) sleep(30);
  auto device = Device::open_cpu(device_options());
  auto comm = open_communicator(**device, *launch, {.deadline_s = role == "late" ? 0.5 : 20});
  if (!comm.ok()) {
    std::fprintf(stderr, "%s\n", comm.status().message().c_str());
    return exit_code(comm.status().code());
  }
  write_file(folder + "/pid" + std::to_string(launch->rank), std::to_string(getpid()));
  if (role == "compute") return compute(**comm, (*device)->compute(), folder);
  if (role == "fail" && launch->rank == 1) return 4;
  if (role == "leave" && launch->rank == 1) return 0;
  return reduce_until_stopped(**comm, (*device)->compute());
}

}  // namespace

TEST_CASE("a rank" * doctest::skip()) {
  const char* role = std::getenv(kRoleVariable);
  const char* folder = std::getenv(kFolderVariable);
  REQUIRE(role != nullptr);
  REQUIRE(folder != nullptr);
  std::_Exit(be_rank(role, folder));
}

TEST_CASE("processes compute the same bits, pass messages, and rank 0 owns stdout") {
  for (int ranks : {1, 2, 3}) {
    const Folder folder;
    CHECK(code_of(start_parent("compute", ranks, folder, 20, ranks == 2)) == 0);
    CHECK(folder.read("token" + std::to_string(ranks - 1)) == std::to_string(41 + ranks));
    CHECK(folder.read("stdout").find("stdout of rank 0") != std::string::npos);
    CHECK(folder.read("stdout").find("stdout of rank 1") == std::string::npos);
  }
}

TEST_CASE("kill -9 of a rank: it is named, the peers end at once, the group's code is 5") {
  const Folder folder;
  const double begin_s = monotonic_s();
  const pid_t parent = start_parent("reduce", 3, folder);
  REQUIRE(folder.wait_for(3));
  const std::string victim = folder.read("pid1");
  kill(std::stoi(victim), SIGKILL);
  CHECK(code_of(parent) == 5);
  CHECK(monotonic_s() - begin_s < 15);  // far below the deadline of 20 s
  const std::string errors = folder.read("stderr");
  const std::string expected = "rank 1 (pid " + victim + ") was killed by signal 9 (Killed)";
  CHECK_MESSAGE(errors.find(expected) != std::string::npos, errors);
}

TEST_CASE("a rank that fails by itself: its code is the group's, not the echo of its peers") {
  const Folder folder;
  CHECK(code_of(start_parent("fail", 3, folder)) == 4);
  CHECK(folder.read("stderr").find("the group was aborted: rank 1 (pid ") != std::string::npos);
  CHECK(folder.read("stderr").find(") ended with code 4") != std::string::npos);
}

TEST_CASE("a rank that leaves early is noticed by its peers") {
  const Folder folder;
  CHECK(code_of(start_parent("leave", 2, folder)) == 5);
  CHECK(folder.read("stderr").find("ended before its peers") != std::string::npos);
}

TEST_CASE("a rank that hangs is killed after the grace time") {
  const Folder folder;
  const double begin_s = monotonic_s();
  CHECK(code_of(start_parent("late", 2, folder, 0.5)) == 5);
  CHECK(monotonic_s() - begin_s < 15);
  CHECK(folder.read("stderr").find("rank 1 (not started) did not arrive within 0.5 s") != std::string::npos);
  CHECK(folder.read("stderr").find("did not end within 0.5 s after a peer failed") != std::string::npos);
}

TEST_CASE("SIGTERM to the parent reaches every rank once; all saved is 75") {
  const Folder folder;
  const pid_t parent = start_parent("reduce", 2, folder);
  REQUIRE(folder.wait_for(2));
  kill(parent, SIGTERM);
  kill(parent, SIGTERM);  // as timeout(1) does: still one request
  CHECK(code_of(parent) == 75);
  CHECK(folder.read("stderr").find("was killed") == std::string::npos);
}

TEST_CASE("kill -9 of the parent kills the ranks") {
  const Folder folder;
  const pid_t parent = start_parent("reduce", 2, folder);
  REQUIRE(folder.wait_for(2));
  const pid_t ranks[] = {std::stoi(folder.read("pid0")), std::stoi(folder.read("pid1"))};
  kill(parent, SIGKILL);
  CHECK(code_of(parent) == -SIGKILL);
  for (pid_t rank : ranks) {
    for (int tries = 0; tries < 1000 && !ended(rank); ++tries) usleep(10000);
    CHECK(ended(rank));
  }
}

TEST_CASE("run_ranks refuses counts that it cannot run") {
  CHECK(run_ranks(0, kRankArgs).status().code() == Code::usage);
  CHECK(run_ranks(65, kRankArgs).status().code() == Code::usage);
}
