#include "cmds/dispatch.h"

#include <algorithm>
#include <csignal>
#include <cstdio>

#include "base/run.h"
#include "base/text.h"
#include "cmds/build_info.h"
#include "cmds/documents.h"

namespace llmops {
namespace {

// Errors are said at every log level, --quiet included.
int report_failure(const std::string& object, const Status& status) {
  if (!status.ok() && !status.message().empty())
    log(LogLevel::quiet, object.empty() ? status.message() : object + ": " + status.message());
  return exit_code(status.code());
}

int print(Output& out, const std::string& text) { return report_failure("", out.write(text)); }

// Help that was not asked for: the person left out the command.
int short_help(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  return exit_code(Code::usage);
}

bool asks_for_help(std::span<const std::string> words) {
  for (const std::string& word : words) {
    if (word == "--") return false;
    if (word == "--help" || word == "-h") return true;
  }
  return false;
}

// Common options may stand before the command: `llmops --format json version`. Returns how many words they are.
size_t leading_options(std::span<const std::string> words) {
  CommonOptions common;
  OptionTable table;
  declare_common(common, table);
  size_t count = 0;
  while (count < words.size() && words[count].size() > 1 && words[count][0] == '-') {
    const std::string& word = words[count++];
    const Option* option = word.starts_with("--") ? table.find(word.substr(2)) : nullptr;
    if (option != nullptr && option->takes_value() && count < words.size()) ++count;
  }
  return count;
}

Status resolve(Invocation& use, std::span<const std::string> words) {
  LLMOPS_TRY(read_command_line(use.table, words));
  LLMOPS_TRY(read_environment(use.table, use.name));
  LLMOPS_TRY(read_config(use.table, use.name, use.common.config));
  return check_required(use.table);
}

void log_origins(const Invocation& use) {
  for (const Option& option : use.table.options())
    if (option.origin != Origin::standard)
      log(LogLevel::verbose,
          use.name + ": " + option.key() + " = " + option.get().dump() + " from " + escape_control(option.origin_text));
}

int run(const Command& command, std::span<const std::string> words, Output& out) {
  if (asks_for_help(words)) return print(out, help_text(command));
  Invocation use(command);
  if (const Status status = resolve(use, words); !status.ok()) return report_failure(use.name, status);
  set_log_level(use.common.quiet ? LogLevel::quiet : static_cast<LogLevel>(std::min(use.common.verbose, 3)));
  log_origins(use);
  const bool colour = !use.common.no_color && colour_wanted(1);
  Context context{command.text.name, use.table, out, use.common.format, colour};
  const Status status = use.run->run(context);
  const int code = report_failure(use.name, status);
  if (status.code() == Code::interrupted && !context.saved && cancel_signal() != 0) {
    std::signal(cancel_signal(), SIG_DFL);
    std::raise(cancel_signal());
  }
  return code;
}

int unknown_command(const std::string& noun, const std::string& word) {
  const std::string object = noun.empty() ? "" : noun + ": ";
  return report_failure("", usage_error(object + "found the unknown command '" + escape_control(word) + "'" +
                                        did_you_mean(word, command_words(noun)) +
                                        (noun.empty() ? "; see llmops --help" : "; see llmops " + noun + " --help")));
}

}  // namespace

int dispatch(std::span<const std::string> words, Output& out) {
  if (words.empty()) return short_help(overview_text());
  const size_t leading = leading_options(words);
  std::vector<std::string> rest(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(leading));
  const auto after = words.subspan(leading);
  if (after.empty()) {
    if (asks_for_help(rest)) return print(out, overview_text());
    if (std::find(rest.begin(), rest.end(), "--version") != rest.end())
      return print(out, "llmops " + std::string(build_version()) + " (" + std::string(build_commit()) + ")\n");
    CommonOptions common;
    OptionTable table;
    declare_common(common, table);
    if (const Status status = read_command_line(table, rest); !status.ok()) return report_failure("", status);
    return short_help(overview_text());
  }
  const std::string& first = after[0];
  const bool has_verb = find_command(first) == nullptr && is_noun(first);
  if (has_verb && (after.size() == 1 || after[1].starts_with("-"))) {
    rest.insert(rest.end(), after.begin() + 1, after.end());
    return asks_for_help(rest) ? print(out, noun_text(first)) : short_help(noun_text(first));
  }
  const Command* command = find_command(has_verb ? first + " " + after[1] : first);
  if (command == nullptr) return has_verb ? unknown_command(first, after[1]) : unknown_command("", first);
  rest.insert(rest.end(), after.begin() + (has_verb ? 2 : 1), after.end());
  return run(*command, rest, out);
}

}  // namespace llmops
