#include <algorithm>

#include "base/text.h"
#include "cmds/documents.h"

namespace llmops {
namespace {

constexpr int kWidth = 100, kHelpColumn = 28;

// `text` broken at blanks, its lines starting at column `indent`; the first one continues a line of `used` columns.
std::string wrapped(std::string_view text, int used, int indent) {
  std::string out;
  int column = used;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    const int width = display_width(word);
    if (column > indent && column + 1 + width > kWidth) {
      out += "\n" + std::string(static_cast<size_t>(indent), ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out.append(word);
    column += width;
  }
  return out + "\n";
}

std::string two_columns(std::string left, std::string_view right) {
  if (display_width(left) + 2 > kHelpColumn)
    return left + "\n" + std::string(kHelpColumn, ' ') + wrapped(right, kHelpColumn, kHelpColumn);
  left.resize(left.size() + static_cast<size_t>(kHelpColumn - display_width(left)), ' ');
  return left + wrapped(right, kHelpColumn, kHelpColumn);
}

// A flag that is on by default is shown as what turns it off.
std::string flag_column(const Option& option) {
  if (option.is_argument) return "  " + option.metavar;
  const bool is_on = option.type == OptionType::flag && option.get().as_bool();
  std::string out = option.letter != 0 ? std::string("  -") + option.letter + ", " : "      ";
  out += (is_on ? "--no-" : "--") + option.name;
  return option.takes_value() ? out + " " + option.metavar : out;
}

std::string option_line(const Option& option) {
  const std::string facts = facts_of(option);
  return two_columns(flag_column(option), facts.empty() ? option.help : option.help + " (" + facts + ")");
}

std::string command_lines(std::string_view noun) {
  std::string out;
  for (const Command& command : commands()) {
    const std::string_view name = command.text.name;
    if (!noun.empty() && !name.starts_with(std::string(noun) + " ")) continue;
    out += two_columns("  " + std::string(name), command.text.summary);
  }
  return out;
}

}  // namespace

std::string facts_of(const Option& option) {
  std::string out;
  auto add = [&](const std::string& fact) { out += (out.empty() ? "" : "; ") + fact; };
  std::string choices;
  for (const std::string& choice : option.choices) choices += (choices.empty() ? "" : ", ") + choice;
  if (!choices.empty()) add(choices);
  if (!option.limits.empty()) add(option.limits);
  if (option.is_many && !option.is_argument) add("may be repeated");
  if (option.is_required && !option.is_argument) add("required");
  if (!option.standard.empty() && option.type != OptionType::flag) add("default: " + option.standard);
  return out;
}

std::string synopsis(const Command& command, const OptionTable& table) {
  std::string out = std::string("llmops ") + command.text.name + " [OPTIONS]";
  for (const Option& option : table.options()) {
    if (!option.is_argument) continue;
    const std::string word = option.metavar + (option.is_many ? "..." : "");
    out += option.is_required ? " " + word : " [" + word + "]";
  }
  return out;
}

std::vector<std::string> sections_of(const OptionTable& table) {
  std::vector<std::string> sections;
  for (const Option& option : table.options())
    if (std::find(sections.begin(), sections.end(), option.section) == sections.end())
      sections.push_back(option.section);
  return sections;
}

std::string overview_text() {
  return std::string("llmops - ") + kProgramSummary +
         "\n\n"
         "Usage: llmops COMMAND [OPTIONS]\n"
         "\n"
         "Commands:\n" +
         command_lines("") +
         "\n"
         "llmops help COMMAND shows a command's options; llmops --version the version.\n";
}

std::string noun_text(std::string_view noun) {
  return "Usage: llmops " + std::string(noun) + " COMMAND [OPTIONS]\n\nCommands:\n" + command_lines(noun);
}

std::string help_text(const Command& command) {
  const Invocation use(command);
  std::string out = std::string("llmops ") + command.text.name + " - " + command.text.summary +
                    "\n\nUsage: " + synopsis(command, use.table) + "\n";
  if (!command.text.examples.empty()) out += "\nExamples:\n";
  for (const Example& example : command.text.examples)
    out += std::string("  ") + example.line + "\n      " + example.does + "\n";
  for (const std::string& section : sections_of(use.table)) {
    out += "\n" + section + ":\n";
    for (const Option& option : use.table.options())
      if (option.section == section) out += option_line(option);
  }
  return out;
}

Json commands_json(std::string_view noun) {
  Json all = Json::Array();
  for (const Command& command : commands()) {
    const std::string_view name = command.text.name;
    if (noun.empty() || name.starts_with(std::string(noun) + " "))
      all.push_back(Json::Object{{"name", command.text.name}, {"summary", command.text.summary}});
  }
  return Json::Object{{"commands", std::move(all)}};
}

Json help_json(const Command& command) {
  constexpr std::string_view kTypes[] = {"flag",     "count", "integer", "real",   "bytes",
                                         "duration", "text",  "path",    "choice", "list"};
  const Invocation use(command);
  Json out;
  out["command"] = command.text.name;
  out["summary"] = command.text.summary;
  out["usage"] = synopsis(command, use.table);
  out["examples"] = Json::Array();
  for (const Example& example : command.text.examples)
    out["examples"].push_back(Json::Object{{"line", example.line}, {"does", example.does}});
  out["options"] = Json::Array();
  for (const Option& option : use.table.options()) {
    Json item =
        Json::Object{{"name", option.flag()}, {"key", option.key()}, {"type", kTypes[static_cast<int>(option.type)]}};
    item["help"] = option.help;
    item["section"] = option.section;
    if (option.letter != 0) item["letter"] = std::string(1, option.letter);
    if (!option.choices.empty()) item["choices"] = Json::Array(option.choices.begin(), option.choices.end());
    if (!option.limits.empty()) item["limits"] = option.limits;
    item["default"] = option.get();
    item["required"] = option.is_required;
    out["options"].push_back(std::move(item));
  }
  return out;
}

}  // namespace llmops
