// Where values come from, and what is refused: the option table through a real program.
#include <doctest/doctest.h>

#include <algorithm>

#include "base/json.h"
#include "support/run_program.h"

using namespace llmops;
using namespace llmops::test;

namespace {

RunResult probe(std::vector<std::string> words, const RunOptions& options = {}) {
  words.insert(words.begin(), LLMOPS_PROBE);
  return run_program(std::move(words), options);
}

// The member of `show --format json`'s document; the run must have worked.
Json shown(const std::vector<std::string>& words, const char* member, const RunOptions& options = {}) {
  std::vector<std::string> all = {"show", "--format", "json"};
  all.insert(all.end(), words.begin(), words.end());
  const RunResult run = probe(all, options);
  REQUIRE_MESSAGE(run.code == 0, run.err);
  CHECK(run.err == "");
  const auto json = json_parse(run.out);
  REQUIRE_MESSAGE(json.ok(), run.out);
  const Json* found = json->find(member);
  REQUIRE(found != nullptr);
  return *found;
}

Json option(const std::vector<std::string>& words, const char* key, const RunOptions& options = {}) {
  const Json all = shown(words, "options", options);
  const Json* found = all.find(key);
  REQUIRE(found != nullptr);
  return *found;
}

// The run is refused with exit 2, nothing on stdout, and exactly this line.
void refused(const std::vector<std::string>& words, const std::string& message, const RunOptions& options = {}) {
  const RunResult run = probe(words, options);
  CAPTURE(words);
  CHECK(run.code == 2);
  CHECK(run.out == "");
  CHECK(run.err == message + "\n");
}

}  // namespace

TEST_CASE("defaults, and every type from the command line") {
  CHECK(option({}, "steps").as_int() == 10);
  CHECK(option({}, "clip").is_null());
  CHECK(option({"--steps", "7"}, "steps").as_int() == 7);
  CHECK(option({"--steps=7"}, "steps").as_int() == 7);
  CHECK(option({"-n7"}, "steps").as_int() == 7);
  CHECK(option({"-n", "7"}, "steps").as_int() == 7);
  CHECK(option({"--steps", "9223372036854775807"}, "steps").as_int() == 9223372036854775807);
  CHECK(option({"--steps", "010"}, "steps").as_int() == 10);  // decimal, never octal
  CHECK(option({"--lr", "6e-4"}, "lr").as_double() == 6e-4);
  CHECK(option({"--clip", "0.5"}, "clip").as_double() == 0.5);
  CHECK(option({"--memory", "1.5GiB"}, "memory").as_int() == 1610612736);
  CHECK(option({"--max-time", "1.5h"}, "max_time").as_double() == 5400);
  CHECK(option({"--mode", "quick"}, "mode").as_string() == "quick");
  CHECK(option({"--sampler=top-k"}, "sampler").as_string() == "top-k");
  CHECK(option({"--dry-run"}, "dry_run").as_bool());
  CHECK_FALSE(option({"--no-save"}, "save").as_bool(true));
  CHECK_FALSE(option({"--save=false"}, "save").as_bool(true));
  CHECK(option({"--stop", "a", "--stop=b"}, "stop").dump() == R"(["a","b"])");
}

TEST_CASE("words: the last one wins, a value may look like a flag, -- ends options, - is an argument") {
  CHECK(option({"--steps", "3", "--steps", "4"}, "steps").as_int() == 4);
  CHECK(option({"--prompt", "--steps"}, "prompt").as_string() == "--steps");
  CHECK(option({"--prompt=", "x"}, "prompt").as_string() == "");
  CHECK(option({"--prompt=a=b"}, "prompt").as_string() == "a=b");
  CHECK(option({"a", "--", "--steps", "-"}, "file").dump() == R"(["a","--steps","-"])");
  CHECK(option({"-", "--steps", "3", "b"}, "file").dump() == R"(["-","b"])");
}

TEST_CASE("numbers are strict") {
  const std::string integer = "llmops: show: --steps: ";
  for (const char* bad :
       {"1e3x", "-1", "nan", "99999999999999999999", "", " 5", "+5", "0x10", "1e3", "5 ", "0", "1.5"}) {
    const RunResult run = probe({"show", "--steps", bad});
    CAPTURE(std::string(bad));
    CHECK(run.code == 2);
    CHECK(run.out == "");
    CHECK(run.err.starts_with(integer));
    CHECK(run.err.find("'" + std::string(bad) + "'") != std::string::npos);
    CHECK(std::count(run.err.begin(), run.err.end(), '\n') == 1);
  }
  for (const char* bad : {"nan", "inf", "-1", "11", "1e400", "", "1,5", "0x1p3", "1e", "1.0f"}) {
    const RunResult run = probe({"show", std::string("--lr=") + bad});
    CAPTURE(std::string(bad));
    CHECK(run.code == 2);
    CHECK(run.err.starts_with("llmops: show: --lr: "));
  }
  for (const char* bad : {"-1", "1.5", "1XB", "9999999TiB", "", "1 GiB x"})
    CHECK(probe({"show", "--memory", bad}).code == 2);
  for (const char* bad : {"-1s", "1x", "", "nan", "1:99:00:00:00"}) CHECK(probe({"show", "--max-time", bad}).code == 2);
  CHECK(probe({"show", "--ranks", "65"}).code == 2);
}

TEST_CASE("what is mistyped is refused with the nearest name") {
  refused({"show", "--stepz", "3"}, "llmops: show: found the unknown option '--stepz'; did you mean '--steps'?");
  refused({"show", "--qqqqqqqqqq"}, "llmops: show: found the unknown option '--qqqqqqqqqq'");
  refused({"show", "-x"}, "llmops: show: found the unknown option '-x'");
  refused({"show", "--mode", "quik"},
          "llmops: show: --mode: found 'quik', expected slow or quick; did you mean 'quick'?");
  refused({"show", "--save=maybe"}, "llmops: show: --save: found 'maybe', expected true or false");
  refused({"show", "--steps"}, "llmops: show: --steps: found no value, expected N, optimizer steps");
  refused({"show", "--mode"}, "llmops: show: --mode: found no value, expected slow or quick");
  refused({"show", "--sampler"}, "llmops: show: --sampler: found no value, expected greedy, top-k or top-p");
  refused({"show", "--out", ""}, "llmops: show: --out: found an empty path, expected a name");
  refused({"show", "--no-steps"}, "llmops: show: found the unknown option '--no-steps'; did you mean '--steps'?");
  refused({"shwo"}, "llmops: found the unknown command 'shwo'; did you mean 'show'?; see llmops --help");
  refused({"ckpt", "verfy", "x"},
          "llmops: ckpt: found the unknown command 'verfy'; did you mean 'verify'?; see llmops ckpt --help");
  refused({"ckpt", "verify"}, "llmops: ckpt verify: DIR is missing: a checkpoint folder");
  refused({"ckpt", "verify", "a", "b"}, "llmops: ckpt verify: found 'b', expected no further argument");
  refused({"show", "--\x1b[31m"}, "llmops: show: found the unknown option '--\\x1b[31m'");
}

TEST_CASE("command line > environment > llmops.toml > default, and the origin is kept") {
  ScratchDir dir;
  dir.write("llmops.toml",
            "[show]\nsteps = 20\nlr = 0.5\nmemory = \"2MiB\"\nstop = [\"x\", \"y\"]\nsave = false\nranks = 2\n");
  RunOptions options{
      .env = {{"LLMOPS_SHOW_STEPS", "30"}, {"LLMOPS_STEPS", "31"}, {"LLMOPS_RANKS", "3"}, {"LLMOPS_LR", ""}},
      .dir = dir.path()};
  const Json values = shown({"--steps", "40"}, "options", options),
             origins = shown({"--steps", "40"}, "origins", options);
  CHECK(values.find("steps")->as_int() == 40);
  CHECK(origins.find("steps")->as_string() == "--steps");
  CHECK(option({}, "steps", options).as_int() == 30);
  CHECK(values.find("ranks")->as_int() == 3);
  CHECK(origins.find("ranks")->as_string() == "LLMOPS_RANKS");
  CHECK(values.find("lr")->as_double() == 0.5);
  CHECK(origins.find("lr")->as_string() == "llmops.toml:3:1");
  CHECK(values.find("memory")->as_int() == 2 << 20);
  CHECK(values.find("stop")->dump() == R"(["x","y"])");
  CHECK_FALSE(values.find("save")->as_bool(true));
  CHECK(origins.find("mode")->as_string() == "default");

  SUBCASE("a bad value is refused only where it is used, and names its place") {
    options.env = {{"LLMOPS_STEPS", "x"}};
    CHECK(option({"--steps", "4"}, "steps", options).as_int() == 4);
    const RunResult run = probe({"show"}, options);
    CHECK(run.code == 2);
    CHECK(run.err.starts_with("llmops: show: LLMOPS_STEPS: "));
  }
  SUBCASE("--config and LLMOPS_CONFIG name another file") {
    dir.write("b.toml", "format = 'json'\n[show]\nsteps = 50\n");
    RunOptions plain{.dir = dir.path()};
    CHECK(option({"--config", "b.toml"}, "steps", plain).as_int() == 50);
    plain.env = {{"LLMOPS_CONFIG", "b.toml"}};
    const RunResult run = probe({"show"}, plain);  // the file's format, too
    CHECK(run.code == 0);
    CHECK(json_parse(run.out).ok());
    CHECK(probe({"show", "--config", "missing.toml"}, {.dir = dir.path()}).code == 4);
  }
}

TEST_CASE("a configuration that is not understood is refused at line and column") {
  ScratchDir dir;
  const RunOptions in_dir{.dir = dir.path()};
  auto says = [&](const std::string& toml, const std::string& message) {
    dir.write("llmops.toml", toml);
    refused({"show"}, "llmops: show: llmops.toml:" + message, in_dir);
  };
  says("[show]\n  stepz = 1\n", "2:3: found the unknown key 'stepz'; did you mean 'steps'?");
  says("[show]\nmax-time = 1\n", "2:1: found the unknown key 'max-time'; did you mean 'max_time'?");
  says("\n[shw]\nsteps = 1\n", "2:2: found the unknown table 'shw'; did you mean 'show'?");
  says("[ckpt.verfy]\n", "1:7: found the unknown table 'ckpt.verfy'; did you mean 'ckpt.verify'?");
  says("[ckpt]\nverify = 3\n", "2:1: found the key 'verify', expected the table [ckpt.verify]");
  says("formt = 'json'\n", "1:1: found the unknown key 'formt'; did you mean 'format'?");
  says("[stream]\nrosw = 1\n", "2:1: found the unknown key 'rosw'; did you mean 'rows'?");  // of another command, too
  says("[show]\nsteps = [1]\n", "2:1: steps: found an array, expected one value");
  says("[show]\nmode = 'quik'\n", "2:1: mode: found 'quik', expected slow or quick; did you mean 'quick'?");
  says("[show]\nsteps = 1979-05-27\n",
       "2:9: found a date or time, expected a number, a string, true, false or an array");
  for (const char* bad : {"[show]\nsteps = -1\n", "[show]\nsteps = 1.5\n", "[show]\nlr = nan\n",
                          "[show]\nsteps = 1\nsteps = 2\n", "[show\n", "[show]\nprompt = \"x\n", "steps == 1\n"}) {
    dir.write("llmops.toml", bad);
    const RunResult run = probe({"show"}, in_dir);
    CAPTURE(std::string(bad));
    CHECK(run.code == 2);
    CHECK(run.out == "");
    CHECK(run.err.starts_with("llmops: show: llmops.toml:"));
    CHECK(std::count(run.err.begin(), run.err.end(), '\n') == 1);
  }
  std::string deep = "[a";
  for (int i = 0; i < 200000; ++i) deep += ".a";
  says(deep + "]\n", "1:1: found a key of more than 64 parts");
  dir.write("llmops.toml", std::string((1 << 20) + 1, '#'));
  CHECK(probe({"show"}, in_dir).code == 2);
}

TEST_CASE("the TOML echo reads back to the same options") {
  ScratchDir dir;
  const std::vector<std::string> words = {"--steps", "3", "--lr",      "6e-4",   "--prompt", "a \"b\"\n\x7f c",
                                          "--stop",  "x", "--no-save", "--mode", "quick"};
  const Json before = shown(words, "options");
  dir.write("run.toml", shown(words, "toml").as_string());
  CHECK(shown({"--config", dir / "run.toml"}, "options").dump() == before.dump());
}
