#include <algorithm>
#include <cctype>

#include "cmds/build_info.h"
#include "cmds/documents.h"

namespace llmops {
namespace {

// What every page ends with; hand-written roff.
constexpr char kCommonSections[] =
#include "man/common.inc"
    ;

// Text that roff prints as it is: backslashes and hyphens escaped, no line that starts like a request.
std::string roff(std::string_view text) {
  std::string out;
  for (char c : text) {
    if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
    if (c == '\\') out += "\\e";
    else if (c == '-') out += "\\-";
    else out += c;
  }
  return out;
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

std::string page_title(std::string_view command) {
  std::string name = command.empty() ? "llmops" : "llmops-" + std::string(command);
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

std::string page_head(std::string_view command, std::string_view summary) {
  const std::string title = page_title(command);
  return ".TH \"" + roff(upper(title)) + "\" 1 \"\" \"llmops " + std::string(build_version()) +
         "\" \"llmops manual\"\n" + ".SH NAME\n" + roff(title) + " \\- " + roff(summary) + "\n";
}

std::string option_entry(const Option& option) {
  std::string tag = option.letter != 0 ? std::string("\\fB\\-") + option.letter + "\\fR, " : "";
  if (option.is_argument) tag = "\\fI" + roff(option.metavar) + "\\fR";
  else tag += "\\fB" + roff(option.flag()) + "\\fR";
  if (option.takes_value() && !option.is_argument) tag += " \\fI" + roff(option.metavar) + "\\fR";
  if (option.type == OptionType::flag && option.get().as_bool())
    tag += ", \\fB\\-\\-no\\-" + roff(option.name) + "\\fR";
  const std::string facts = facts_of(option);
  // As in --help, without a capital: the first word may be a value to type.
  return ".TP\n" + tag + "\n" + roff(option.help + (facts.empty() ? "." : " (" + facts + ").")) + "\n";
}

std::string paragraphs(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t end = std::min(text.find("\n\n"), text.size());
    out += (out.empty() ? "" : ".PP\n") + roff(text.substr(0, end)) + "\n";
    text.remove_prefix(std::min(text.size(), end + 2));
  }
  return out;
}

}  // namespace

std::string man_page_name(std::string_view command) { return page_title(command) + ".1"; }

std::string man_page(const Command& command) {
  const Invocation use(command);
  std::string out = page_head(command.text.name, command.text.summary);
  out += ".SH SYNOPSIS\n" + roff(synopsis(command, use.table)) + "\n";
  out += ".SH DESCRIPTION\n" +
         paragraphs(*command.text.description != '\0' ? command.text.description : command.text.summary);
  for (const std::string& section : sections_of(use.table)) {
    out += ".SH \"" + roff(upper(section)) + "\"\n";
    for (const Option& option : use.table.options())
      if (option.section == section) out += option_entry(option);
  }
  if (!command.text.examples.empty()) out += ".SH EXAMPLES\n";
  for (const Example& example : command.text.examples)
    out += ".TP\n\\fB" + roff(example.line) + "\\fR\n" + roff(example.does) + "\n";
  return out + kCommonSections;
}

std::string man_overview() {
  std::string out = page_head("", kProgramSummary);
  out += ".SH SYNOPSIS\nllmops COMMAND [OPTIONS]\n.SH COMMANDS\n";
  for (const Command& command : commands())
    out += ".TP\n\\fB" + roff(command.text.name) + "\\fR\n" + roff(command.text.summary) + ", see \\fB" +
           roff(page_title(command.text.name)) + "\\fR(1)\n";
  return out + kCommonSections;
}

}  // namespace llmops
