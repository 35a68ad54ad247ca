// How this process was launched, and how `--ranks N` launches ranks: the only file that reads launcher variables.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace llmops {

// What this process has to do. A main program does:
//   parse_launch_env -> print notes -> parent: return run_ranks(...); else open_communicator(device, launch).
struct Launch {
  enum class Role : uint8_t {
    single,  // on its own: a group of one
    parent,  // must start `world` ranks with run_ranks() and do nothing else
    member,  // a rank that run_ranks() started
  };
  Role role = Role::single;
  int rank = 0;
  int world = 1;
  int memory_fd = -1;              // member: the shared memory file
  int parent_pid = 0;              // member: who started it
  std::vector<std::string> notes;  // for people: launchers that disagree, variables that were not used
};

using GetEnv = std::function<const char*(const char* name)>;

// `ranks` is the --ranks flag, nullopt when it was not given. Precedence: being a rank of run_ranks > --ranks >
// torchrun > Open MPI > PMI > Slurm. Half a set of variables, a value that is no number, and a launcher's world > 1
// (which this transport cannot join) are usage errors, so that N processes never run alone N times; --ranks 1 says that
// independent copies are meant. Slurm counts only within a step: a shell of salloc or a batch script does not.
Result<Launch> parse_launch_env(std::optional<int> ranks, const GetEnv& get);
Result<Launch> parse_launch_env(std::optional<int> ranks);  // from the process's environment

struct RunOptions {
  double grace_s = 30;                // after a rank failed, the others have this long to end; then SIGKILL
  std::vector<std::string> env = {};  // additional NAME=VALUE for the ranks
};

// Runs this executable again (/proc/self/exe) with the given arguments (args[0] is the program name) as `ranks`
// processes that share a memory file, and returns the exit code of the group when all have ended.
// - Rank 0 has our stdin (unless it is a terminal) and stdout; the others have /dev/null there. All share stderr.
// - Ranks are in process groups of their own: they see SIGINT and SIGTERM once, as we forward them, also when a
//   terminal or timeout(1) signals the whole group. They are killed when we die, however that happens.
// - A rank that fails aborts the group: waiting peers return Code::peer. A rank killed by a signal is named on stderr.
// The group's code: if a rank was killed by the signal that we forwarded, 128 + signal (re-raise it); else if one was
// killed, 5; else the first of 4, 3, 2, 5, 1, 75 that a rank ended with (5 comes after its causes, for it is their echo
// in the peers; 75 thus means that all ranks ended with 0 or 75); an unknown code counts as 5; else 0.
Result<int> run_ranks(int ranks, const std::vector<std::string>& args, const RunOptions& options = {});

// The rule above, for tests: wait statuses as of waitpid(2), and the forwarded signal (0: none).
int group_exit_code(const std::vector<int>& wait_statuses, int forwarded_signal);

}  // namespace llmops
