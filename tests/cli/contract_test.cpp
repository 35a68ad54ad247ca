// The command contract: help, exit codes, stdout and its failures, signals, terminals, completions, man pages.
#include <doctest/doctest.h>

#include <algorithm>

#include "base/json.h"
#include "support/run_program.h"

using namespace llmops;
using namespace llmops::test;

namespace {

RunResult run(const char* program, std::vector<std::string> words, const RunOptions& options = {}) {
  words.insert(words.begin(), program);
  return run_program(std::move(words), options);
}
RunResult llmops_run(std::vector<std::string> words, const RunOptions& options = {}) {
  return run(LLMOPS_BINARY, std::move(words), options);
}
RunResult probe(std::vector<std::string> words, const RunOptions& options = {}) {
  return run(LLMOPS_PROBE, std::move(words), options);
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The names of all commands, from the overview.
std::vector<std::string> command_names() {
  std::vector<std::string> names;
  std::string text = llmops_run({"--help"}).out;
  text = text.substr(text.find("Commands:\n") + 10);
  for (size_t at = 0; text.compare(at, 2, "  ") == 0; at = text.find('\n', at) + 1)
    if (text[at + 2] != ' ') names.push_back(text.substr(at + 2, text.find("  ", at + 2) - at - 2));
  return names;
}

std::vector<std::string> split(const std::string& name) {
  const size_t blank = name.find(' ');
  return blank == std::string::npos ? std::vector{name} : std::vector{name.substr(0, blank), name.substr(blank + 1)};
}

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// The option table of a command as data.
Json table_of(const std::string& name) {
  const RunResult help = llmops_run(with({"help", "--format", "json"}, split(name)));
  const auto json = json_parse(help.out);
  REQUIRE_MESSAGE(json.ok(), help.err);
  return *json;
}

}  // namespace

TEST_CASE("help and completion: --format json is one document") {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"help"}, {"help", "ckpt"}, {"completion", "bash"}}) {
    const RunResult run = llmops_run(with(words, {"--format", "json"}));
    const auto json = json_parse(run.out);
    REQUIRE_MESSAGE(json.ok(), run.out);
    if (words[0] == "completion") {
      CHECK(json->find("script")->as_string() == llmops_run(words).out);
      continue;
    }
    CHECK(json->find("commands")->as_array().size() > 1);
    for (const Json& command : json->find("commands")->as_array()) {
      const std::string name = command.find("name")->as_string();
      CHECK(llmops_run(with({"help"}, split(name))).code == 0);
      CHECK((words.size() == 1 || name.starts_with(words[1] + " ")));
    }
  }
}

TEST_CASE("help: asked for on stdout with 0, not asked for on stderr with 2, never blocked by other words") {
  const RunResult bare = llmops_run({}), asked = llmops_run({"--help"});
  CHECK(bare.code == 2);
  CHECK(bare.out == "");
  CHECK(asked.code == 0);
  CHECK(asked.err == "");
  CHECK(asked.out == bare.err);
  CHECK(llmops_run({"help"}).out == asked.out);
  const RunResult help = llmops_run({"help", "version"});
  CHECK(help.code == 0);
  CHECK(help.out.starts_with("llmops version - "));
  CHECK(llmops_run({"version", "--help"}).out == help.out);
  CHECK(llmops_run({"version", "--no-such-flag", "--format", "x", "-h"}).out == help.out);
  CHECK(help.out.find("Examples:") < help.out.find("Common options:"));
  CHECK(llmops_run({"help", "versoin"}).code == 2);
  CHECK(probe({"show", "--", "--help"}).code == 0);
  const RunResult noun = probe({"ckpt"});
  CHECK(noun.code == 2);
  CHECK(noun.out == "");
  CHECK(probe({"ckpt", "--help"}).out == noun.err);
  CHECK(has(noun.err, "ckpt verify"));
}

TEST_CASE("version") {
  const RunResult line = llmops_run({"--version"});
  CHECK(line.code == 0);
  CHECK(line.out.starts_with("llmops 0.1.0 ("));
  const auto json = json_parse(llmops_run({"version", "--format", "json", "-vvv"}).out);
  REQUIRE(json.ok());
  for (const char* key : {"version", "commit", "compiler", "build_type", "instruction_sets_compiled",
                          "instruction_sets_found", "threads_usable", "cuda_compiled", "cuda_loadable"})
    CHECK_MESSAGE(json->find(key) != nullptr, key);
  CHECK(json->find("threads_usable")->as_int() >= 1);
  CHECK(llmops_run({"--format", "json", "version"}).out == llmops_run({"version", "--format=json"}).out);
}

TEST_CASE("--version, help and completions open no CUDA library; version looks for the driver") {
  const RunOptions tell_files{.env = {{"LD_DEBUG", "files"}}};  // glibc's loader says on stderr what it opens
  for (const auto& words : {std::vector<std::string>{"--version"}, {"--help"}, {"completion", "bash"}}) {
    const RunResult quiet = llmops_run(words, tell_files);
    CHECK(has(quiet.err, "libstdc++"));
    for (const char* library : {"libcuda", "libcublas", "libnccl", "libnvidia-ml"})
      CHECK_FALSE(has(quiet.err, library));
  }
  CHECK(has(llmops_run({"version"}, tell_files).err, "libcuda.so.1"));
}

TEST_CASE("every format carries the same rows; machines get raw numbers, people units") {
  CHECK(probe({"stream", "--rows", "2"}).out ==
        "     step       time  verdict\n        0    1.50 ms  ok\n        1    1.50 ms  ok\n\ntokens  124.4 M\n");
  CHECK(probe({"stream", "--rows", "2", "--format", "jsonl"}).out ==
        "{\"step\":0,\"step_ms\":1.5,\"verdict\":\"ok\"}\n{\"step\":1,\"step_ms\":1.5,\"verdict\":\"ok\"}\n{"
        "\"summary\":{\"tokens\":124439808}}\n");
  CHECK(probe({"stream", "--rows", "1", "--format", "csv"}).out == "step,step_ms,verdict\n0,1.5,ok\n");
  CHECK(probe({"stream", "--rows", "1", "--format", "md"}).out ==
        "| step | time | verdict |\n| ---: | ---: | --- |\n| 0 | 1.50 ms | ok |\n\n- tokens: 124.4 M\n");
  for (const char* rows : {"0", "1", "2"}) {
    const auto json = json_parse(probe({"stream", "--rows", rows, "--format", "json", "-vvv"}).out);
    REQUIRE(json.ok());
    CHECK(static_cast<int>(json->find("results")->as_array().size()) == std::stoi(rows));
    CHECK(json->find("tokens")->as_int() == 124439808);
  }
}

TEST_CASE("a closed pipe is quiet and the work goes on; a failure that was found keeps its code") {
  ScratchDir dir;
  const RunResult closed = probe({"stream", "--rows", "100", "--done", dir / "done"}, {.to = Stdout::closed_pipe});
  CHECK(closed.code == 0);
  CHECK(closed.err == "");
  CHECK(dir.read("done") == "done\n");
  const RunResult finding = probe({"stream", "--fails"}, {.to = Stdout::closed_pipe});
  CHECK(finding.code == 1);
  CHECK(finding.err == "llmops: stream: row 2: found 1, expected 2\n");
  const RunResult head =
      run_program({"bash", "-c",
                   std::string("set -o pipefail; ") + LLMOPS_PROBE + " stream --rows 100000 --format jsonl | head -1"});
  CHECK(head.code == 0);
  CHECK(head.out == "{\"step\":0,\"step_ms\":1.5,\"verdict\":\"ok\"}\n");
  CHECK(head.err == "");
}

TEST_CASE("a full disk is one message and exit 4, also for help; a closed stdout too") {
  for (const auto& words : {std::vector<std::string>{"--help"},
                            {"version"},
                            {"version", "--help"},
                            {"--version"},
                            {"completion", "bash"}}) {
    const RunResult full = llmops_run(words, {.to = Stdout::full_disk});
    CHECK(full.code == 4);
    CHECK(std::count(full.err.begin(), full.err.end(), '\n') == 1);
    CHECK(has(full.err, "standard output: cannot write: No space left on device"));
  }
  CHECK(probe({"stream"}, {.to = Stdout::full_disk}).code == 4);
  const RunResult closed = probe({"stream", "--rows", "1"}, {.to = Stdout::closed});
  CHECK(closed.code == 4);
  CHECK(closed.err == "llmops: stream: standard output: cannot write: Bad file descriptor\n");
}

TEST_CASE("memory and signals") {
  const RunResult memory = probe({"end", "memory"});
  CHECK(memory.code == 4);
  CHECK(memory.err == "llmops: out of memory\n");
  const RunResult saved = probe({"end", "saved"}, {.signal_after_s = 0.3});
  CHECK(saved.code == 75);
  CHECK(has(saved.err, "run it again"));
  CHECK(probe({"end", "unsaved"}, {.signal_after_s = 0.3}).code == 128 + SIGTERM);
  CHECK(probe({"end", "unsaved"}, {.signal_after_s = 0.3, .signal = SIGINT}).code == 128 + SIGINT);
}

TEST_CASE("text from outside cannot drive the terminal") {
  CHECK(probe({"end", "text"}).out == "text\na\\x1b[31mb\\x0ac\n");
  CHECK(probe({"end", "text", "--format", "csv", "--text", "=1+1"}).out == "text\n'=1+1\n");
  CHECK(probe({"end", "text", "--format", "csv", "--text", "a \"b\", c"}).out == "text\n\"a \"\"b\"\", c\"\n");
  CHECK(probe({"end", "text", "--format", "md", "--text", "a|<b>"}).out == "| text |\n| --- |\n| a\\|&lt;b> |\n");
}

TEST_CASE("quiet keeps errors; -v tells on stderr where values came from") {
  const RunResult quiet = probe({"stream", "--fails", "-q"});
  CHECK(quiet.err == "llmops: stream: row 2: found 1, expected 2\n");
  const RunResult verbose = probe({"stream", "--rows", "1", "-v"});
  CHECK(has(verbose.err, "llmops: stream: rows = 1 from --rows\n"));
  CHECK(verbose.out == probe({"stream", "--rows", "1"}).out);
}

TEST_CASE("colour only on a terminal that wants it") {
  const std::vector<std::string> words = {LLMOPS_PROBE, "stream", "--rows", "1"};
  auto coloured = [&](std::vector<std::pair<std::string, std::string>> env, std::vector<std::string> more = {}) {
    return has(run_in_terminal(with(words, more), {.env = std::move(env)}).out, "\x1b[");
  };
  CHECK(coloured({{"TERM", "xterm"}}));
  CHECK(coloured({{"TERM", "xterm"}, {"NO_COLOR", ""}}));
  CHECK_FALSE(coloured({{"TERM", "xterm"}, {"NO_COLOR", "1"}}));
  CHECK_FALSE(coloured({{"TERM", "dumb"}}));
  CHECK_FALSE(coloured({}));
  CHECK_FALSE(coloured({{"TERM", "xterm"}}, {"--no-color"}));
  CHECK_FALSE(coloured({{"TERM", "xterm"}}, {"--format", "json"}));
  CHECK_FALSE(has(run_program(words, {.env = {{"TERM", "xterm"}}}).out, "\x1b["));
  CHECK(has(run_program(words, {.env = {{"FORCE_COLOR", "1"}}}).out, "\x1b["));
}

TEST_CASE("progress: on a terminal's stderr, after two seconds, with the time left; not when quiet or dumb") {
  const std::vector<std::string> words = {LLMOPS_PROBE, "stream", "--rows",   "240",
                                          "--pause-ms", "10",     "--format", "jsonl"};
  const RunResult shown = run_in_terminal(words, {.env = {{"TERM", "xterm"}}}, true);
  CHECK(shown.code == 0);
  CHECK(has(shown.err, "\rrows  "));
  CHECK(has(shown.err, " left  loss 2.31"));
  CHECK_FALSE(has(shown.err, "\x1b"));
  CHECK(shown.err.back() == '\r');  // taken away at the end
  CHECK(std::count(shown.out.begin(), shown.out.end(), '\n') == 241);
  CHECK(run_in_terminal(with(words, {"-q"}), {.env = {{"TERM", "xterm"}}}, true).err == "");
  CHECK(run_in_terminal(words, {.env = {{"TERM", "dumb"}}}, true).err == "");
  CHECK(run_program(words, {.env = {{"TERM", "xterm"}}}).err == "");
}

TEST_CASE("completions name every command and option, and bash loads them") {
  const std::string bash = llmops_run({"completion", "bash"}).out, zsh = llmops_run({"completion", "zsh"}).out,
                    fish = llmops_run({"completion", "fish"}).out;
  for (const std::string& name : command_names()) {
    CHECK_MESSAGE(has(bash, "'" + name + "'"), name);
    const Json table = table_of(name);
    for (const Json& option : table.find("options")->as_array()) {
      const std::string flag = option.find("name")->as_string();
      if (!flag.starts_with("--")) continue;
      CHECK_MESSAGE(has(bash, flag), flag);
      CHECK_MESSAGE(has(zsh, flag), flag);
      CHECK_MESSAGE(has(fish, " -l " + flag.substr(2)), flag);
    }
  }
  ScratchDir dir;
  dir.write("llmops", bash);
  CHECK(run_program({"bash", "-n", dir / "llmops"}).code == 0);
  dir.write("probe", probe({"show"}).code == 0 ? bash : "");
  auto complete = [&](const std::string& words, int at) {
    const std::string script = "source " + (dir / "llmops") +
                               "; complete -p llmops >/dev/null || exit 9; COMP_WORDS=(" + words +
                               "); COMP_CWORD=" + std::to_string(at) + "; _llmops; printf '%s\\n' \"${COMPREPLY[@]}\"";
    return run_program({"bash", "-c", script}, {.dir = dir.path()}).out;
  };
  CHECK(complete("llmops vers", 1) == "version\n");
  CHECK(complete("llmops version --for", 2) == "--format\n");
  CHECK(complete("llmops version --format js", 3) == "json\njsonl\n");
  CHECK(complete("llmops version --format = js", 4) == "json\njsonl\n");
  CHECK(complete("llmops completion b", 2) == "bash\n");
  CHECK(complete("llmops help vers", 2) == "version\n");
  CHECK(complete("llmops version --config ll", 3) == "llmops\n");
  CHECK(llmops_run({"completion", "tcsh"}).err ==
        "llmops: completion: SHELL: found 'tcsh', expected bash, zsh or fish\n");
}

TEST_CASE("every command has a man page that names every option and that groff takes without a warning") {
  const bool has_groff = run_program({"bash", "-c", "command -v groff"}).code == 0;
  if (!has_groff) MESSAGE("groff is not installed: pages are not rendered");
  for (const std::string& name : with(command_names(), {""})) {
    std::string file = std::string(LLMOPS_MAN) + "/llmops" + (name.empty() ? "" : "-" + name) + ".1";
    std::replace(file.begin() + static_cast<std::ptrdiff_t>(std::string(LLMOPS_MAN).size()), file.end(), ' ', '-');
    const std::string page = run_program({"cat", file}).out;
    REQUIRE_MESSAGE(page.starts_with(".TH"), file);
    CHECK(page == llmops_run(with({"help", "--man"}, name.empty() ? std::vector<std::string>{} : split(name))).out);
    if (has_groff) {
      const RunResult groff = run_program({"groff", "-man", "-Tutf8", "-ww", "-P-cbou", file});
      CHECK(groff.code == 0);
      CHECK(groff.err == "");
      CHECK(has(groff.out, "EXIT STATUS"));
    }
    for (const char* untrue : {"enchmark", "serve", "Sizes take", "plan that does not fit"})
      CHECK_FALSE(has(page, untrue));
    if (name.empty()) continue;
    const Json table = table_of(name);
    for (const Json& option : table.find("options")->as_array()) {
      std::string flag = option.find("name")->as_string();
      for (size_t at = 0; (at = flag.find('-', at)) != std::string::npos; at += 2) flag.insert(at, "\\");
      CHECK_MESSAGE(has(page, flag), flag);
      // The help as it is: its first word may be a value to type, such as plan.toml or byte.
      std::string help = option.find("help")->as_string();
      for (size_t at = 0; (at = help.find('-', at)) != std::string::npos; at += 2) help.insert(at, "\\");
      CHECK_MESSAGE(has(page, "\n" + help), help);
    }
  }
}
