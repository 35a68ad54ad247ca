// TOML in, as a flat list of entries with their places, so that an unknown key can be refused at line and column
// (llmops.toml, plan.toml). toml++ is included by toml.cpp alone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace llmops {

struct TomlEntry {
  std::vector<std::string> path;  // {"train", "steps"}
  bool is_table = false;          // a [table], an inline table, or the parent of a dotted key; it has no value
  Json value;                     // bool, integer, double, string, or an array of such
  int line = 0, column = 0;       // of the key, from 1
};

// In the order of the text, a table before its keys. Code::usage with "line:column: what was found" when it is no TOML.
// At most 1 MiB, key depth 64. Dates, and tables inside arrays, are refused: nothing here needs them.
Result<std::vector<TomlEntry>> toml_parse(std::string_view text);

}  // namespace llmops
