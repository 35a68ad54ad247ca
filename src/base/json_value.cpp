// The JSON value and its writer; free of the parser, so that a change here builds fast.
#include <cassert>
#include <cstdint>

#include "base/json.h"

namespace llmops {
namespace {

void new_line(std::string& out, int indent, int depth) {
  if (indent < 0) return;
  out += '\n';
  out.append(static_cast<size_t>(indent) * depth, ' ');
}

void write(std::string& out, const Json& value, int indent, int depth);

void write_array(std::string& out, const Json::Array& items, int indent, int depth) {
  out += '[';
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ',';
    new_line(out, indent, depth + 1);
    write(out, items[i], indent, depth + 1);
  }
  if (!items.empty()) new_line(out, indent, depth);
  out += ']';
}

void write_object(std::string& out, const Json::Object& members, int indent, int depth) {
  out += '{';
  for (size_t i = 0; i < members.size(); ++i) {
    if (i > 0) out += ',';
    new_line(out, indent, depth + 1);
    out += json_quote(members[i].first);
    out += indent < 0 ? ":" : ": ";
    write(out, members[i].second, indent, depth + 1);
  }
  if (!members.empty()) new_line(out, indent, depth);
  out += '}';
}

}  // namespace

struct JsonWriter {
  std::string& out;
  int indent, depth;
  void operator()(std::monostate) const { out += "null"; }
  void operator()(bool b) const { out += b ? "true" : "false"; }
  void operator()(int64_t i) const { out += std::to_string(i); }
  void operator()(uint64_t u) const { out += std::to_string(u); }
  void operator()(double d) const { out += json_number(d); }
  void operator()(const std::string& s) const { out += json_quote(s); }
  void operator()(const Json::Array& a) const { write_array(out, a, indent, depth); }
  void operator()(const Json::Object& o) const { write_object(out, o, indent, depth); }
  static void visit(const JsonWriter& writer, const Json& value) { std::visit(writer, value.value_); }
};

namespace {
void write(std::string& out, const Json& value, int indent, int depth) {
  JsonWriter::visit({out, indent, depth}, value);
}
}  // namespace

bool Json::is_integer() const {
  return std::holds_alternative<int64_t>(value_) || std::holds_alternative<uint64_t>(value_);
}

bool Json::is_number() const { return is_integer() || std::holds_alternative<double>(value_); }

bool Json::as_bool(bool fallback) const {
  const bool* b = std::get_if<bool>(&value_);
  return b ? *b : fallback;
}

int64_t Json::as_int(int64_t fallback) const {
  if (const int64_t* i = std::get_if<int64_t>(&value_)) return *i;
  const uint64_t* u = std::get_if<uint64_t>(&value_);
  return u && *u <= static_cast<uint64_t>(INT64_MAX) ? static_cast<int64_t>(*u) : fallback;
}

double Json::as_double(double fallback) const {
  if (const double* d = std::get_if<double>(&value_)) return *d;
  if (const int64_t* i = std::get_if<int64_t>(&value_)) return static_cast<double>(*i);
  if (const uint64_t* u = std::get_if<uint64_t>(&value_)) return static_cast<double>(*u);
  return fallback;
}

const std::string& Json::as_string() const {
  static const std::string empty;
  const auto* s = std::get_if<std::string>(&value_);
  return s ? *s : empty;
}

const Json::Array& Json::as_array() const {
  static const Array empty;
  const auto* a = std::get_if<Array>(&value_);
  return a ? *a : empty;
}

const Json::Object& Json::as_object() const {
  static const Object empty;
  const auto* o = std::get_if<Object>(&value_);
  return o ? *o : empty;
}

const Json* Json::find(std::string_view key) const {
  for (const auto& member : as_object())
    if (member.first == key) return &member.second;
  return nullptr;
}

Json& Json::operator[](std::string_view key) {
  if (const Json* found = find(key)) return const_cast<Json&>(*found);
  return append(std::string(key), Json());
}

Json& Json::append(std::string key, Json value) {
  assert(is_null() || is_object());
  if (!is_object()) value_ = Object();
  return std::get_if<Object>(&value_)->emplace_back(std::move(key), std::move(value)).second;
}

void Json::push_back(Json item) {
  assert(is_null() || is_array());
  if (!is_array()) value_ = Array();
  std::get_if<Array>(&value_)->push_back(std::move(item));
}

std::string Json::dump(int indent) const {
  std::string out;
  write(out, *this, indent, 0);
  return out;
}

}  // namespace llmops
