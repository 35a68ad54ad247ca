#include "cmds/command.h"

namespace llmops {

Command version_command();
Command completion_command();
Command help_command();

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {version_command(), completion_command(), help_command()};
  return all;
}

}  // namespace llmops
