// llmops.toml: a table per command, common options also at the top level.
//   format = "json"
//   [train]
//   steps = 50
//   [ckpt.verify]
#include <fcntl.h>
#include <unistd.h>

#include <cmath>

#include "base/io.h"
#include "base/text.h"
#include "base/toml.h"
#include "cmds/invocation.h"

namespace llmops {
namespace {

std::string joined(const std::vector<std::string>& path, size_t count, char between) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += (i == 0 ? "" : std::string(1, between)) + path[i];
  return out;
}

Status unknown(const std::string& kind, const std::string& name, const std::vector<std::string>& known) {
  return usage_error("found the unknown " + kind + " '" + escape_control(name) + "'" + did_you_mean(name, known));
}

std::vector<std::string> keys_of(const OptionTable& table) {
  std::vector<std::string> keys;
  for (const Option& option : table.options())
    if (!option.is_argument && option.name != "help" && option.name != "config") keys.push_back(option.key());
  return keys;
}

Status check_key(const std::string& key, const OptionTable& table) {
  const std::vector<std::string> keys = keys_of(table);
  for (const std::string& known : keys)
    if (known == key) return {};
  return unknown("key", key, keys);
}

// Is this a table of a command (or the noun of one), or a key of it?
Status check_entry(const TomlEntry& entry) {
  if (entry.is_table) {
    const std::string name = joined(entry.path, entry.path.size(), ' ');
    if (find_command(name) != nullptr || is_noun(name)) return {};
    std::vector<std::string> tables = command_words("");
    for (const Command& command : commands()) {
      tables.push_back(command.text.name);
      for (char& c : tables.back()) c = c == ' ' ? '.' : c;
    }
    return unknown("table", joined(entry.path, entry.path.size(), '.'), tables);
  }
  const std::string& key = entry.path.back();
  if (entry.path.size() == 1) {
    CommonOptions common;
    OptionTable table;
    declare_common(common, table);
    return check_key(key, table);
  }
  const std::string name = joined(entry.path, entry.path.size() - 1, ' ');
  const Command* command = find_command(name);
  if (command == nullptr && find_command(name + " " + key) != nullptr)
    return usage_error("found the key '" + key + "', expected the table [" +
                       joined(entry.path, entry.path.size(), '.') + "]");
  if (command == nullptr) return unknown("key", key, command_words(name));
  return check_key(key, Invocation(*command).table);
}

std::string text_of(const Json& value) {
  if (value.is_string()) return value.as_string();
  if (value.is_number() && !std::isfinite(value.as_double())) return std::isnan(value.as_double()) ? "nan" : "inf";
  return value.dump();
}

Status set_from(Option& option, const TomlEntry& entry) {
  if (!entry.value.is_array()) return option.set(text_of(entry.value));
  if (!option.is_many) return usage_error("found an array, expected one value");
  for (const Json& item : entry.value.as_array()) LLMOPS_TRY(option.set(text_of(item)));
  return {};
}

}  // namespace

Status read_config(OptionTable& table, std::string_view command, const std::string& path) {
  const std::string file = path.empty() ? "llmops.toml" : path;
  if (path.empty() && ::access(file.c_str(), F_OK) != 0) return {};
  const Result<std::string> text = read_file(file, int64_t{1} << 20);
  // A configuration that cannot be used is a usage error; one that cannot be read stays an I/O error.
  if (!text.ok())
    return {text.status().code() == Code::invalid ? Code::usage : text.status().code(), text.status().message()};
  const Result<std::vector<TomlEntry>> entries = toml_parse(*text);
  const std::string shown = escape_control(file);
  if (!entries.ok()) return Status(Code::usage, shown + ":" + entries.status().message());
  for (const bool of_command : {true, false})  // the command's own table beats the top level
    for (const TomlEntry& entry : *entries) {
      const std::string place = shown + ":" + std::to_string(entry.line) + ":" + std::to_string(entry.column);
      LLMOPS_TRY(check_entry(entry).in(place));
      if (entry.is_table || joined(entry.path, entry.path.size() - 1, ' ') != (of_command ? command : "")) continue;
      for (Option& option : table.options()) {
        if (option.is_argument || option.key() != entry.path.back() || option.origin != Origin::standard) continue;
        LLMOPS_TRY(set_from(option, entry).in(place + ": " + option.key()));
        option.origin = Origin::config;
        option.origin_text = place;
      }
    }
  return {};
}

}  // namespace llmops
