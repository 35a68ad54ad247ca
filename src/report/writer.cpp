#include <algorithm>

#include "base/text.h"
#include "report/report.h"

namespace llmops {
namespace {

constexpr std::string_view kBold = "\x1b[1m", kGreen = "\x1b[32m", kRed = "\x1b[31m", kPlain = "\x1b[0m";

// RFC 4180 quoting. A text that a spreadsheet would run as a formula gets an apostrophe in front, which spreadsheets
// drop.
std::string csv_cell(const Json& value) {
  if (value.is_null()) return "";
  std::string text = value.is_string() ? utf8_repair(value.as_string()) : value.dump();
  if (value.is_string() && !text.empty() && std::string_view("=+-@\t\r").find(text[0]) != std::string_view::npos)
    text.insert(0, "'");
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (char c : text) quoted.append(c == '"' ? 2 : 1, c);
  return quoted + '"';
}

std::string md_text(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '|') out += "\\|";
    else if (c == '<') out += "&lt;";
    else out += c;
  }
  return out;
}

std::string padded(const std::string& text, int width, bool right) {
  const std::string blanks(static_cast<size_t>(std::max(0, width - display_width(text))), ' ');
  return right ? blanks + text : text + blanks;
}

std::string in_colour(std::string_view colour, const std::string& text) {
  return std::string(colour) + text + std::string(kPlain);
}

std::string_view verdict_colour(const Json& value) {
  const std::string& verdict = value.as_string();
  return verdict == "ok" || verdict == "pass" || verdict == "passed" ? kGreen : kRed;
}

std::string joined(const std::vector<std::string>& parts, std::string_view between) {
  std::string out;
  for (const std::string& part : parts) out.append(&part == parts.data() ? "" : between).append(part);
  return out;
}

Json cell(const Json& record, const std::string& key) {
  const Json* found = record.find(key);
  return found == nullptr ? Json() : *found;
}

}  // namespace

Status ReportWriter::begin(const std::vector<Column>& columns, int width_min) {
  has_rows_ = true;
  declared_ = columns;
  for (const Column& column : columns) {
    if (for_people() && column.title.empty()) continue;
    columns_.push_back(column);
    widths_.push_back(std::max(width_min, display_width(column.title)));
  }
  return {};
}

Status ReportWriter::row(std::vector<Json> cells) {
  Report one(declared_);
  one.row(std::move(cells));
  return record(one.rows().front());
}

Status ReportWriter::record(const Json& object) {
  has_rows_ = true;
  ++rows_;
  if (format_ == Format::jsonl) return out_.write(object.dump() + "\n");
  if (format_ == Format::json)
    return out_.write((rows_ == 1 ? "{\n  \"results\": [\n    " : ",\n    ") + object.dump());
  LLMOPS_TRY(header(object));
  std::vector<std::string> cells;
  for (const Column& column : columns_) {
    const Json value = cell(object, column.key);
    cells.push_back(format_ == Format::csv ? csv_cell(value) : llmops::for_people(value, column.unit, column.digits));
  }
  if (format_ == Format::csv) return out_.write(joined(cells, ",") + "\n");
  if (format_ == Format::table) return out_.write(table_line(cells, &object));
  for (std::string& text : cells) text = md_text(text);
  return out_.write("| " + joined(cells, " | ") + " |\n");
}

// Written before the first row, which decides where numbers stand: on the right.
Status ReportWriter::header(const Json& first) {
  if (std::exchange(has_header_, true)) return {};
  if (columns_.empty())
    for (const auto& [key, value] : first.as_object()) {
      columns_.push_back({key, key});
      widths_.push_back(display_width(key));
    }
  std::vector<std::string> titles;
  for (const Column& column : columns_) {
    const Json value = cell(first, column.key);
    right_.push_back(value.is_number() ||
                     (!value.is_string() && column.unit != Unit::none && column.unit != Unit::verdict));
    titles.push_back(format_ == Format::csv ? column.key : column.title);
  }
  if (titles.empty()) return {};
  if (format_ == Format::csv) return out_.write(joined(titles, ",") + "\n");
  if (format_ == Format::table) return out_.write(table_line(titles, nullptr));
  std::string rule = "|";
  for (bool right : right_) rule += right ? " ---: |" : " --- |";
  for (std::string& title : titles) title = md_text(title);
  return out_.write("| " + joined(titles, " | ") + " |\n" + rule + "\n");
}

// `record` is the row that the cells were made from; null for the titles.
std::string ReportWriter::table_line(const std::vector<std::string>& cells, const Json* record) const {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    const bool is_last_left = i + 1 == cells.size() && !right_[i];  // no blanks at the end of a line
    std::string text = is_last_left ? cells[i] : padded(cells[i], widths_[i], right_[i]);
    if (colour_ && record == nullptr) text = in_colour(kBold, text);
    if (colour_ && record != nullptr && columns_[i].unit == Unit::verdict)
      text = in_colour(verdict_colour(cell(*record, columns_[i].key)), text);
    line += (i == 0 ? "" : "  ") + text;
  }
  return line + "\n";
}

Status ReportWriter::end(const Report& rest) {
  for (const Json& row : rest.rows_) LLMOPS_TRY(record(row));
  if (format_ == Format::json || format_ == Format::jsonl) return tail_json(rest);
  if (has_rows_) LLMOPS_TRY(header({}));
  if (format_ == Format::csv) return has_rows_ ? Status() : csv_summary(rest);
  return tail_people(rest);
}

Status ReportWriter::tail_json(const Report& rest) {
  Json::Object tail;
  for (const auto& fact : rest.facts_) tail.emplace_back(fact.what.key, fact.value);
  for (const auto& extra : rest.extras_) tail.push_back(extra);
  if (!rest.notes_.empty()) tail.emplace_back("notes", Json::Array(rest.notes_.begin(), rest.notes_.end()));
  if (format_ == Format::jsonl) {
    if (!has_rows_) return out_.write(Json(tail).dump() + "\n");
    if (tail.empty()) return {};
    return out_.write(Json(Json::Object{{"summary", Json(tail)}}).dump() + "\n");
  }
  std::string text;
  if (has_rows_) text = rows_ == 0 ? "{\n  \"results\": []" : "\n  ]";
  for (const auto& [key, value] : tail) {
    text += text.empty() ? "{\n  " : ",\n  ";
    text += json_quote(key) + ": " + value.dump();
  }
  return out_.write(text + (text.empty() ? "{}\n" : "\n}\n"));
}

Status ReportWriter::csv_summary(const Report& rest) {
  std::vector<std::string> keys, values;
  for (const auto& fact : rest.facts_) {
    keys.push_back(fact.what.key);
    values.push_back(csv_cell(fact.value));
  }
  return out_.write(joined(keys, ",") + "\n" + joined(values, ",") + "\n");
}

Status ReportWriter::tail_people(const Report& rest) {
  int width = 0;
  for (const auto& fact : rest.facts_) width = std::max(width, display_width(fact.what.title));
  std::string text;
  for (const auto& [what, value] : rest.facts_) {
    if (what.title.empty()) continue;
    const std::string shown = llmops::for_people(value, what.unit, what.digits);
    text += format_ == Format::md ? "- " + md_text(what.title) + ": " + md_text(shown)
                                  : padded(what.title, width, false) + "  " + shown;
    text += '\n';
  }
  if (!rest.notes_.empty() && !text.empty()) text += '\n';
  for (const std::string& note : rest.notes_) text += escape_control(note) + "\n";
  return text.empty() ? Status() : out_.write((rows_ > 0 ? "\n" : "") + text);
}

Status ReportWriter::write(const Report& whole) {
  if (!whole.columns_.empty()) LLMOPS_TRY(begin(whole.columns_, 0));
  if (format_ == Format::table)
    for (size_t i = 0; i < columns_.size(); ++i)
      for (const Json& row : whole.rows_) {
        const std::string text = llmops::for_people(cell(row, columns_[i].key), columns_[i].unit, columns_[i].digits);
        widths_[i] = std::max(widths_[i], display_width(text));
      }
  return end(whole);
}

}  // namespace llmops
