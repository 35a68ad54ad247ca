#include "report/report.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <limits>

using namespace llmops;

namespace {

// What a report prints, through a pipe (its buffer holds 64 KiB).
std::string printed(const Report& report, Format format, bool colour = false) {
  int fds[2];
  REQUIRE(pipe(fds) == 0);
  Output out(fds[1]);
  CHECK(ReportWriter(out, format, colour).write(report).ok());
  CHECK(out.finish().ok());
  close(fds[1]);
  std::string text(65536, '\0');
  const ssize_t bytes = read(fds[0], text.data(), text.size());
  close(fds[0]);
  text.resize(static_cast<size_t>(bytes));
  return text;
}

Report sample() {
  Report report{{"op", "op"},
                {"size_bytes", "size", Unit::bytes},
                {"digest", ""},
                {"mfu", "MFU", Unit::ratio},
                {"verdict", "verdict", Unit::verdict}};
  report.row({"all_reduce", 1610612736, "ab", 0.413, "ok"});
  report.row({"x", Json(), "cd", 0.5, "slow"});
  report.summary({"tokens", "tokens", Unit::count}, 124439808);
  report.extra("options", Json::Object{{"ranks", 2}});
  report.note("2 ranks, local");
  return report;
}

}  // namespace

TEST_CASE("numbers as people read them") {
  CHECK(for_people(1610612736, Unit::bytes) == "1.50 GiB");
  CHECK(for_people(0.413, Unit::ratio) == "41.3 %");
  CHECK(for_people(1.2e12, Unit::flops) == "1.20 TFLOP");
  CHECK(for_people(1.2e12, Unit::flops_per_s) == "1.20 TFLOP/s");
  CHECK(for_people(456, Unit::flops) == "456 FLOP");
  CHECK(for_people(2.1e9, Unit::bytes_per_s) == "2.10 GB/s");
  CHECK(for_people(12345, Unit::tokens_per_s) == "12.3 k tok/s");
  CHECK(for_people(124439808, Unit::count) == "124.4 M");
  CHECK(for_people(1.5, Unit::ms) == "1.50 ms");
  CHECK(for_people(12.34, Unit::us) == "12.3 us");
  CHECK(for_people(0, Unit::s) == "0 s");
  CHECK(for_people(3200, Unit::ms) == "3.2 s");
  CHECK(for_people(2.3456789, Unit::none, 4) == "2.346");
  CHECK(for_people(2.3456789, Unit::none) == "2.3456789");
  CHECK(for_people(1234567, Unit::none, 4) == "1234567");
  CHECK(for_people(Json(), Unit::bytes) == "-");
  CHECK(for_people(true, Unit::none) == "yes");
  CHECK(for_people(std::numeric_limits<double>::quiet_NaN(), Unit::ratio) == "not finite");
  CHECK(for_people("a\x1b[2Jb", Unit::none) == "a\\x1b[2Jb");
  CHECK(for_people(Json::Array{1, "b"}, Unit::none) == "1, b");
}

TEST_CASE("one report in five formats") {
  CHECK(printed(sample(), Format::table) ==
        "op              size     MFU  verdict\n"
        "all_reduce  1.50 GiB  41.3 %  ok\n"
        "x                  -  50.0 %  slow\n"
        "\n"
        "tokens  124.4 M\n"
        "\n"
        "2 ranks, local\n");
  CHECK(printed(sample(), Format::json) ==
        "{\n  \"results\": [\n"
        "    {\"op\":\"all_reduce\",\"size_bytes\":1610612736,\"digest\":\"ab\",\"mfu\":0.413,\"verdict\":\"ok\"},\n"
        "    {\"op\":\"x\",\"size_bytes\":null,\"digest\":\"cd\",\"mfu\":0.5,\"verdict\":\"slow\"}\n"
        "  ],\n  \"tokens\": 124439808,\n  \"options\": {\"ranks\":2},\n  \"notes\": [\"2 ranks, local\"]\n}\n");
  CHECK(printed(sample(), Format::jsonl) ==
        "{\"op\":\"all_reduce\",\"size_bytes\":1610612736,\"digest\":\"ab\",\"mfu\":0.413,\"verdict\":\"ok\"}\n"
        "{\"op\":\"x\",\"size_bytes\":null,\"digest\":\"cd\",\"mfu\":0.5,\"verdict\":\"slow\"}\n"
        "{\"summary\":{\"tokens\":124439808,\"options\":{\"ranks\":2},\"notes\":[\"2 ranks, local\"]}}\n");
  CHECK(printed(sample(), Format::csv) ==
        "op,size_bytes,digest,mfu,verdict\nall_reduce,1610612736,ab,0.413,ok\nx,,cd,0.5,slow\n");
  CHECK(printed(sample(), Format::md) ==
        "| op | size | MFU | verdict |\n| --- | ---: | ---: | --- |\n| all_reduce | 1.50 GiB | 41.3 % | ok |\n"
        "| x | - | 50.0 % | slow |\n\n- tokens: 124.4 M\n\n2 ranks, local\n");
}

TEST_CASE("records keep their own keys for machines; people get the columns") {
  Report report{{"id", "id"}};
  report.record(Json::Object{{"id", "a"}, {"response", Json::Object{{"status", 200}}}});
  CHECK(printed(report, Format::jsonl) == "{\"id\":\"a\",\"response\":{\"status\":200}}\n");
  CHECK(printed(report, Format::table) == "id\na\n");
  CHECK(printed(report, Format::csv) == "id\na\n");
}

TEST_CASE("no rows, and no columns, are still documents") {
  Report none{{"id", "id"}};
  CHECK(printed(none, Format::json) == "{\n  \"results\": []\n}\n");
  CHECK(printed(none, Format::jsonl) == "");
  CHECK(printed(none, Format::csv) == "id\n");
  CHECK(printed(none, Format::table) == "id\n");
  CHECK(printed(Report(), Format::json) == "{}\n");
  CHECK(printed(Report(), Format::table) == "");
  Report facts;
  facts.summary({"free_bytes", "free", Unit::bytes}, 1024);
  CHECK(printed(facts, Format::json) == "{\n  \"free_bytes\": 1024\n}\n");
  CHECK(printed(facts, Format::jsonl) == "{\"free_bytes\":1024}\n");
  CHECK(printed(facts, Format::csv) == "free_bytes\n1024\n");
}

TEST_CASE("colour: bold titles, verdicts green or red, only when asked") {
  const std::string text = printed(sample(), Format::table, true);
  CHECK(text.find("\x1b[32mok\x1b[0m") != std::string::npos);
  CHECK(text.find("\x1b[31mslow\x1b[0m") != std::string::npos);
  CHECK(text.find("\x1b[1mop") != std::string::npos);
  CHECK(printed(sample(), Format::json, true).find('\x1b') == std::string::npos);
}

TEST_CASE("output: a closed pipe is remembered and no failure, any other error is kept") {
  int fds[2];
  REQUIRE(pipe(fds) == 0);
  close(fds[0]);
  signal(SIGPIPE, SIG_IGN);
  Output pipe_out(fds[1]);
  CHECK(pipe_out.write("x").ok());
  CHECK(pipe_out.closed());
  CHECK(pipe_out.write("y").ok());
  CHECK(pipe_out.finish().ok());
  close(fds[1]);

  Output bad(-1);
  CHECK(bad.write("").ok());
  CHECK(bad.write("x").code() == Code::io);
  CHECK_FALSE(bad.closed());
  CHECK(bad.finish().message() == "standard output: cannot write: Bad file descriptor");
}
