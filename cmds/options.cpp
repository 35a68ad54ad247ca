#include "cmds/options.h"

#include <algorithm>
#include <cctype>
#include <limits>

#include "base/text.h"

namespace llmops {
namespace {

std::string with_case(std::string_view name, char dash, int (*change)(int)) {
  std::string out(name);
  for (char& c : out) c = c == '-' ? dash : static_cast<char>(change(static_cast<unsigned char>(c)));
  return out;
}

Json to_json(const auto& value) { return value; }
template <class T>
Json to_json(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

// Binds a field of type T or optional<T> (an int is bound through int64_t): `parse` gives the value of a text, `show`
// the words for a default.
template <class Field, class Parse, class Show>
Option& bind(Option& option, Field* field, Parse parse, Show show) {
  option.set = [field, parse](std::string_view text) -> Status {
    auto value = parse(text);
    if (!value.ok()) return value.status();
    *field = *value;
    return {};
  };
  option.get = [field] { return to_json(*field); };
  if (const Json value = option.get(); !value.is_null()) option.standard = show(value);
  return option;
}

// Limits that a person would hit; the ends of a type's range are not told.
template <class T>
std::string limits_text(T min, T max) {
  const bool has_min = min > std::numeric_limits<T>::lowest(), has_max = max < std::numeric_limits<T>::max();
  const std::string low = Json(min).dump(), high = Json(max).dump();
  return has_min && has_max ? low + " to " + high : has_min ? "at least " + low : has_max ? "at most " + high : "";
}

template <class Field>
Option& bind_integer(Option& option, Field* field, int64_t min, int64_t max) {
  option.limits = max < std::numeric_limits<int>::max() ? limits_text(min, max)
                                                        : limits_text(min, std::numeric_limits<int64_t>::max());
  return bind(
      option, field, [min, max](std::string_view text) { return parse_int(text, min, max); },
      [](const Json& value) { return value.dump(); });
}
template <class Field>
Option& bind_real(Option& option, Field* field, double min, double max) {
  option.limits = limits_text(min, max);
  return bind(
      option, field, [min, max](std::string_view text) { return parse_double(text, min, max); },
      [](const Json& value) { return value.dump(); });
}
template <class Field>
Option& bind_bytes(Option& option, Field* field) {
  return bind(option, field, parse_bytes, [](const Json& value) { return format_bytes(value.as_int()); });
}
template <class Field>
Option& bind_duration(Option& option, Field* field) {
  return bind(option, field, parse_duration, [](const Json& value) { return format_duration(value.as_double()); });
}
Option& bind_path(Option& option, std::string* field) {
  auto parse = [](std::string_view text) -> Result<std::string> {
    if (text.empty()) return usage_error("found an empty path, expected a name");
    return std::string(text);
  };
  return bind(option, field, parse, [](const Json& value) { return value.as_string(); });
}
template <class Field>
Option& bind_text(Option& option, Field* field) {
  return bind(
      option, field, [](std::string_view text) { return Result<std::string>(std::string(text)); },
      [](const Json& value) { return value.as_string(); });
}

Option& bind_list(Option& option, std::vector<std::string>* field) {
  option.is_many = true;
  option.set = [field](std::string_view text) { return field->emplace_back(text), Status(); };
  option.get = [field] { return Json(Json::Array(field->begin(), field->end())); };
  return option;
}

Result<bool> parse_flag(std::string_view text) {
  for (std::string_view yes : {"true", "1", "yes", "on"})
    if (text == yes) return true;
  for (std::string_view no : {"false", "0", "no", "off"})
    if (text == no) return false;
  return usage_error("found '" + escape_control(text) + "', expected true or false");
}

// A TOML value: JSON's spelling is TOML's for numbers, booleans and flat arrays, and for strings but for DEL.
std::string toml_value(const Json& value) {
  std::string out = value.dump();
  for (size_t at = 0; (at = out.find('\x7f', at)) != std::string::npos;) out.replace(at, 1, "\\u007f");
  return out;
}

}  // namespace

std::string Option::key() const { return with_case(name, '_', std::tolower); }
std::string Option::flag() const { return is_argument ? metavar : "--" + name; }

std::string one_of(const std::vector<std::string>& choices) {
  std::string text;
  for (size_t i = 0; i < choices.size(); ++i)
    text += (i == 0 ? "" : i + 1 == choices.size() ? " or " : ", ") + choices[i];
  return text;
}

Status not_a_choice(std::string_view found, const std::vector<std::string>& choices) {
  std::string message = "found '" + escape_control(found) + "', expected " + one_of(choices);
  if (const std::string near = nearest(found, choices); !near.empty()) message += "; did you mean '" + near + "'?";
  return usage_error(message);
}

Option& OptionTable::add(std::string name, OptionType type, std::string metavar, std::string help) {
  Option option;
  option.name = std::move(name);
  option.type = type;
  option.help = std::move(help);
  option.section = section_;
  option.metavar = std::move(metavar);
  options_.push_back(std::move(option));
  return options_.back();
}

Option& OptionTable::flag(std::string name, bool* field, std::string help) {
  Option& option = add(std::move(name), OptionType::flag, "", std::move(help));
  return bind(option, field, parse_flag, [](const Json& value) { return value.as_bool() ? "on" : ""; });
}
Option& OptionTable::count(std::string name, int* field, std::string help) {
  Option& option = add(std::move(name), OptionType::count, "", std::move(help));
  bind_integer(option, field, 0, 9);
  option.limits.clear();
  return option.otherwise("");
}
Option& OptionTable::integer(std::string name, int* field, int min, int max, std::string help) {
  return bind_integer(add(std::move(name), OptionType::integer, "N", std::move(help)), field, min, max);
}
Option& OptionTable::integer(std::string name, int64_t* field, int64_t min, int64_t max, std::string help) {
  return bind_integer(add(std::move(name), OptionType::integer, "N", std::move(help)), field, min, max);
}
Option& OptionTable::integer(std::string name, std::optional<int64_t>* field, int64_t min, int64_t max,
                             std::string help) {
  return bind_integer(add(std::move(name), OptionType::integer, "N", std::move(help)), field, min, max);
}
Option& OptionTable::real(std::string name, double* field, double min, double max, std::string help) {
  return bind_real(add(std::move(name), OptionType::real, "X", std::move(help)), field, min, max);
}
Option& OptionTable::real(std::string name, std::optional<double>* field, double min, double max, std::string help) {
  return bind_real(add(std::move(name), OptionType::real, "X", std::move(help)), field, min, max);
}
Option& OptionTable::bytes(std::string name, int64_t* field, std::string help) {
  return bind_bytes(add(std::move(name), OptionType::bytes, "SIZE", std::move(help)), field);
}
Option& OptionTable::bytes(std::string name, std::optional<int64_t>* field, std::string help) {
  return bind_bytes(add(std::move(name), OptionType::bytes, "SIZE", std::move(help)), field);
}
Option& OptionTable::duration(std::string name, double* seconds, std::string help) {
  return bind_duration(add(std::move(name), OptionType::duration, "TIME", std::move(help)), seconds);
}
Option& OptionTable::duration(std::string name, std::optional<double>* seconds, std::string help) {
  return bind_duration(add(std::move(name), OptionType::duration, "TIME", std::move(help)), seconds);
}
Option& OptionTable::text(std::string name, std::string* field, std::string help) {
  return bind_text(add(std::move(name), OptionType::text, "TEXT", std::move(help)), field);
}
Option& OptionTable::text(std::string name, std::optional<std::string>* field, std::string help) {
  return bind_text(add(std::move(name), OptionType::text, "TEXT", std::move(help)), field);
}
Option& OptionTable::path(std::string name, std::string* field, std::string help) {
  return bind_path(add(std::move(name), OptionType::path, "PATH", std::move(help)), field);
}
Option& OptionTable::list(std::string name, std::vector<std::string>* field, std::string help) {
  return bind_list(add(std::move(name), OptionType::list, "TEXT", std::move(help)), field);
}

Option& OptionTable::choice(std::string name, std::string* field, std::vector<std::string> choices, std::string help) {
  Option& option = add(std::move(name), OptionType::choice, "NAME", std::move(help));
  option.expected = one_of(choices);
  option.choices = std::move(choices);
  auto parse = [words = option.choices](std::string_view text) -> Result<std::string> {
    if (std::find(words.begin(), words.end(), text) == words.end()) return not_a_choice(text, words);
    return std::string(text);
  };
  return bind(option, field, parse, [](const Json& value) { return value.as_string(); });
}

Option& OptionTable::argument(std::string metavar, std::string* field, std::string help) {
  return optional_argument(std::move(metavar), field, std::move(help)).required();
}
Option& OptionTable::optional_argument(std::string metavar, std::string* field, std::string help) {
  Option& option = add(with_case(metavar, '-', std::tolower), OptionType::path, metavar, std::move(help));
  option.is_argument = true;
  return bind_path(option, field);
}
Option& OptionTable::arguments(std::string metavar, std::vector<std::string>* field, std::string help) {
  Option& option = add(with_case(metavar, '-', std::tolower), OptionType::path, metavar, std::move(help));
  option.is_argument = true;
  return bind_list(option, field);
}

const Option* OptionTable::find(std::string_view name) const {
  for (const Option& option : options_)
    if (option.name == name) return &option;
  return nullptr;
}
Option* OptionTable::find(std::string_view name) { return const_cast<Option*>(std::as_const(*this).find(name)); }
bool OptionTable::given(std::string_view name) const {
  const Option* option = find(name);
  return option != nullptr && option->origin != Origin::standard;
}

Json OptionTable::echo() const {
  Json::Object out;
  for (const Option& option : options_)
    if (!option.is_common) out.emplace_back(option.key(), option.get());
  return out;
}

std::string OptionTable::to_toml(std::string_view command) const {
  std::string out = "[";
  for (char c : command) out += c == ' ' ? '.' : c;
  out += "]\n";
  for (const Option& option : options_) {
    const Json value = option.get();
    const bool is_empty_path = option.type == OptionType::path && value.as_string().empty();
    if (option.is_common || option.is_argument || value.is_null() || is_empty_path) continue;
    out += option.key() + " = " + toml_value(value) + "\n";
  }
  return out;
}

}  // namespace llmops
