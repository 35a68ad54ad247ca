#include "base/json.h"

#include <fmt/format.h>

#include <cassert>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"

namespace llmops {
namespace {

// Hands the text to the parser byte by byte and tells everybody how far it is: SAX events carry no position.
struct Cursor {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  const char** reached;

  reference operator*() const { return *at; }
  Cursor& operator++() {
    *reached = ++at;
    return *this;
  }
  friend bool operator==(const Cursor& a, const Cursor& b) { return a.at == b.at; }
  friend bool operator!=(const Cursor& a, const Cursor& b) { return a.at != b.at; }
};

// "LINE:COLUMN: what" for the byte before `offset` (columns count bytes from 1).
Status error_at(std::string_view text, size_t offset, std::string_view what) {
  const std::string_view before = text.substr(0, std::min(offset > 0 ? offset - 1 : 0, text.size()));
  const size_t line = 1 + static_cast<size_t>(std::count(before.begin(), before.end(), '\n'));
  const size_t line_begin = before.rfind('\n');
  const size_t column = 1 + before.size() - (line_begin == std::string_view::npos ? 0 : line_begin + 1);
  return invalid_error(fmt::format("{}:{}: {}", line, column, escape_control(what)));
}

class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(std::string_view text, const JsonLimits& limits) : text_(text), limits_(limits), reached_(text.data()) {}
  Cursor begin() { return {text_.data(), &reached_}; }
  Cursor end() { return {text_.data() + text_.size(), &reached_}; }
  Json take() { return std::move(root_); }
  const Status& status() const { return status_; }

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(Json(static_cast<int64_t>(value))); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= static_cast<uint64_t>(INT64_MAX)) return add(Json(static_cast<int64_t>(value)));
    return add(Json(static_cast<uint64_t>(value)));
  }
  // Integers beyond 64 bits arrive here too: they become doubles, and is_integer() says so.
  bool number_float(number_float_t value, const string_t&) override { return add(Json(value)); }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t&) override { return fail("binary data"); }

  bool start_object(size_t) override { return open(Json::Object()); }
  bool start_array(size_t) override { return open(Json::Array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    Frame& frame = open_.back();
    if (!unique(frame, name)) return fail(fmt::format("duplicate key {}", json_quote(name)));
    frame.key = std::move(name);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: REASON"; other kinds: "[...] REASON".
    std::string_view what = error.what();
    const size_t bracket = what.find("] ");
    if (bracket != std::string_view::npos) what.remove_prefix(bracket + 2);
    const size_t colon = what.find(": ");
    if (what.starts_with("parse error at line") && colon != std::string_view::npos) what.remove_prefix(colon + 2);
    // The token that was being read, which may be the rest of the file, ends it: "...; last read: 'TOKEN'".
    constexpr size_t kShown = 160;
    const std::string cut = what.size() > kShown ? std::string(what.substr(0, kShown)) + "..." : std::string(what);
    status_ = error_at(text_, position, cut);
    return false;
  }

 private:
  struct Frame {
    Json value;
    std::string key;                 // of the member being read
    std::set<std::string> keys;      // all keys so far, once there are more than kKeysLinear
  };
  static constexpr size_t kKeysLinear = 16;

  bool fail(std::string_view what) {
    status_ = error_at(text_, static_cast<size_t>(reached_ - text_.data()), what);
    return false;
  }

  // Few keys are compared one by one; many go into an ordered set, which no choice of keys can make slow.
  static bool unique(Frame& frame, const std::string& name) {
    const Json::Object& members = frame.value.as_object();
    if (members.size() < kKeysLinear) return frame.value.find(name) == nullptr;
    if (frame.keys.empty())
      for (const auto& member : members) frame.keys.insert(member.first);
    return frame.keys.insert(name).second;
  }

  bool add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (Frame& frame = open_.back(); frame.value.is_array()) {
      frame.value.push_back(std::move(value));
    } else {
      frame.value.append(std::move(frame.key), std::move(value));
    }
    return true;
  }
  bool open(Json empty) {
    if (static_cast<int>(open_.size()) >= limits_.depth_max)
      return fail(fmt::format("nested deeper than {} levels", limits_.depth_max));
    open_.push_back({std::move(empty), {}, {}});
    return true;
  }
  bool close() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }

  std::string_view text_;
  JsonLimits limits_;
  const char* reached_;
  std::vector<Frame> open_;
  Json root_;
  Status status_;
};

void write_quoted(std::string& out, std::string_view text) {
  out += '"';
  for (const unsigned char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (c < 0x20)
          fmt::format_to(std::back_inserter(out), "\\u{:04x}", c);
        else
          out += static_cast<char>(c);
    }
  }
  out += '"';
}

}  // namespace

Result<Json> json_parse(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.bytes_max)
    return invalid_error(fmt::format("1:1: {} bytes of JSON, at most {} are read", text.size(), limits.bytes_max));
  if (text.starts_with("\xEF\xBB\xBF"))
    return error_at(text, 1, "a byte order mark (EF BB BF); JSON starts without one");
  // The parser takes a NUL byte for the end of the text.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) return error_at(text, nul + 1, "a NUL byte");
  try {
    Builder builder(text, limits);
    if (nlohmann::json::sax_parse(builder.begin(), builder.end(), &builder)) return builder.take();
    return builder.status();
  } catch (const nlohmann::json::exception& error) {
    return invalid_error(std::string("1:1: ") + escape_control(error.what()));
  }
}

std::string json_quote(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 2);
  if (utf8_valid(text))
    write_quoted(out, text);
  else
    write_quoted(out, utf8_repair(text));
  return out;
}

std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  if (value == 0) return std::signbit(value) ? "-0.0" : "0";  // "-0" would read back as the integer 0
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
  return std::string(digits, end);
}

}  // namespace llmops
