#include "base/text.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>

using namespace llmops;

TEST_CASE("parse_int: decimal, whole text, in range") {
  CHECK(*parse_int("0", 0, 10) == 0);
  CHECK(*parse_int("-12", -100, 100) == -12);
  CHECK(*parse_int("010", 0, 100) == 10);  // decimal, never octal
  CHECK(*parse_int("9223372036854775807", INT64_MIN, INT64_MAX) == INT64_MAX);
  CHECK(*parse_int("-9223372036854775808", INT64_MIN, INT64_MAX) == INT64_MIN);
  for (const char* bad : {"", "+1", " 1", "1 ", "0x10", "1e3", "1.0", "-", "--1", "1k", "one", "1\n"})
    CHECK_MESSAGE(parse_int(bad, INT64_MIN, INT64_MAX).status().code() == Code::usage, bad);
  CHECK(parse_int("9223372036854775808", 0, INT64_MAX).status().code() == Code::usage);
  CHECK(parse_int("-1", 1, 64).status().message() == "'-1' is out of range (1 to 64 expected)");
  CHECK(parse_int("x\x1b[2J", 1, 64).status().message() ==
        "'x\\x1b[2J' is not a whole decimal number (1 to 64 expected)");
  CHECK_FALSE(parse_int(std::string_view("1\0", 2), 0, 9).ok());
}

TEST_CASE("parse_double: finite decimals only") {
  CHECK(*parse_double("0.5", 0, 1) == 0.5);
  CHECK(*parse_double("1e-3", 0, 1) == 1e-3);
  CHECK(*parse_double("-2", -5, 5) == -2);
  CHECK(*parse_double("1E+2", 0, 1000) == 100);
  for (const char* bad : {"", "nan", "inf", "-inf", "infinity", "NAN", "0x1p3", "1,5", "1.5x", " 1", "1 ", "+1", "e5", ".",
                          "1e", "1e999", "-1e999", "1e-999"})
    CHECK_MESSAGE(parse_double(bad, -1e308, 1e308).status().code() == Code::usage, bad);
  CHECK_FALSE(parse_double("1.1", 0, 1).ok());
  CHECK_FALSE(parse_double("0.5", std::nan(""), 1).ok());
}

TEST_CASE("parse_bytes: exact, both families of units") {
  CHECK(*parse_bytes("0") == 0);
  CHECK(*parse_bytes("64") == 64);
  CHECK(*parse_bytes("64B") == 64);
  CHECK(*parse_bytes("4k") == 4000);
  CHECK(*parse_bytes("4K") == 4000);
  CHECK(*parse_bytes("4Ki") == 4096);
  CHECK(*parse_bytes("10MB") == 10000000);
  CHECK(*parse_bytes("1.5GiB") == 1610612736);
  CHECK(*parse_bytes("2T") == 2000000000000);
  CHECK(*parse_bytes("1TiB") == int64_t{1} << 40);
  CHECK(*parse_bytes("0.001k") == 1);
  CHECK(*parse_bytes("9223372036854775807") == INT64_MAX);
  CHECK(*parse_bytes("8388607.999999TiB") > 0);
}

TEST_CASE("parse_bytes: what is refused") {
  for (const char* bad : {"", "B", "k", "-1", "+1", "1.", ".5", "1..5", "1.2.3", "1 ", " 1", "4kk", "4KBi", "4Kib", "10mb", "1m",
                          "1e3", "0x10", "nan", "1P", "1iB", "1BB", "1,5k"})
    CHECK_MESSAGE(parse_bytes(bad).status().code() == Code::usage, bad);
  CHECK(parse_bytes("0.5").status().message() ==
        "'0.5' is not a whole number of bytes (a size such as 64, 10MB or 1.5GiB expected)");
  CHECK_FALSE(parse_bytes("0.0001k").ok());
  CHECK_FALSE(parse_bytes("0.3KiB").ok());
  for (const char* large : {"9223372036854775808", "9223372036854776k", "8388608TiB", "18446744073709551616",
                            "99999999999999999999999999999999999999999999T"})
    CHECK_MESSAGE(!parse_bytes(large).ok(), large);
}

TEST_CASE("parse_duration") {
  CHECK(*parse_duration("90") == 90);
  CHECK(*parse_duration("90s") == 90);
  CHECK(*parse_duration("250ms") == 0.25);
  CHECK(*parse_duration("10m") == 600);
  CHECK(*parse_duration("1.5h") == 5400);
  CHECK(*parse_duration("2d") == 172800);
  CHECK(*parse_duration("1:30:00") == 5400);
  CHECK(*parse_duration("100:00:01") == 360001);
  for (const char* bad : {"", "s", "-1s", "+1", "1x", "1 h", "nan", "inf", "1e3", "1h30m", "1:30", "1:60:00", "1:00:60", ":1:2",
                          "1::2", "1:2:3:4", "1:-2:3", "0x1", "1.h.", "1h "})
    CHECK_MESSAGE(parse_duration(bad).status().code() == Code::usage, bad);
}

TEST_CASE("numbers for people") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1023) == "1023 B");
  CHECK(format_bytes(1024) == "1.00 KiB");
  CHECK(format_bytes(1610612736) == "1.50 GiB");
  CHECK(format_bytes(1048575) == "1.00 MiB");  // never 1024.00 KiB
  CHECK(format_bytes(INT64_MAX) == "8.00 EiB");
  CHECK(format_bytes(-2048) == "-2.00 KiB");
  CHECK(format_count(0) == "0");
  CHECK(format_count(999) == "999");
  CHECK(format_count(12.5) == "12.5");
  CHECK(format_count(124439808) == "124.4 M");
  CHECK(format_count(999999) == "1.0 M");
  CHECK(format_count(7.24e9) == "7.2 B");
  CHECK(format_si(1.234e9) == "1.23 G");
  CHECK(format_si(456000) == "456 k");
  CHECK(format_si(999999.6) == "1.00 M");
  CHECK(format_si(12.34) == "12.3");
  CHECK(format_si(0.00123) == "1.23 m");
  CHECK(format_si(0) == "0");
  CHECK(format_si(-1500) == "-1.50 k");
  CHECK(format_si(1.5e9, 2) == "1.5 G");
  CHECK(format_si(std::nan("")) == "nan");
  CHECK(format_si(1e25) == "10000000 E");
}

TEST_CASE("durations for people") {
  CHECK(format_duration(0) == "0 s");
  CHECK(format_duration(850e-9) == "850 ns");
  CHECK(format_duration(120e-6) == "120 us");
  CHECK(format_duration(0.045) == "45 ms");
  CHECK(format_duration(0.9996) == "1.0 s");
  CHECK(format_duration(3.2) == "3.2 s");
  CHECK(format_duration(59.96) == "1 min 00 s");
  CHECK(format_duration(125) == "2 min 05 s");
  CHECK(format_duration(3599.7) == "1 h 00 min");
  CHECK(format_duration(3720) == "1 h 02 min");
  CHECK(format_duration(273600) == "3 d 04 h");
  CHECK(format_duration(-3.2) == "-3.2 s");
  CHECK(format_duration(std::nan("")) == "nan");
}

TEST_CASE("the nearest word: a slip of the finger, not another word") {
  const std::vector<std::string> words = {"train", "infer", "ckpt", "dedup", "plan", "--micro-batch"};
  CHECK(nearest("trian", words) == "train");  // swapped neighbours count once
  CHECK(nearest("infr", words) == "infer");
  CHECK(nearest("plam", words) == "plan");
  CHECK(nearest("--micro_batch", words) == "--micro-batch");
  CHECK(nearest("train", words) == "train");
  CHECK(nearest("zzzzz", words).empty());
  CHECK(nearest("banana", words).empty());
  CHECK(nearest("", words).empty());
  CHECK(nearest("x", {}).empty());
}

// Each right side is what Python prints for bytes.decode("utf-8", "replace").
TEST_CASE("invalid UTF-8 is repaired as Python does it") {
  const std::string r = "\xEF\xBF\xBD";
  CHECK(utf8_repair("plain \xC3\xA9 \xF0\x9F\x98\x80") == "plain \xC3\xA9 \xF0\x9F\x98\x80");
  CHECK(utf8_repair("a\xFF" "b") == "a" + r + "b");
  CHECK(utf8_repair("\xF0\x80\x80" "A") == r + r + r + "A");
  CHECK(utf8_repair("\xE2\x82") == r);
  CHECK(utf8_repair("\xE2\x82" "A") == r + "A");
  CHECK(utf8_repair("\xED\xA0\x80") == r + r + r);
  CHECK(utf8_repair("\xC0\xAF") == r + r);
  CHECK(utf8_repair("\xF4\x90\x80\x80") == r + r + r + r);
  CHECK(utf8_repair("\xF1\x80\x80\xC3\xA9") == r + "\xC3\xA9");
  CHECK(utf8_repair("\xF0\x9F\x98") == r);
  CHECK(utf8_repair("\x80\x80") == r + r);
  CHECK(utf8_repair("").empty());
}

TEST_CASE("every code point survives append, next, valid; every surrogate does not") {
  int wrong = 0;
  for (uint32_t c = 0; c <= 0x10ffff; ++c) {
    std::string text;
    utf8_append(text, c);
    size_t at = 0;
    const bool surrogate = c >= 0xd800 && c < 0xe000;
    wrong += !utf8_valid(text) || utf8_next(text, &at) != (surrogate ? 0xfffd : c) || at != text.size();
  }
  CHECK(wrong == 0);
  std::string text;
  utf8_append(text, 0x110000);
  CHECK(text == "\xEF\xBF\xBD");
}

TEST_CASE("the valid two, three and four byte sequences are exactly those of the standard") {
  // Counting valid strings of n bytes that are one character: 2^7, 1920, 63488 - 2048 surrogates, 1048576 (the last not
  // enumerated: 2^32 strings; its boundaries are).
  int two = 0, three = 0;
  for (int a = 0x80; a < 256; ++a)
    for (int b = 0x80; b < 256; ++b) {
      two += utf8_valid(std::string{static_cast<char>(a), static_cast<char>(b)});
      for (int c = 0x80; c < 256; ++c)
        three += utf8_valid(std::string{static_cast<char>(a), static_cast<char>(b), static_cast<char>(c)});
    }
  CHECK(two == 0x800 - 0x80);
  CHECK(three == 0x10000 - 0x800 - 0x800);
  CHECK(utf8_valid("\xF0\x90\x80\x80"));
  CHECK(utf8_valid("\xF4\x8F\xBF\xBF"));
  CHECK_FALSE(utf8_valid("\xF0\x8F\xBF\xBF"));
  CHECK_FALSE(utf8_valid("\xF4\x90\x80\x80"));
  CHECK_FALSE(utf8_valid("\xF5\x80\x80\x80"));
}

TEST_CASE("the unfinished end of a text") {
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80";
  const size_t expected[] = {0, 0, 1, 0, 1, 2, 0, 1, 2, 3, 0};
  for (size_t n = 0; n <= text.size(); ++n) CHECK(utf8_tail(std::string_view(text).substr(0, n)) == expected[n]);
  CHECK(utf8_tail("\xFF") == 0);
  CHECK(utf8_tail("\x80\x80\x80") == 0);
  CHECK(utf8_tail("\xE0\x80") == 0);  // overlong: cannot become a character
  CHECK(utf8_tail("\xED\xA0") == 0);  // surrogate
  CHECK(utf8_tail("\xC0") == 0);
}

TEST_CASE("text from files is safe on a terminal") {
  CHECK(escape_control("plain \xC3\xA9") == "plain \xC3\xA9");
  CHECK(escape_control("\x1b[31m\n\t\x7f") == "\\x1b[31m\\x0a\\x09\\x7f");
  CHECK(escape_control("\xFF\xC2\x9B") == "\\xff\\xc2\\x9b");          // C1 control sequence introducer
  CHECK(escape_control("a\xE2\x80\xAE" "b") == "a\\xe2\\x80\\xae" "b");  // right-to-left override
  CHECK(escape_control(std::string_view("\0", 1)) == "\\x00");
}

TEST_CASE("columns on a terminal") {
  CHECK(display_width("") == 0);
  CHECK(display_width("abc") == 3);
  CHECK(display_width("\xC3\xA9t\xC3\xA9") == 3);
  CHECK(display_width("e\xCC\x81") == 1);                          // e + combining acute
  CHECK(display_width("\xE6\xBC\xA2\xE5\xAD\x97") == 4);           // two ideographs
  CHECK(display_width("\xF0\x9F\x98\x80") == 2);                   // emoji
  CHECK(display_width("\xED\x95\x9C") == 2);                       // precomposed hangul
  CHECK(display_width("\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB") == 2);  // the same as three jamo
  CHECK(display_width("a\xE2\x80\x8D" "b") == 2);                  // zero width joiner
  CHECK(display_width("\xEF\xBC\xA1") == 2);                       // fullwidth A
  CHECK(display_width("\xF0\xA0\x80\x80") == 2);                   // plane 2 ideograph
  CHECK(display_width("\xE2\x94\x80") == 1);                       // box drawing
  CHECK(display_width("\xFF") == 1);
}
