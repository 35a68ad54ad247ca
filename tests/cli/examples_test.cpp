// Every example of every man page runs as it is printed there, in a folder that holds what the examples name.
#include <sstream>

#include "cli/work.h"

using namespace llmops;
using namespace llmops::test;

namespace {

// The commands of the overview: two spaces, words of the name, two or more spaces, what it does.
std::vector<std::string> command_names(const std::string& overview) {
  std::vector<std::string> names;
  std::istringstream lines(overview.substr(overview.find("Commands:\n")));
  for (std::string line; std::getline(lines, line) && (names.empty() || !line.empty());)
    if (line.starts_with("  ") && line[2] != ' ') names.push_back(line.substr(2, line.find("  ", 2) - 2));
  return names;
}

// In a shell that finds `llmops` by its name. A small batch keeps train's 400 steps short.
RunResult run_line(const Work& work, const std::string& command, const std::string& line) {
  RunOptions options = work.options;
  options.env = {{"LLMOPS_TOUR_STEPS", "100"}};
  if (command == "train") options.env = {{"LLMOPS_TRAIN_BATCH", "4"}, {"LLMOPS_TRAIN_SEQ", "16"}};
  options.timeout_s = 600;
  const std::string folder = std::filesystem::path(LLMOPS_BINARY).parent_path();
  return run_program({"sh", "-c", "PATH='" + folder + "':$PATH; " + line}, options);
}

void check_json_lines(const std::string& text) {
  CHECK(!text.empty());
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) CHECK_MESSAGE(json_parse(line).ok(), line);
}

}  // namespace

// Real training of minutes under a sanitizer, where the tests of its parts run.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSlow = true;
#else
constexpr bool kSlow = false;
#endif

TEST_CASE("the examples of every man page work" * doctest::skip(kSlow)) {
  Work work;
  work.dir.write("FILE", sample_text(20000) + "In the beginning. And " + sample_text(20000, 2));
  work.dir.write("requests.jsonl", "{\"prompt\": \"the rank\"}\n{\"prompt\": \"a step\", \"max_tokens\": 4}\n");
  const RunResult overview = work.llmops({"help"});
  REQUIRE(overview.code == 0);
  const std::vector<std::string> names = command_names(overview.out);
  REQUIRE(names.size() >= 9);
  for (const std::string& name : names) {  // train comes before the commands that use runs/char
    const RunResult help = run_line(work, name, "llmops help " + name + " --format json");
    REQUIRE_MESSAGE(help.code == 0, help.err);
    const auto table = json_parse(help.out);
    REQUIRE(table.ok());
    std::string page = std::string(LLMOPS_MAN) + "/llmops-" + name + ".1";
    std::replace(page.begin(), page.end(), ' ', '-');
    CHECK_MESSAGE(std::filesystem::exists(page), page);
    CHECK_MESSAGE(!table->find("examples")->as_array().empty(), name);
    for (const Json& example : table->find("examples")->as_array()) {
      const std::string line = example.find("line")->as_string();
      const RunResult run = run_line(work, name, line);
      INFO(line, "\n", run.err);
      CHECK(run.code == 0);
      CHECK(run.out.empty() == (line.find(" > ") != std::string::npos));
      if (line.find("--format json") != std::string::npos) CHECK(json_parse(run.out).ok());
    }
  }
  check_json_lines(work.dir.read("answers.jsonl"));
}
