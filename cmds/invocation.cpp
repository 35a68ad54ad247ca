#include "cmds/invocation.h"

#include <algorithm>

#include "base/text.h"

namespace llmops {

void declare_common(CommonOptions& common, OptionTable& table) {
  const size_t first = table.options().size();
  table.section("Common options");
  table.choice("format", &common.format,
               {{"table", Format::table},
                {"json", Format::json},
                {"jsonl", Format::jsonl},
                {"csv", Format::csv},
                {"md", Format::md}},
               "how results are printed");
  table.flag("quiet", &common.quiet, "errors only on standard error").short_name('q');
  table.count("verbose", &common.verbose, "say more; may be repeated").short_name('v');
  table.path("config", &common.config, "file of options").meta("FILE").otherwise("./llmops.toml, when there is one");
  table.flag("no-color", &common.no_color, "no colour; so does a NO_COLOR that is not empty");
  table.flag("help", &common.help, "show this help").short_name('h');
  for (size_t i = first; i < table.options().size(); ++i) table.options()[i].is_common = true;
}

Invocation::Invocation(const Command& command) : name(command.text.name), run(command.make()) {
  run->declare(table);
  declare_common(common, table);
}

const Command* find_command(std::string_view name) {
  for (const Command& command : commands())
    if (name == command.text.name) return &command;
  return nullptr;
}

std::vector<std::string> command_words(std::string_view noun) {
  std::vector<std::string> words;
  for (const Command& command : commands()) {
    std::string_view name = command.text.name;
    if (!noun.empty()) {
      if (!name.starts_with(noun) || name.size() <= noun.size() || name[noun.size()] != ' ') continue;
      name.remove_prefix(noun.size() + 1);
    }
    const std::string word(name.substr(0, name.find(' ')));
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
  }
  return words;
}

bool is_noun(std::string_view word) { return !word.empty() && !command_words(word).empty(); }

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string near = nearest(word, candidates);
  return near.empty() ? "" : "; did you mean '" + near + "'?";
}

Status check_required(const OptionTable& table) {
  for (const Option& option : table.options())
    if (option.is_required && option.origin == Origin::standard)
      return usage_error(option.flag() + (option.is_argument ? "" : " " + option.metavar) +
                         " is missing: " + option.help);
  return {};
}

}  // namespace llmops
