#include "cmds/command.h"

namespace llmops {

Command tour_command();
Command train_command();
Command ckpt_verify_command();
Command ckpt_ls_command();
Command ckpt_export_command();
Command infer_run_command();
Command version_command();
Command completion_command();
Command help_command();

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {tour_command(),      train_command(),   infer_run_command(),
                                           ckpt_verify_command(), ckpt_ls_command(), ckpt_export_command(),
                                           version_command(),   completion_command(), help_command()};
  return all;
}

}  // namespace llmops
