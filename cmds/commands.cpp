#include "cmds/command.h"

namespace llmops {

Command train_command();
Command infer_run_command();
Command version_command();
Command completion_command();
Command help_command();

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {train_command(), infer_run_command(), version_command(), completion_command(), help_command()};
  return all;
}

}  // namespace llmops
