#include "base/json.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

using namespace llmops;

namespace {

std::string error_of(std::string_view text, const JsonLimits& limits = {}) {
  const auto json = json_parse(text, limits);
  if (json.ok()) return "accepted";
  CHECK(json.status().code() == Code::invalid);
  return json.status().message();
}

std::string round_trip(std::string_view text) {
  const auto json = json_parse(text);
  return json.ok() ? json->dump() : json.status().message();
}

}  // namespace

TEST_CASE("values keep their kind and order through reading and writing") {
  for (const char* text :
       {"null", "true", "false", "0", "-1", "\"\"", "[]", "{}", "[1,[2,[3]],{}]", "{\"b\":1,\"a\":{\"c\":[null,true]}}",
        "{\"\":0}", "1.5", "-0.0", "1e+300", "5e-324", "0.1"})
    CHECK(round_trip(text) == text);
  CHECK(round_trip(" { \"a\" : [ 1 , 2 ] } \n") == "{\"a\":[1,2]}");
}

TEST_CASE("64-bit integers are exact; larger ones become doubles and say so") {
  for (const char* text : {"9223372036854775807", "-9223372036854775808", "9223372036854775808", "18446744073709551615",
                           "9007199254740993"})
    CHECK(round_trip(text) == text);
  const Json big = *json_parse("18446744073709551615");
  CHECK(big.is_integer());
  CHECK(big.as_int(-5) == -5);  // outside int64: another kind
  CHECK(big.as_double() == 18446744073709551615.0);
  const Json bigger = *json_parse("18446744073709551616");
  CHECK_FALSE(bigger.is_integer());
  CHECK(bigger.is_number());
  CHECK(bigger.as_double() == 18446744073709551616.0);
  const Json one = *json_parse("1.0");
  CHECK_FALSE(one.is_integer());
  CHECK(one.as_int(-5) == -5);
}

TEST_CASE("doubles print as the shortest text that reads back to the same bits") {
  for (double x : {0.1, 1.0 / 3, 1e22, 1e23, 123456789.125, 5e-324, std::numeric_limits<double>::max(), -2.5e-7, 100000.0,
                   9007199254740993.0}) {
    const std::string text = json_number(x);
    CHECK(json_parse(text)->as_double() == x);
    CHECK(text.size() <= 24);
  }
  CHECK(json_number(0.1) == "0.1");
  CHECK(json_number(1.0) == "1");
  CHECK(json_number(0.0) == "0");
  CHECK(std::signbit(json_parse(json_number(-0.0))->as_double()));
  CHECK(json_number(std::nan("")) == "null");
  CHECK(json_number(-std::numeric_limits<double>::infinity()) == "null");
}

TEST_CASE("strings: escapes in and out") {
  CHECK(json_parse(R"("a\u00e9\ud83d\ude00\n\/\b")")->as_string() == "a\xC3\xA9\xF0\x9F\x98\x80\n/\b");
  CHECK(json_quote("a\"\\\n\r\t\x01\x1f\x7f/\xC3\xA9") == "\"a\\\"\\\\\\n\\r\\t\\u0001\\u001f\x7f/\xC3\xA9\"");
  CHECK(json_quote(std::string_view("a\0b", 3)) == "\"a\\u0000b\"");
  CHECK(json_parse(R"("a\u0000b")")->as_string() == std::string("a\0b", 3));
  CHECK(json_quote("x\xFFy\xE2\x82") == "\"x\xEF\xBF\xBDy\xEF\xBF\xBD\"");
  CHECK(Json("\xC3").dump() == "\"\xEF\xBF\xBD\"");
}

TEST_CASE("broken text is refused with line and column") {
  CHECK(error_of("") .starts_with("1:1: "));
  CHECK(error_of("{\"a\":1,}").starts_with("1:8: "));
  CHECK(error_of("[1,\n 2,\n  x]").starts_with("3:3: "));
  CHECK(error_of("[1, 2").starts_with("1:6: "));
  CHECK(error_of("[1] 2").starts_with("1:5: "));
  CHECK(error_of("[1]]").starts_with("1:4: "));
  CHECK(error_of("{} {}").starts_with("1:4: "));
  for (const char* text : {"nul", "True", "'a'", "01", "+1", "1.", ".5", "1e", "0x10", "NaN", "Infinity", "-", "[1 2]",
                           "{\"a\" 1}", "{1:2}", "{\"a\":}", "\"\\x\"", "\"\\ud800\"", "\"\\udc00\"", "\"a\nb\"", "\"a",
                           "// c\n1", "[1,]", "[,1]", "{,}", "]", "}", "\"\\u12\""})
    CHECK_MESSAGE(error_of(text) != "accepted", text);
}

TEST_CASE("numbers beyond a double are refused, not turned into infinity") {
  CHECK(error_of("[1e999]") != "accepted");
  CHECK(error_of("-1e999") != "accepted");
  CHECK(json_parse("1e-999")->as_double() == 0);
}

TEST_CASE("a duplicate key is refused where it stands, among few keys and among many") {
  CHECK(error_of("{\"a\":1,\n \"a\":2}") == "2:4: duplicate key \"a\"");
  CHECK(error_of("{\"a\":{\"b\":1,\"b\":1}}") == "1:15: duplicate key \"b\"");
  CHECK(error_of("{\"a\":1,\"\\u0061\":2}") != "accepted");
  CHECK(error_of("[{\"a\":1},{\"a\":1}]") == "accepted");
  std::string many = "{";
  for (int i = 0; i < 1000; ++i) many += "\"k" + std::to_string(i) + "\":0,";
  CHECK(error_of(many + "\"x\":1}") == "accepted");
  CHECK(error_of(many + "\"k3\":1}").ends_with("duplicate key \"k3\""));
  CHECK(error_of(many + "\"k999\":1}").ends_with("duplicate key \"k999\""));
}

TEST_CASE("depth, size, a byte order mark, NUL bytes and invalid UTF-8 are refused") {
  const auto nested = [](int n) { return std::string(n, '[') + std::string(n, ']'); };
  CHECK(error_of(nested(64)) == "accepted");
  CHECK(error_of(nested(65)) == "1:65: nested deeper than 64 levels");
  CHECK(error_of(std::string(1000000, '[')).ends_with("nested deeper than 64 levels"));
  CHECK(error_of("[[1]]", {.depth_max = 1}) != "accepted");
  CHECK(error_of("[1,2]", {.bytes_max = 4}) == "1:1: 5 bytes of JSON, at most 4 are read");
  CHECK(error_of("\xEF\xBB\xBF{}").starts_with("1:1: a byte order mark"));
  CHECK(error_of(std::string_view("1\0{", 3)) == "1:2: a NUL byte");
  CHECK(error_of(std::string_view("1\0", 2)) == "1:2: a NUL byte");
  for (const char* text : {"\"\xFF\"", "\"\xC0\xAF\"", "\"\xED\xA0\x80\"", "\"\xF4\x90\x80\x80\"", "\"\xE2\x82\"",
                           "{\"\x80\":1}"})
    CHECK(error_of(text) != "accepted");
  CHECK(error_of("[1,\n\"a\xFF\"]").starts_with("2:3: "));
}

TEST_CASE("messages about hostile text are safe on a terminal") {
  for (char c : error_of("[\"\x1b[2J\x07\xFF")) CHECK(static_cast<unsigned char>(c) >= 0x20);
}

TEST_CASE("lookups on the wrong kind give the fallback, never a fault") {
  const Json json = *json_parse("{\"s\":\"x\",\"n\":3,\"d\":2.5,\"b\":true,\"a\":[1],\"z\":null}");
  CHECK(json.find("s")->as_string() == "x");
  CHECK(json.find("n")->as_int() == 3);
  CHECK(json.find("n")->as_double() == 3.0);
  CHECK(json.find("d")->as_double() == 2.5);
  CHECK(json.find("b")->as_bool());
  CHECK(json.find("a")->as_array().size() == 1);
  CHECK(json.find("z")->is_null());
  CHECK(json.find("missing") == nullptr);
  CHECK(json.find("a")->find("x") == nullptr);
  CHECK(json.find("s")->as_int(9) == 9);
  CHECK(json.find("n")->as_string().empty());
  CHECK(json.find("b")->as_double(1.5) == 1.5);
  CHECK(json.as_array().empty());
  CHECK(Json(1).as_object().empty());
}

TEST_CASE("building and indenting") {
  Json json;
  json["name"] = "x";
  json["list"].push_back(1);
  json["list"].push_back(Json());
  json["name"] = 2.5;  // found again, not added
  json["empty"] = Json::Object();
  CHECK(json.dump() == "{\"name\":2.5,\"list\":[1,null],\"empty\":{}}");
  CHECK(json.dump(2) == "{\n  \"name\": 2.5,\n  \"list\": [\n    1,\n    null\n  ],\n  \"empty\": {}\n}");
  CHECK(json.dump(0) == "{\n\"name\": 2.5,\n\"list\": [\n1,\nnull\n],\n\"empty\": {}\n}");
  CHECK(Json(uint64_t{UINT64_MAX}).dump() == "18446744073709551615");
}

TEST_CASE("json: a message does not repeat a long token") {
  const auto cut = json_parse("{\"text\": \"" + std::string(1 << 20, 'a'));
  REQUIRE(!cut.ok());
  CHECK(cut.status().message().size() < 300);
  CHECK(cut.status().message().starts_with("1:"));
}
