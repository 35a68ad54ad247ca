// A result as typed rows and a key-value summary, rendered for people (table, md: numbers with units) or for machines
// (json, jsonl, csv: raw numbers, the unit in the key). A row is a JSON object; machines get it whole, people get the
// columns.
//
//   Report report{{"size_bytes", "size", Unit::bytes}, {"time_us", "time", Unit::us}, {"op", "op"}};
//   report.row({4096, 12.5, "all_reduce"});
//   report.summary({"bus_bytes_per_s", "bus bandwidth", Unit::bytes_per_s}, 2.1e9);
//   report.note("4 ranks, local");
//   return context.print(report);
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "report/output.h"

namespace llmops {

enum class Format : uint8_t { table, json, jsonl, csv, md };

// What a number counts; the machine's key says it too ("step_ms", "size_bytes", "mfu").
enum class Unit : uint8_t {
  none,   // text and bools as they are; numbers as they are, or with `digits` significant digits
  count,  // 124439808 -> 124.4 M
  bytes,  // 1610612736 -> 1.50 GiB
  s,
  ms,
  us,            // a duration held in that unit
  ratio,         // 0.413 -> 41.3 %
  flops,         // 1.2e12 -> 1.2 TFLOP
  flops_per_s,   // -> TFLOP/s
  bytes_per_s,   // -> GB/s (powers of ten, as links and memories are sold)
  tokens_per_s,  // -> 12.3 k tok/s
  verdict,       // "ok" and "pass" green, other text red, on a colour terminal
};

struct Column {
  std::string key;    // json, jsonl, csv: snake_case, unit last
  std::string title;  // table, md; empty: for machines only
  Unit unit = Unit::none;
  int digits = 0;  // Unit::none: significant digits for people (0: the shortest exact text)
};

// The value as people read it; null is "-", control characters are escaped.
std::string for_people(const Json& value, Unit unit, int digits = 0);

class Report {
 public:
  Report() = default;
  Report(std::initializer_list<Column> columns) : columns_(columns) {}
  explicit Report(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void row(std::vector<Json> cells);  // one per column, in order
  void record(Json object);           // a row with its own keys; columns pick theirs by key, absent ones are "-"
  void summary(Column what, Json value);
  void note(std::string text);              // a remark for people; "notes" in json
  void extra(std::string key, Json value);  // json and jsonl only, beside the summary ("options", "env")

  const std::vector<Column>& columns() const { return columns_; }
  const std::vector<Json>& rows() const { return rows_; }

 private:
  friend class ReportWriter;
  struct Fact {
    Column what;
    Json value;
  };
  std::vector<Column> columns_;
  std::vector<Json> rows_;
  std::vector<Fact> facts_;
  std::vector<std::string> notes_;
  Json::Object extras_;
};

// Writes rows as they come (a training run, a batch of prompts), then the summary.
//   json  {"results": [rows], summary keys, "notes": [...]}; without columns and rows no "results"
//   jsonl a line per row; then {"summary": {...}} when there are rows, or the bare object when there are none
//   csv   RFC 4180 but for line ends of one LF: keys, rows; without columns the summary as one row
//   md    a pipe table, then a list
//   table aligned columns; streamed rows use the widths of titles and `width_min`, a whole Report its own cells'
class ReportWriter {
 public:
  ReportWriter(Output& out, Format format, bool colour) : out_(out), format_(format), colour_(colour) {}
  Status begin(const std::vector<Column>& columns, int width_min = 9);
  Status row(std::vector<Json> cells);
  Status record(const Json& object);
  Status end(const Report& rest);     // summary, notes and extras of `rest`; its rows are written too
  Status write(const Report& whole);  // begin, every row, end

 private:
  bool for_people() const { return format_ == Format::table || format_ == Format::md; }
  Status header(const Json& first);
  Status tail_json(const Report& rest);
  Status tail_people(const Report& rest);
  Status csv_summary(const Report& rest);
  std::string table_line(const std::vector<std::string>& cells, const Json* record) const;

  Output& out_;
  Format format_;
  bool colour_;
  bool has_rows_ = false;  // a list of results belongs to this report, though it may be empty
  bool has_header_ = false;
  std::vector<Column> declared_;  // of row()
  std::vector<Column> columns_;   // shown: all for machines, those with a title for people
  std::vector<int> widths_;
  std::vector<bool> right_;
  int64_t rows_ = 0;
};

}  // namespace llmops
