// llmops tour through the real program, on a text of the test.
#include "cli/work.h"

using namespace llmops;
using namespace llmops::test;

// The tour's model is real work: minutes under a sanitizer, where the tests of its parts run.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSlow = true;
#else
constexpr bool kSlow = false;
#endif

TEST_CASE("the tour passes every row, whatever llmops.toml and the environment say, and leaves its run with --keep" *
          doctest::skip(kSlow)) {
  Work work;
  work.dir.write("llmops.toml", "[train]\nmax_time = \"1s\"\n");
  work.options.env = {{"LLMOPS_TRAIN_LR", "0"}};
  const RunResult run =
      work.llmops({"tour", "--data", "text.txt", "--steps", "120", "--keep", "tour", "--format", "json"});
  REQUIRE_MESSAGE(run.code == 0, run.out);
  const auto json = json_parse(run.out);
  REQUIRE(json.ok());
  const auto& rows = json->find("results")->as_array();
  CHECK(rows.size() == 7);
  for (const Json& row : rows) CHECK_MESSAGE(row.find("verdict")->as_string() == "pass", row.dump());
  CHECK(work.llmops({"ckpt", "verify", "tour/run"}).code == 0);
  CHECK(work.llmops({"tour", "--data", "text.txt", "--keep", "tour"}).code == 2);  // holds a tour already
}

TEST_CASE("without bible-kjv the tour trains on the license texts, and says so" * doctest::skip(kSlow)) {
  Work work;
  work.options.env = {{"PATH", work.dir.path()}};
  const RunResult run = work.llmops({"tour", "--steps", "100"});
  CHECK_MESSAGE(run.code == 0, run.out, run.err);
  CHECK(run.out.find("bible-kjv is not installed") != std::string::npos);
}

TEST_CASE("a tour on an empty text ends with 3 and a verdict; one that is stopped by a signal ends by it") {
  Work work;
  work.dir.write("empty.txt", "");
  const RunResult empty = work.llmops({"tour", "--data", "empty.txt"});
  CHECK(empty.code == 3);
  CHECK(empty.out.find("FAIL") != std::string::npos);
  work.options.signal = SIGINT;
  work.options.signal_after_s = 0.5;
  CHECK(work.llmops({"tour", "--data", "text.txt", "--steps", "100000"}).code == 128 + SIGINT);
}
