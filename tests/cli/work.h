// A scratch folder with a text to train on, and short ways to run the commands in it. For end-to-end tests.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "support/run_program.h"

namespace llmops::test {

// Pseudo-English from a word list: enough structure that a model learns something in a few steps. Pure in its
// arguments.
inline std::string sample_text(size_t bytes, uint32_t seed = 1) {
  static const char* kWords[] = {"the", "rank", "of",  "a",        "tensor", "and",  "its", "shard",
                                 "in",  "step", "was", "gradient", "with",   "loss", "to",  "model"};
  std::string text;
  for (uint32_t state = seed; text.size() < bytes;) {
    state = state * 1664525u + 1013904223u;
    text += kWords[state >> 28];
    text += (state >> 20 & 15) == 0 ? ".\n" : " ";
  }
  return text;
}

struct Work {
  ScratchDir dir;
  RunOptions options;
  Work() {
    dir.write("text.txt", sample_text(40000));
    options.dir = dir.path();
  }
  RunResult llmops(std::vector<std::string> words) const {
    words.insert(words.begin(), LLMOPS_BINARY);
    return run_program(std::move(words), options);
  }
  // train on text.txt, small enough for a test; `more` wins over the defaults.
  RunResult train(std::vector<std::string> more) const {
    std::vector<std::string> words = {"train",       "--data", "text.txt", "--model",  "gpt2:2x32",
                                      "--tokenizer", "char",   "--seq",    "16",       "--batch",
                                      "8",           "--seed", "1",        "--format", "jsonl"};
    words.insert(words.end(), more.begin(), more.end());
    return llmops(std::move(words));
  }
};

// The words of a run that writes to `out`, from its start or from where it was left.
inline std::vector<std::string> into(const std::string& out, std::vector<std::string> run, bool resume) {
  run.insert(run.end(), {"--out", out});
  if (resume) run.insert(run.end(), {"--resume", "auto"});
  return run;
}

// The step records of a jsonl run.
inline std::vector<Json> steps_of(const std::string& out) {
  std::vector<Json> steps;
  for (size_t begin = 0, end; (end = out.find('\n', begin)) != std::string::npos; begin = end + 1) {
    auto json = json_parse(std::string_view(out).substr(begin, end - begin));
    REQUIRE_MESSAGE(json.ok(), out.substr(begin, end - begin));
    if (json->find("step")) steps.push_back(json.take());
  }
  return steps;
}

inline std::vector<std::string> losses_of(const std::string& out) {
  std::vector<std::string> losses;
  for (const Json& step : steps_of(out)) losses.push_back(step.find("loss")->dump());
  return losses;
}

// Name and content of every file of a step folder.
inline std::vector<std::pair<std::string, std::string>> files_of(const std::string& step_dir) {
  std::vector<std::pair<std::string, std::string>> files;
  for (const auto& entry : std::filesystem::directory_iterator(step_dir)) {
    std::ifstream in(entry.path(), std::ios::binary);
    files.emplace_back(entry.path().filename().string(), std::string(std::istreambuf_iterator<char>(in), {}));
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace llmops::test
