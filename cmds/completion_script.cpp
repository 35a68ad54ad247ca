#include "cmds/documents.h"

namespace llmops {
namespace {

std::string words_of(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

// In single quotes, as all three shells read it.
std::string quoted(std::string_view text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("’") : std::string(1, c);
  return out + "'";
}

std::vector<std::string> nouns() {
  std::vector<std::string> out;
  for (const std::string& word : command_words(""))
    if (find_command(word) == nullptr) out.push_back(word);
  return out;
}

std::string flags_of(const OptionTable& table) {
  std::string flags;
  for (const Option& option : table.options()) {
    if (option.is_argument) continue;
    const bool is_on = option.type == OptionType::flag && option.get().as_bool();
    flags += (flags.empty() ? "" : " ") + option.flag() + (is_on ? " --no-" + option.name : "");
  }
  return flags;
}

std::vector<std::string> argument_choices(const OptionTable& table) {
  for (const Option& option : table.options())
    if (option.is_argument && !option.choices.empty()) return option.choices;
  return {};
}

std::string bash_script() {
  std::string find, values, flags;
  for (const std::string& noun : nouns())
    find += "    " + noun + ") verbs=" + quoted(words_of(command_words(noun))) + " ;;\n";
  for (const Command& command : commands()) {
    const Invocation use(command);
    const std::string name = command.text.name;
    flags += "    " + quoted(name) + ") flags=" + quoted(flags_of(use.table));
    if (const auto choices = argument_choices(use.table); !choices.empty())
      flags += " words=" + quoted(words_of(choices));
    flags += " ;;\n";
    for (const Option& option : use.table.options()) {
      if (option.is_argument || !option.takes_value()) continue;
      const std::string pattern = "    " + quoted(name + " " + option.flag()) + ") ";
      if (!option.choices.empty())
        values +=
            pattern + "COMPREPLY=($(compgen -W " + quoted(words_of(option.choices)) + " -- \"$cur\")); return ;;\n";
      else values += pattern + "COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n";
    }
  }
  return "# bash completion for llmops, made by: llmops completion bash\n"
         "_llmops() {\n"
         "  local cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
         "  local command=\"${COMP_WORDS[1]}\" at=1 verbs='' flags='' words=''\n"
         "  COMPREPLY=()\n"
         "  [[ $cur == '=' ]] && cur=''\n"
         "  [[ $prev == '=' ]] && prev=\"${COMP_WORDS[COMP_CWORD-2]}\"\n"
         "  if [[ $COMP_CWORD -eq 1 ]]; then\n"
         "    COMPREPLY=($(compgen -W " +
         quoted(words_of(command_words("")) + " --help --version") +
         " -- \"$cur\"))\n"
         "    return\n"
         "  fi\n"
         "  case $command in\n" +
         find + "    help) words=" + quoted(words_of(command_words(""))) +
         " ;;\n"
         "  esac\n"
         "  if [[ -n $verbs ]]; then\n"
         "    if [[ $COMP_CWORD -eq 2 ]]; then\n"
         "      COMPREPLY=($(compgen -W \"$verbs\" -- \"$cur\"))\n"
         "      return\n"
         "    fi\n"
         "    command=\"$command ${COMP_WORDS[2]}\"\n"
         "  fi\n"
         "  case \"$command $prev\" in\n" +
         values +
         "  esac\n"
         "  case \"$command\" in\n" +
         flags +
         "  esac\n"
         "  if [[ $cur == -* ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\"))\n"
         "  elif [[ -n $words ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -f -- \"$cur\"))\n"
         "  fi\n"
         "}\n"
         "complete -o filenames -F _llmops llmops\n";
}

// Characters with a meaning inside an _arguments specification.
std::string zsh_text(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_value(const Option& option) {
  if (!option.choices.empty()) return ":" + option.metavar + ":(" + words_of(option.choices) + ")";
  if (option.type == OptionType::path) return ":" + option.metavar + ":_files";
  return ":" + option.metavar + ":";
}

std::string zsh_option(const Option& option, bool is_off) {
  const std::string repeat = option.is_many || option.type == OptionType::count ? "*" : "";
  if (option.is_argument) return quoted((option.is_many ? "*" : "") + std::string(":") + zsh_value(option).substr(1));
  const std::string flag = is_off ? "--no-" + option.name : option.flag() + (option.takes_value() ? "=" : "");
  return quoted(repeat + flag + "[" + zsh_text(option.help) + "]" + (option.takes_value() ? zsh_value(option) : ""));
}

std::string zsh_script() {
  std::string firsts, verbs, cases;
  for (const std::string& word : command_words("")) {
    const Command* command = find_command(word);
    firsts +=
        "      " +
        quoted(word + ":" + zsh_text(command != nullptr ? command->text.summary : words_of(command_words(word)))) +
        "\n";
  }
  for (const std::string& noun : nouns())
    verbs += "    (" + noun + ") if (( CURRENT == 3 )); then compadd -- " + words_of(command_words(noun)) +
             "; return; fi; command=\"$command $words[3]\"; skip=3 ;;\n";
  for (const Command& command : commands()) {
    const Invocation use(command);
    cases += "    (" + quoted(command.text.name) + ") _arguments -s";
    for (const Option& option : use.table.options()) {
      cases += " \\\n      " + zsh_option(option, false);
      if (option.type == OptionType::flag && option.get().as_bool()) cases += " \\\n      " + zsh_option(option, true);
    }
    cases += " ;;\n";
  }
  return "#compdef llmops\n"
         "# zsh completion for llmops, made by: llmops completion zsh\n"
         "_llmops() {\n"
         "  local command=\"$words[2]\" skip=2\n"
         "  if (( CURRENT == 2 )); then\n"
         "    local -a firsts=(\n" +
         firsts +
         "    )\n"
         "    _describe 'command' firsts\n"
         "    return\n"
         "  fi\n"
         "  case \"$command\" in\n" +
         verbs +
         "    (*) ;;\n"
         "  esac\n"
         "  shift $(( skip - 1 )) words\n"
         "  (( CURRENT -= skip - 1 ))\n"
         "  case \"$command\" in\n" +
         cases +
         "    (*) ;;\n"
         "  esac\n"
         "}\n"
         "if [[ $funcstack[1] == _llmops ]]; then _llmops \"$@\"; else compdef _llmops llmops; fi\n";
}

std::string fish_condition(std::string_view name) {
  std::string out;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find(' ', at), name.size());
    out += (out.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + std::string(name.substr(at, end - at)));
    at = end + 1;
  }
  return out;
}

std::string fish_option(const Option& option, const std::string& condition) {
  std::string line = "complete -c llmops -n " + quoted(condition);
  if (option.is_argument)
    return option.choices.empty() ? "" : line + " -f -a " + quoted(words_of(option.choices)) + "\n";
  line += " -l " + option.name;
  if (option.letter != 0) line += std::string(" -s ") + option.letter;
  if (!option.choices.empty()) line += " -x -a " + quoted(words_of(option.choices));
  else if (option.takes_value()) line += option.type == OptionType::path ? " -r" : " -x";
  line += " -d " + quoted(option.help) + "\n";
  if (option.type == OptionType::flag && option.get().as_bool())
    line += "complete -c llmops -n " + quoted(condition) + " -l no-" + option.name + " -d " +
            quoted("not: " + option.help) + "\n";
  return line;
}

std::string fish_script() {
  const std::string firsts = words_of(command_words(""));
  std::string out = "# fish completion for llmops, made by: llmops completion fish\n";
  for (const std::string& word : command_words("")) {
    const Command* command = find_command(word);
    out += "complete -c llmops -f -n " + quoted("not __fish_seen_subcommand_from " + firsts) + " -a " + word + " -d " +
           quoted(command != nullptr ? command->text.summary : words_of(command_words(word))) + "\n";
  }
  for (const std::string& noun : nouns()) {
    const std::string verbs = words_of(command_words(noun));
    out += "complete -c llmops -f -n " +
           quoted(fish_condition(noun) + "; and not __fish_seen_subcommand_from " + verbs) + " -a " + quoted(verbs) +
           "\n";
  }
  for (const Command& command : commands()) {
    const Invocation use(command);
    for (const Option& option : use.table.options()) out += fish_option(option, fish_condition(command.text.name));
  }
  return out;
}

}  // namespace

std::string completion_script(std::string_view shell) {
  return shell == "bash" ? bash_script() : shell == "zsh" ? zsh_script() : fish_script();
}

}  // namespace llmops
