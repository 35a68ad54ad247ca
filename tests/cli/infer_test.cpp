// llmops infer run through the real program.
#include "cli/work.h"

using namespace llmops;
using namespace llmops::test;

namespace {

struct Trained : Work {
  Trained() { REQUIRE(train({"--steps", "40", "--out", "run"}).code == 0); }
  RunResult infer(std::vector<std::string> more) const {
    std::vector<std::string> words = {"infer", "run", "--ckpt", "run", "--max-tokens", "16"};
    words.insert(words.end(), more.begin(), more.end());
    return llmops(std::move(words));
  }
};

}  // namespace

TEST_CASE("the same answer at any thread count, alone and in any batch, from a run, a step and a Hugging Face export") {
  Trained work;
  const RunResult plain = work.infer({"--prompt", "the rank", "--threads", "1"});
  REQUIRE_MESSAGE(plain.code == 0, plain.err);
  CHECK(plain.out.size() > 10);
  CHECK(work.infer({"--prompt", "the rank", "--threads", "2"}).out == plain.out);
  const RunResult step =
      work.llmops({"infer", "run", "--ckpt", "run/step-00000040", "--max-tokens", "16", "--prompt", "the rank"});
  CHECK(step.out == plain.out);
  std::string lines;
  for (const char* prompt : {"gradient", "the rank", "a", "step with the model and its"})
    lines += std::string("{\"prompt\": \"") + prompt + "\"}\n";
  work.dir.write("in.jsonl", lines);
  std::string first;
  for (const char* batch : {"1", "3", "32"}) {
    const RunResult run = work.infer({"--input", "in.jsonl", "--batch", batch});
    REQUIRE_MESSAGE(run.code == 0, run.err);
    if (first.empty()) first = run.out;
    CHECK(run.out == first);
    const auto second = json_parse(std::string_view(run.out).substr(
        run.out.find('\n') + 1, run.out.find('\n', run.out.find('\n') + 1) - run.out.find('\n') - 1));
    REQUIRE(second.ok());
    CHECK(second->find("text")->as_string() + "\n" == plain.out);
    CHECK(second->find("finish_reason")->as_string() == "length");
    CHECK(second->find("prompt_tokens")->as_int() == 8);
    CHECK(second->find("completion_tokens")->as_int() == 16);
  }
}

TEST_CASE("sampling is a function of the seed; stop strings never leak") {
  Trained work;
  const RunResult a = work.infer({"--prompt", "the ", "--temperature", "1", "--seed", "5"}),
                  b = work.infer({"--prompt", "the ", "--temperature", "1", "--seed", "5"});
  CHECK(a.out == b.out);
  CHECK(work.infer({"--prompt", "the ", "--temperature", "1", "--seed", "6"}).out != a.out);
  const RunResult whole = work.infer({"--prompt", "the rank"});
  const std::string stop = whole.out.substr(4, 3);
  const RunResult cut = work.infer({"--prompt", "the rank", "--stop", stop});
  CHECK(cut.code == 0);
  CHECK(cut.out == whole.out.substr(0, whole.out.find(stop)) + "\n");
}

TEST_CASE("json is one document at any verbosity; a bad line is answered and counted") {
  Trained work;
  const RunResult json = work.infer({"--prompt", "a", "--format", "json", "-vvv"});
  const auto document = json_parse(json.out);
  REQUIRE(document.ok());
  REQUIRE(document->find("results")->as_array().size() == 1);
  work.options.stdin_text =
      "{\"prompt\": \"a\"}\nnot json\n{\"prompt\": \"a\", \"best\": 3}\n"
      "{\"custom_id\": \"x\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": [1, 2, 3], "
      "\"max_tokens\": 2}}\n"
      "{\"custom_id\": \"y\", \"method\": \"POST\", \"url\": \"/v1/completions\"}\n";
  const RunResult batch = work.infer({"--input", "-"});
  CHECK(batch.code == 1);
  std::vector<Json> lines;
  for (size_t begin = 0, end; (end = batch.out.find('\n', begin)) != std::string::npos; begin = end + 1) {
    auto line = json_parse(std::string_view(batch.out).substr(begin, end - begin));
    REQUIRE(line.ok());
    lines.push_back(line.take());
  }
  REQUIRE(lines.size() == 5);
  CHECK(lines[0].find("text"));
  CHECK(lines[1].find("error"));
  CHECK(lines[2].find("error")->as_string().find("best") != std::string::npos);
  CHECK(lines[3].find("custom_id")->as_string() == "x");
  CHECK(lines[3].find("response")->find("status_code")->as_int() == 200);
  CHECK(lines[3].find("response")->find("body")->find("usage")->find("completion_tokens")->as_int() == 2);
  CHECK(lines[4].find("custom_id")->as_string() == "y");
  CHECK(lines[4].find("response")->find("status_code")->as_int() == 400);
}

TEST_CASE("infer: bad input") {
  Trained work;
  struct Case {
    std::vector<std::string> words;
    int code;
    const char* said;
  };
  for (const Case& c :
       {Case{{"--ckpt", "missing", "--prompt", "a"}, 4, "missing"}, Case{{"--ckpt", "run"}, 2, "--prompt"},
        Case{{"--ckpt", "run", "--prompt", ""}, 3, "empty"}, Case{{"--ckpt", "run", "--prompt", "Z"}, 3, "Z"},
        Case{{"--ckpt", ".", "--prompt", "a"}, 3, "no model"},
        Case{{"--ckpt", "run", "--prompt", "a", "--top-p", "0"}, 2, "top-p"}}) {
    std::vector<std::string> words = {"infer", "run"};
    words.insert(words.end(), c.words.begin(), c.words.end());
    const RunResult run = work.llmops(words);
    INFO(c.words.back(), ": ", run.err);
    CHECK(run.code == c.code);
    CHECK(run.out == "");
    CHECK(run.err.find(c.said) != std::string::npos);
  }
}

TEST_CASE("what is not taken is named: several prompts in a line, a SentencePiece tokenizer; the range of --top-p") {
  Trained work;
  work.dir.write("many.jsonl",
                 "{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": "
                 "[\"And\", \"or\"]}}\n"
                 "{\"prompt\": [[1, 2], [3]]}\n");
  const RunResult many = work.llmops({"infer", "run", "--ckpt", "run", "--input", "many.jsonl"});
  CHECK(many.code == 1);
  const size_t first = many.out.find("list of prompts");
  CHECK_MESSAGE(first != std::string::npos, many.out);
  CHECK(many.out.find("list of prompts", first + 1) != std::string::npos);

  REQUIRE(work.llmops({"ckpt", "export", "run", "--to", "hf", "hf"}).code == 0);
  for (const char* file : {"tokenizer.json", "vocab.json", "merges.txt"})
    std::filesystem::remove(work.dir / ("hf/" + std::string(file)));
  work.dir.write("hf/tokenizer.model", "x");
  const RunResult other = work.llmops({"infer", "run", "--ckpt", "hf", "--prompt", "a"});
  CHECK(other.code == 2);
  CHECK_MESSAGE(other.err.find("SentencePiece") != std::string::npos, other.err);

  CHECK(work.llmops({"infer", "run", "--help"}).out.find("above 0, up to 1") != std::string::npos);
}
