#include "data/records.h"

#include <fmt/format.h>

#include <cstring>

#include "base/text.h"

namespace llmops {

namespace {
constexpr size_t kChunkBytes = size_t{1} << 18;
}

// Reads on behind what is buffered; false at the end of the input.
Result<bool> LineReader::fill() {
  if (at_end_) return false;
  buffer_.erase(0, begin_);
  begin_ = 0;
  const size_t held = buffer_.size();
  buffer_.resize(held + kChunkBytes);
  auto got = input_.read(std::span(buffer_).subspan(held));
  buffer_.resize(held + (got.ok() ? *got : 0));
  if (!got.ok()) return got.status();
  at_end_ = *got == 0;
  return !at_end_;
}

Result<bool> LineReader::next(std::string_view* line, bool* too_long) {
  *too_long = false;
  size_t searched = 0;
  const char* newline = nullptr;
  for (;;) {
    const char* begin = buffer_.data() + begin_;
    const size_t held = buffer_.size() - begin_;
    if (held > searched) newline = static_cast<const char*>(std::memchr(begin + searched, '\n', held - searched));
    if (newline) break;
    searched = held;
    if (held > line_bytes_max_) {  // keep the head only, so that an endless line needs no endless memory
      *too_long = true;
      buffer_.resize(begin_ + line_bytes_max_);
      searched = line_bytes_max_;
    }
    LLMOPS_ASSIGN(const bool more, fill());
    if (!more) break;
  }
  const size_t held = buffer_.size() - begin_;
  if (!newline && held == 0) return false;
  const size_t bytes = newline ? static_cast<size_t>(newline - (buffer_.data() + begin_)) : held;
  *line = std::string_view(buffer_).substr(begin_, bytes);
  begin_ += bytes + (newline ? 1 : 0);
  ++line_number_;
  if (line->ends_with('\r')) line->remove_suffix(1);
  if (line->size() > line_bytes_max_) *too_long = true;
  *line = line->substr(0, line_bytes_max_);
  return true;
}

Result<Json> parse_record(std::string_view line, const RecordOptions& options) {
  auto json = json_parse(line, {options.depth_max, options.line_bytes_max});
  if (!json.ok()) {  // "1:COLUMN: what": the line of a record is that of its file
    const std::string& what = json.status().message();
    return Status(json.status().code(), what.starts_with("1:") ? "column " + what.substr(2) : what);
  }
  if (!json->is_object()) {
    const std::string found = json->dump();
    return invalid_error(fmt::format("found {}, expected a JSON object", escape_control(found.substr(0, 40))));
  }
  return json;
}

Result<RecordReader> RecordReader::open(const std::string& path, const RecordOptions& options) {
  LLMOPS_ASSIGN(Input input, Input::open(path));
  return RecordReader(std::move(input), options);
}

Result<std::optional<Record>> RecordReader::next() {
  std::string_view line;
  bool too_long = false;
  do {
    LLMOPS_ASSIGN(const bool found, lines_.next(&line, &too_long));
    if (!found) return std::optional<Record>();
  } while (line.find_first_not_of(" \t\r") == std::string_view::npos);
  Record record;
  record.line = lines_.line_number();
  Result<Json> json = too_long ? invalid_error(fmt::format("longer than {} bytes", options_.line_bytes_max))
                               : parse_record(line, options_);
  if (json.ok()) {
    ++records_;
    record.json = json.take();
    return std::optional<Record>(std::move(record));
  }
  ++malformed_;
  record.status = json.status().in(fmt::format("{}:{}", lines_.input().path(), record.line));
  if (!options_.keep_going) return record.status;
  return std::optional<Record>(std::move(record));
}

}  // namespace llmops
