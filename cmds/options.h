// The one option table. A command binds the fields of its `struct Options` to names, types, ranges and help; parsing,
// --help, the man page, the completions, the config keys and the JSON echo all come from the table, and no option is
// parsed outside it. A value comes from, in this order: the command line (the last one wins), the environment
// (LLMOPS_<COMMAND>_<OPTION>, then LLMOPS_<OPTION>), llmops.toml, the default.
#pragma once

#include <concepts>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace llmops {

enum class OptionType : uint8_t { flag, count, integer, real, bytes, duration, text, path, choice, list };

// Where a value came from.
enum class Origin : uint8_t { standard, config, environment, command_line };

struct Option {
  std::string name;  // "max-tokens"; --max-tokens, max_tokens in llmops.toml and JSON, MAX_TOKENS in the environment
  OptionType type;
  std::string help;      // one phrase, no full stop; units and limits are added from the table
  std::string section;   // heading in --help and the man page
  std::string metavar;   // "N", "FILE"
  std::string standard;  // the default as people read it; empty: none
  std::string limits;    // "1 to 8", "at least 1"; empty: none worth telling
  std::vector<std::string> choices;
  std::string expected;  // "slow or quick": what a missing value is said to be; empty: the metavar and the help
  bool is_argument = false;  // positional
  bool is_many = false;      // takes several values
  bool is_required = false;
  bool is_common = false;  // of every command: not in the JSON echo
  char letter = 0;

  Origin origin = Origin::standard;
  std::string origin_text = "default";          // "llmops.toml:3:1", "LLMOPS_TRAIN_STEPS", "--steps"
  std::function<Status(std::string_view)> set;  // parses strictly; the message says what was found and expected
  std::function<Json()> get;                    // null: not set

  // For declare(): t.integer("steps", &o.steps, 1, 1000000, "optimizer steps").short_name('n').required();
  Option& short_name(char c) { return letter = c, *this; }
  Option& meta(std::string text) { return metavar = std::move(text), *this; }
  Option& otherwise(std::string text) { return standard = std::move(text), *this; }  // words for the default
  Option& expects(std::string text) { return expected = std::move(text), *this; }
  Option& required() { return is_required = true, *this; }

  bool takes_value() const { return type != OptionType::flag && type != OptionType::count; }
  std::string key() const;   // "max_tokens"
  std::string flag() const;  // "--max-tokens", or "DIR" of an argument: how messages name it
};

class OptionTable {
 public:
  // Options declared after this belong under the heading.
  void section(std::string heading) { section_ = std::move(heading); }

  // Each binds `field`, whose value now is the default. An empty std::optional means "no default".
  Option& flag(std::string name, bool* field, std::string help);  // --x; --no-x where the default is true
  Option& count(std::string name, int* field, std::string help);  // -vvv
  Option& integer(std::string name, int* field, int min, int max, std::string help);
  Option& integer(std::string name, int64_t* field, int64_t min, int64_t max, std::string help);
  Option& integer(std::string name, std::optional<int64_t>* field, int64_t min, int64_t max, std::string help);
  Option& real(std::string name, double* field, double min, double max, std::string help);
  Option& real(std::string name, std::optional<double>* field, double min, double max, std::string help);
  Option& bytes(std::string name, int64_t* field, std::string help);
  Option& bytes(std::string name, std::optional<int64_t>* field, std::string help);
  Option& duration(std::string name, double* seconds, std::string help);
  Option& duration(std::string name, std::optional<double>* seconds, std::string help);
  Option& text(std::string name, std::string* field, std::string help);
  Option& text(std::string name, std::optional<std::string>* field, std::string help);  // tells '' from not given
  Option& path(std::string name, std::string* field, std::string help);
  Option& list(std::string name, std::vector<std::string>* field, std::string help);  // may be repeated
  Option& choice(std::string name, std::string* field, std::vector<std::string> choices, std::string help);
  template <class E>
    requires std::is_enum_v<E>
  Option& choice(std::string name, E* field, std::vector<std::pair<std::string, E>> choices, std::string help);

  // Positional arguments, in order; `arguments` takes the rest. Never read from environment or config.
  Option& argument(std::string metavar, std::string* field, std::string help);  // required
  Option& optional_argument(std::string metavar, std::string* field, std::string help);
  Option& arguments(std::string metavar, std::vector<std::string>* field, std::string help);

  std::deque<Option>& options() { return options_; }
  const std::deque<Option>& options() const { return options_; }
  const Option* find(std::string_view name) const;
  Option* find(std::string_view name);
  // Was the option given by anyone? (its default stands otherwise)
  bool given(std::string_view name) const;

  Json echo() const;  // {"steps": 50, "lr": 0.001, ...}
  // The same as text that `--config` reads back: "[train]\nsteps = 50\n...". Unset options are left out.
  std::string to_toml(std::string_view command) const;

 private:
  Option& add(std::string name, OptionType type, std::string metavar, std::string help);
  std::deque<Option> options_;
  std::string section_ = "Options";
};

// "a, b or c".
std::string one_of(const std::vector<std::string>& choices);
// "Found 'x', expected a, b or c; did you mean 'a'?"
Status not_a_choice(std::string_view found, const std::vector<std::string>& choices);

template <class E>
  requires std::is_enum_v<E>
Option& OptionTable::choice(std::string name, E* field, std::vector<std::pair<std::string, E>> choices,
                            std::string help) {
  Option& option = add(std::move(name), OptionType::choice, "NAME", std::move(help));
  for (const auto& [word, value] : choices) {
    option.choices.push_back(word);
    if (value == *field) option.standard = word;
  }
  option.expected = one_of(option.choices);
  option.set = [field, choices, words = option.choices](std::string_view text) -> Status {
    for (const auto& [word, value] : choices)
      if (word == text) return *field = value, Status();
    return not_a_choice(text, words);
  };
  option.get = [field, choices]() -> Json {
    for (const auto& [word, value] : choices)
      if (value == *field) return word;
    return {};
  };
  return option;
}

}  // namespace llmops
