// llmops completion: a script that teaches a shell the commands, options and values.
#include <algorithm>

#include "cmds/command.h"
#include "cmds/documents.h"

namespace llmops {
namespace {

struct Options {
  std::string shell;
};

const std::vector<std::string> kShells = {"bash", "zsh", "fish"};

void declare(Options& o, OptionTable& t) { t.argument("SHELL", &o.shell, "the shell").choices = kShells; }

Status run(Options& o, Context& context) {
  if (std::find(kShells.begin(), kShells.end(), o.shell) == kShells.end())
    return not_a_choice(o.shell, kShells).in("SHELL");
  const std::string script = completion_script(o.shell);
  if (context.wants_json()) return context.print(Json(Json::Object{{"shell", o.shell}, {"script", script}}));
  return context.out.write(script);
}

}  // namespace

Command completion_command() {
  return make_command<Options, declare, run>({
      .name = "completion",
      .summary = "print a completion script for bash, zsh or fish",
      .description = "The script is made from the same table as --help. For bash: source <(llmops completion bash). "
                     "For zsh: save it as "
                     "_llmops in a folder of $fpath. For fish: save it as ~/.config/fish/completions/llmops.fish.",
      .examples = {{"llmops completion bash", "for /usr/share/bash-completion/completions/llmops"},
                   {"llmops completion zsh", "for a folder of $fpath, as _llmops"},
                   {"llmops completion fish", "for ~/.config/fish/completions/llmops.fish"}},
  });
}

}  // namespace llmops
