// The words of a command line into the table. Our own few lines and not CLI11 2.1.2: what we need is only the splitting
// into words (values are parsed by base), and there CLI11 takes the next word as the value of `--name=`.
#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "base/text.h"
#include "cmds/invocation.h"

namespace llmops {
namespace {

class CommandLine {
 public:
  CommandLine(OptionTable& table, std::span<const std::string> words) : table_(table), words_(words) {}

  Status read() {
    bool only_arguments = false;
    while (next_ < words_.size()) {
      const std::string_view word = words_[next_++];
      if (only_arguments || word.size() < 2 || word[0] != '-') LLMOPS_TRY(argument(word));
      else if (word == "--") only_arguments = true;
      else if (word[1] == '-') LLMOPS_TRY(long_option(word));
      else LLMOPS_TRY(letters(word));
    }
    return {};
  }

 private:
  Status set(Option& option, std::string_view text, const std::string& as) {
    LLMOPS_TRY(option.set(text).in(as));
    option.origin = Origin::command_line;
    option.origin_text = as;
    return {};
  }

  Status value_of(Option& option, const std::string& as) {
    if (next_ == words_.size())
      return usage_error(as + ": found no value, expected " +
                         (option.expected.empty() ? option.metavar + ", " + option.help : option.expected));
    return set(option, words_[next_++], as);
  }

  Status long_option(std::string_view word) {
    const size_t equals = word.find('=');
    const std::string as(word.substr(0, equals));
    const std::string_view name = std::string_view(as).substr(2);
    Option* option = find(name);
    const bool is_off = option == nullptr && name.starts_with("no-") && (option = find(name.substr(3))) != nullptr;
    if (option == nullptr || (is_off && option->type != OptionType::flag)) return unknown(as);
    if (equals != std::string_view::npos) {
      if (is_off || option->type == OptionType::count) return usage_error(as + ": found a value, expected none");
      return set(*option, word.substr(equals + 1), as);
    }
    return option->takes_value() ? value_of(*option, as) : switch_on(*option, is_off ? "false" : "true", as);
  }

  // A group of letters: -q, -vvv, -n5, -n 5.
  Status letters(std::string_view word) {
    for (size_t i = 1; i < word.size(); ++i) {
      const std::string as = {'-', word[i]};
      auto has_letter = [&](const Option& option) { return option.letter == word[i]; };
      const auto option = std::find_if(table_.options().begin(), table_.options().end(), has_letter);
      if (option == table_.options().end()) return unknown(word.size() == 2 ? as : std::string(word));
      if (option->takes_value())
        return i + 1 < word.size() ? set(*option, word.substr(i + 1), as) : value_of(*option, as);
      LLMOPS_TRY(switch_on(*option, "true", as));
    }
    return {};
  }

  Status switch_on(Option& option, std::string_view value, const std::string& as) {
    if (option.type == OptionType::flag) return set(option, value, as);
    return set(option, std::to_string(option.get().as_int() + 1), as);
  }

  Status argument(std::string_view word) {
    for (Option& option : table_.options())
      if (option.is_argument && (option.is_many || option.origin != Origin::command_line))
        return set(option, word, option.metavar);
    return usage_error("found '" + escape_control(word) + "', expected no further argument");
  }

  Option* find(std::string_view name) {
    Option* option = table_.find(name);
    return option == nullptr || option->is_argument ? nullptr : option;
  }

  Status unknown(const std::string& as) const {
    std::vector<std::string> flags;
    for (const Option& option : table_.options())
      if (!option.is_argument) flags.push_back(option.flag());
    return usage_error("found the unknown option '" + escape_control(as) + "'" + did_you_mean(as, flags));
  }

  OptionTable& table_;
  std::span<const std::string> words_;
  size_t next_ = 0;
};

std::string environment_name(std::string_view command, const Option& option) {
  std::string name = "LLMOPS_";
  if (!command.empty()) name.append(command) += '_';
  name += option.key();
  for (char& c : name) c = c == ' ' || c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

}  // namespace

Status read_command_line(OptionTable& table, std::span<const std::string> words) {
  return CommandLine(table, words).read();
}

Status read_environment(OptionTable& table, std::string_view command) {
  for (Option& option : table.options()) {
    if (option.is_argument || option.name == "help" || option.origin != Origin::standard) continue;
    for (const std::string& name : {environment_name(command, option), environment_name("", option)}) {
      const char* value = std::getenv(name.c_str());
      if (value == nullptr || *value == '\0') continue;
      LLMOPS_TRY(option.set(value).in(name));
      option.origin = Origin::environment;
      option.origin_text = name;
      break;
    }
  }
  return {};
}

}  // namespace llmops
