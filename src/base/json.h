// JSON in and out. The reader (nlohmann's SAX parser, included by json.cpp alone) guards depth and duplicate keys and keeps
// integers of 64 bits exact (larger ones become doubles); the writer prints the shortest text that reads back to the same number, keeps key order, and writes
// valid UTF-8 always.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"

namespace llmops {

class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;  // in the order of the text

  Json() = default;  // null
  Json(bool b) : value_(b) {}
  Json(int i) : value_(int64_t{i}) {}
  Json(int64_t i) : value_(i) {}
  Json(uint64_t u) : value_(u) {}
  Json(double d) : value_(d) {}
  Json(std::string s) : value_(std::move(s)) {}
  Json(std::string_view s) : value_(std::string(s)) {}
  Json(const char* s) : value_(std::string(s)) {}
  Json(Array a) : value_(std::move(a)) {}
  Json(Object o) : value_(std::move(o)) {}

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const;  // int64 or uint64
  bool is_number() const;
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }

  // The value, or `fallback` when it is of another kind (integers outside the range of int64 count as another kind).
  bool as_bool(bool fallback = false) const;
  int64_t as_int(int64_t fallback = 0) const;
  double as_double(double fallback = 0) const;
  const std::string& as_string() const;  // empty for another kind
  const Array& as_array() const;         // empty for another kind
  const Object& as_object() const;       // empty for another kind

  const Json* find(std::string_view key) const;  // nullptr: absent, or not an object
  Json& operator[](std::string_view key);        // object (or null) only: finds or appends
  Json& append(std::string key, Json value);     // object (or null) only: a key known to be new, without the search
  void push_back(Json item);                     // array (or null) only

  // Compact, or indented by `indent` spaces. Non-finite doubles are written as null.
  std::string dump(int indent = -1) const;

 private:
  friend struct JsonWriter;
  std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, Array, Object> value_;
};

struct JsonLimits {
  int depth_max = 64;
  size_t bytes_max = size_t{1} << 30;
};
// Code::invalid with "line:column: what was found" otherwise. Duplicate keys, trailing text, a BOM and invalid UTF-8 are errors.
Result<Json> json_parse(std::string_view text, const JsonLimits& limits = {});

// The text as a JSON string with quotes; invalid UTF-8 becomes U+FFFD.
std::string json_quote(std::string_view text);
// Shortest decimal that reads back to the same double ("null" when not finite).
std::string json_number(double value);

}  // namespace llmops
