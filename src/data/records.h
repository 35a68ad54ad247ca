// JSON lines: one JSON object a line, from a file (plain, .gz, .zst) or stdin. Used for data sets and for requests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"
#include "data/input.h"

namespace llmops {

// Lines of bounded length without their "\n" (or "\r\n"); the last line needs no newline.
class LineReader {
 public:
  LineReader(Input input, size_t line_bytes_max) : input_(std::move(input)), line_bytes_max_(line_bytes_max) {}
  // False at the end. The view is valid until the next call. Of a longer line *line has the first line_bytes_max bytes,
  // *too_long is set and the rest is skipped.
  Result<bool> next(std::string_view* line, bool* too_long);
  int64_t line_number() const { return line_number_; }  // of the line last returned, from 1
  const Input& input() const { return input_; }

 private:
  Result<bool> fill();
  Input input_;
  size_t line_bytes_max_;
  std::string buffer_;
  size_t begin_ = 0;
  int64_t line_number_ = 0;
  bool at_end_ = false;
};

struct RecordOptions {
  size_t line_bytes_max = size_t{64} << 20;
  int depth_max = 64;
  bool keep_going = false;  // a malformed line is a Record with a failed status; else it ends the reading
};

struct Record {
  int64_t line = 0;  // from 1
  Status status;     // not ok: "FILE:LINE: what was found", and json is null
  Json json;         // an object
};

class RecordReader {
 public:
  static Result<RecordReader> open(const std::string& path, const RecordOptions& options = {});
  RecordReader(Input input, const RecordOptions& options)
      : lines_(std::move(input), options.line_bytes_max), options_(options) {}
  // The next record, blank lines skipped; nullopt at the end.
  Result<std::optional<Record>> next();
  int64_t records() const { return records_; }      // well-formed ones so far
  int64_t malformed() const { return malformed_; }  // so far

 private:
  LineReader lines_;
  RecordOptions options_;
  int64_t records_ = 0, malformed_ = 0;
};

// One line as a JSON object. Errors name neither file nor line.
Result<Json> parse_record(std::string_view line, const RecordOptions& options);

}  // namespace llmops
