#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#define TOML_ASSERT(expr) static_assert(true)  // one fails on a newline after "[", which is then reported as an error
#include "base/toml.h"

#include <toml++/toml.h>

#include <algorithm>

#include "base/text.h"

namespace llmops {
namespace {

constexpr size_t kBytesMax = size_t{1} << 20;
constexpr int kKeyDepthMax = 64;

Status error_at(int line, int column, const std::string& what) {
  return usage_error(std::to_string(line) + ":" + std::to_string(column) + ": " + what);
}

// toml++ 3.3.0 recurses once per part of a dotted key, and 200,000 parts overflow the stack, so long keys are refused
// before it sees them. Dots are counted between the characters that end a key or a value, outside strings and comments.
Status check_key_depth(std::string_view text) {
  int line = 1, dots = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"' || c == '\'') {
      const std::string_view triple = c == '"' ? "\"\"\"" : "'''";
      const bool is_multi_line = text.substr(i, 3) == triple;
      const std::string_view end = is_multi_line ? triple : triple.substr(0, 1);
      for (i += end.size(); i < text.size() && text.substr(i, end.size()) != end; ++i) {
        if (text[i] == '\n' && (++line, !is_multi_line)) break;
        if (text[i] == '\\' && c == '"') ++i;
      }
      i += end.size() - 1;
    } else if (c == '#') {
      while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
    } else if (c == '.') {
      if (++dots >= kKeyDepthMax) return error_at(line, 1, "found a key of more than 64 parts");
    } else if (c == '\n' || c == '=' || c == ',' || c == '[' || c == '{') {
      dots = 0;
      line += c == '\n';
    }
  }
  return {};
}

int line_of(const toml::source_region& place) { return static_cast<int>(place.begin.line); }
int column_of(const toml::source_region& place) { return static_cast<int>(place.begin.column); }

Result<Json> to_json(const toml::node& node) {
  if (auto v = node.as_boolean()) return Json(v->get());
  if (auto v = node.as_integer()) return Json(int64_t{v->get()});
  if (auto v = node.as_floating_point()) return Json(v->get());
  if (auto v = node.as_string()) return Json(std::string(v->get()));
  if (auto list = node.as_array()) {
    Json::Array items;
    for (const toml::node& item : *list) {
      LLMOPS_ASSIGN(Json value, to_json(item));
      items.push_back(std::move(value));
    }
    return Json(std::move(items));
  }
  return error_at(line_of(node.source()), column_of(node.source()),
                  node.is_table() ? "found a table in an array, expected a plain value"
                                  : "found a date or time, expected a number, a string, true, false or an array");
}

Status flatten(const toml::table& table, const std::vector<std::string>& parent, std::vector<TomlEntry>& out) {
  for (const auto& [key, node] : table) {
    TomlEntry entry{.path = parent, .line = line_of(key.source()), .column = column_of(key.source())};
    entry.path.push_back(std::string(key.str()));
    if (const toml::table* inner = node.as_table()) {
      entry.is_table = true;
      const std::vector<std::string> path = entry.path;
      out.push_back(std::move(entry));
      LLMOPS_TRY(flatten(*inner, path, out));
    } else {
      LLMOPS_ASSIGN(entry.value, to_json(node));
      out.push_back(std::move(entry));
    }
  }
  return {};
}

}  // namespace

Result<std::vector<TomlEntry>> toml_parse(std::string_view text) {
  if (text.size() > kBytesMax)
    return usage_error("found " + format_bytes(static_cast<int64_t>(text.size())) + ", expected at most 1 MiB");
  LLMOPS_TRY(check_key_depth(text));
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return error_at(line_of(error.source()), column_of(error.source()), escape_control(error.description()));
  }
  std::vector<TomlEntry> entries;
  LLMOPS_TRY(flatten(parsed.table(), {}, entries));
  std::stable_sort(entries.begin(), entries.end(), [](const TomlEntry& a, const TomlEntry& b) {
    return std::pair(a.line, a.column) < std::pair(b.line, b.column);
  });
  return entries;
}

}  // namespace llmops
