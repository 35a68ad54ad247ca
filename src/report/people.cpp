// Values as people read them.
#include <fmt/format.h>

#include <cctype>
#include <cmath>

#include "base/text.h"
#include "report/report.h"

namespace llmops {
namespace {

// "1.23 T" and "FLOP" are "1.23 TFLOP"; "456" and "FLOP" are "456 FLOP".
std::string with_prefix(double value, std::string_view unit) {
  std::string text = format_si(value);
  if (!std::isalpha(static_cast<unsigned char>(text.back()))) text += ' ';
  return text.append(unit);
}

// Below a second three digits, since steps and messages are compared by them.
std::string duration(double seconds) {
  return std::abs(seconds) < 1 ? with_prefix(seconds, "s") : format_duration(seconds);
}

std::string number_for_people(const Json& value, Unit unit, int digits) {
  const double x = value.as_double();
  switch (unit) {
    case Unit::none:
    case Unit::verdict: break;
    case Unit::count: return format_count(x);
    case Unit::bytes: return format_bytes(value.is_integer() ? value.as_int() : std::llround(x));
    case Unit::s: return duration(x);
    case Unit::ms: return duration(x * 1e-3);
    case Unit::us: return duration(x * 1e-6);
    case Unit::ratio: return fmt::format("{:.1f} %", x * 100);
    case Unit::flops: return with_prefix(x, "FLOP");
    case Unit::flops_per_s: return with_prefix(x, "FLOP/s");
    case Unit::bytes_per_s: return with_prefix(x, "B/s");
    case Unit::tokens_per_s: return format_si(x) + " tok/s";
  }
  return digits > 0 && !value.is_integer() ? fmt::format("{:.{}g}", x, digits) : value.dump();
}

}  // namespace

std::string for_people(const Json& value, Unit unit, int digits) {
  if (value.is_null()) return "-";
  if (value.is_bool()) return value.as_bool() ? "yes" : "no";
  if (value.is_string()) return escape_control(value.as_string());
  if (value.is_number())
    return std::isfinite(value.as_double()) ? number_for_people(value, unit, digits) : "not finite";
  if (value.is_object()) return escape_control(value.dump());
  std::string list;
  for (const Json& item : value.as_array()) list += (list.empty() ? "" : ", ") + for_people(item, unit, digits);
  return list.empty() ? "none" : list;
}

}  // namespace llmops
