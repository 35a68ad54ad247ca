// Numbers from people and for people, and the nearest word.
#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace llmops {
namespace {

std::string quoted(std::string_view text) { return fmt::format("'{}'", escape_control(text)); }

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// A finite decimal number and nothing else; false when it is none or does not fit a double.
bool read_decimal(std::string_view text, double* value) {
  if (text.find_first_not_of("0123456789.eE+-") != text.npos) return false;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), *value);
  return end.ec == std::errc() && end.ptr == text.data() + text.size();
}

// The power a suffix stands for; 0 for an unknown one.
uint64_t byte_unit(std::string_view suffix) {
  if (suffix.ends_with('B')) suffix.remove_suffix(1);
  if (suffix.empty()) return 1;
  const size_t power = std::string_view("kMGT").find(suffix[0] == 'K' ? 'k' : suffix[0]);
  const bool binary = suffix.substr(1) == "i";
  if (power == std::string_view::npos || (suffix.size() > 1 && !binary)) return 0;
  uint64_t unit = 1;
  for (size_t i = 0; i <= power; ++i) unit *= binary ? 1024 : 1000;
  return unit;
}

}  // namespace

Result<int64_t> parse_int(std::string_view text, int64_t min, int64_t max) {
  int64_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value, 10);
  const bool whole = end.ptr == text.data() + text.size() && !text.empty();
  if (end.ec == std::errc::invalid_argument || !whole)
    return usage_error(fmt::format("{} is not a whole decimal number ({} to {} expected)", quoted(text), min, max));
  if (end.ec != std::errc() || value < min || value > max)
    return usage_error(fmt::format("{} is out of range ({} to {} expected)", quoted(text), min, max));
  return value;
}

Result<double> parse_double(std::string_view text, double min, double max) {
  double value = 0;
  if (!read_decimal(text, &value))
    return usage_error(fmt::format("{} is not a finite decimal number ({} to {} expected)", quoted(text), min, max));
  if (!(value >= min && value <= max))
    return usage_error(fmt::format("{} is out of range ({} to {} expected)", quoted(text), min, max));
  return value;
}

Result<int64_t> parse_bytes(std::string_view text) {
  constexpr size_t kDigitsMax = 18;  // of each part: with them every intermediate value fits 128 bits
  const auto wrong = [&](std::string_view why) {
    return usage_error(fmt::format("{} {} (a size such as 64, 10MB or 1.5GiB expected)", quoted(text), why));
  };
  const size_t number_end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view number = text.substr(0, number_end);
  const uint64_t unit = byte_unit(text.substr(number_end));
  const size_t point = std::min(number.find('.'), number.size());
  const std::string_view whole = number.substr(0, point);
  std::string_view fraction = number.substr(std::min(point + 1, number.size()));
  if (!all_digits(whole) || (point < number.size() && !all_digits(fraction))) return wrong("is not a size");
  if (unit == 0) return wrong("has an unknown unit");
  while (fraction.ends_with('0')) fraction.remove_suffix(1);
  const size_t leading_zeros = std::min(whole.find_first_not_of('0'), whole.size());
  if (fraction.size() > kDigitsMax) return wrong("has too many digits");
  if (whole.size() - leading_zeros > kDigitsMax + 1) return wrong("is too large");
  unsigned __int128 digits = 0, scale = 1;
  for (char c : whole) digits = digits * 10 + static_cast<unsigned>(c - '0');
  for (char c : fraction) digits = digits * 10 + static_cast<unsigned>(c - '0'), scale *= 10;
  unsigned __int128 scaled;
  if (__builtin_mul_overflow(digits, static_cast<unsigned __int128>(unit), &scaled)) return wrong("is too large");
  if (scaled % scale != 0) return wrong("is not a whole number of bytes");
  if (scaled / scale > static_cast<uint64_t>(INT64_MAX)) return wrong("is too large");
  return static_cast<int64_t>(scaled / scale);
}

Result<double> parse_duration(std::string_view text) {
  const Status wrong = usage_error(quoted(text) + " is not a duration (such as 90, 90s, 250ms, 10m, 1.5h, 2d or 1:30:00)");
  if (text.find(':') != text.npos) {
    const size_t first = text.find(':'), second = text.find(':', first + 1);
    if (second == text.npos)
      return usage_error(quoted(text) + " may be minutes or hours: write all three parts, such as 1:30:00");
    const std::string_view hours = text.substr(0, first), minutes = text.substr(first + 1, second - first - 1),
                           seconds = text.substr(second + 1);
    const bool shape = all_digits(hours) && hours.size() <= 9 && all_digits(minutes) && minutes.size() <= 2 &&
                       all_digits(seconds) && seconds.size() <= 2;
    if (!shape) return wrong;
    const int64_t h = *parse_int(hours, 0, INT64_MAX), m = *parse_int(minutes, 0, 99), s = *parse_int(seconds, 0, 99);
    if (m > 59 || s > 59) return usage_error(quoted(text) + " has more than 59 minutes or seconds");
    return static_cast<double>(h * 3600 + m * 60 + s);
  }
  const size_t number_end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view unit = text.substr(number_end);
  const double unit_s = unit.empty() || unit == "s" ? 1
                        : unit == "ms"              ? 1e-3
                        : unit == "m"               ? 60
                        : unit == "h"               ? 3600
                        : unit == "d"               ? 86400
                                                    : 0;
  double value = 0;
  if (unit_s == 0 || !read_decimal(text.substr(0, number_end), &value)) return wrong;
  return unit == "ms" ? value / 1000 : value * unit_s;
}

std::string format_bytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  if (std::abs(value) < 1024) return fmt::format("{} B", bytes);
  int unit = -1;
  while (std::abs(value) >= 1023.995) value /= 1024, ++unit;  // what would print as 1024.00 is 1.00 of the next
  return fmt::format("{:.2f} {}", value, kUnits[std::max(unit, 0)]);
}

std::string format_count(double count) {
  constexpr const char* kUnits[] = {"k", "M", "B", "T"};
  if (!std::isfinite(count)) return fmt::format("{}", count);
  if (std::abs(count) < 999.95) return count == std::floor(count) ? fmt::format("{:.0f}", count) : fmt::format("{:.1f}", count);
  int unit = -1;
  while (std::abs(count) >= 999.95 && unit < 3) count /= 1000, ++unit;
  return fmt::format("{:.1f} {}", count, kUnits[unit]);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds)) return fmt::format("{}", seconds);
  if (seconds < 0) return fmt::format("-{}", format_duration(-seconds));
  if (seconds < 0.9995e-6) return seconds == 0 ? "0 s" : fmt::format("{:.0f} ns", seconds * 1e9);
  if (seconds < 0.9995e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  if (seconds >= 1e15) return fmt::format("{:.3g} d", seconds / 86400);
  const int64_t s = std::llround(seconds), m = std::llround(seconds / 60), h = std::llround(seconds / 3600);
  if (s < 3600) return fmt::format("{} min {:02} s", s / 60, s % 60);
  if (m < 24 * 60) return fmt::format("{} h {:02} min", m / 60, m % 60);
  return fmt::format("{} d {:02} h", h / 24, h % 24);
}

std::string format_si(double value, int digits) {
  constexpr const char* kUnits[] = {"n", "u", "m", "", "k", "M", "G", "T", "P", "E"};
  if (!std::isfinite(value)) return fmt::format("{}", value);
  if (value == 0) return "0";
  // Round to the digits asked for first: 999.9996 k is 1.00 M.
  const std::string rounded = fmt::format("{:.{}e}", value, std::max(digits, 1) - 1);
  const int exponent = std::atoi(rounded.c_str() + rounded.find('e') + 1);
  const int group = std::clamp(static_cast<int>(std::floor(exponent / 3.0)), -3, 6);
  const int decimals = std::max(0, std::max(digits, 1) - 1 - (exponent - 3 * group));
  const std::string number = fmt::format("{:.{}f}", value / std::pow(10.0, 3 * group), decimals);
  return group == 0 ? number : number + " " + kUnits[group + 3];
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  // Optimal string alignment: insert, delete, change, swap neighbours. Further than a third of the word is another word.
  size_t best = std::max<size_t>(1, word.size() / 3) + 1;
  std::string found;
  for (const std::string& candidate : candidates) {
    const size_t n = word.size(), m = candidate.size();
    if (std::max(n, m) - std::min(n, m) >= best) continue;
    std::vector<size_t> before(m + 1), last(m + 1), row(m + 1);
    for (size_t j = 0; j <= m; ++j) last[j] = j;
    for (size_t i = 1; i <= n; ++i) {
      row[0] = i;
      for (size_t j = 1; j <= m; ++j) {
        row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (word[i - 1] != candidate[j - 1])});
        if (i > 1 && j > 1 && word[i - 1] == candidate[j - 2] && word[i - 2] == candidate[j - 1])
          row[j] = std::min(row[j], before[j - 2] + 1);
      }
      std::swap(before, last);
      std::swap(last, row);
    }
    if (last[m] < best) best = last[m], found = candidate;
  }
  return found;
}

}  // namespace llmops
