// llmops ckpt through the real program: damage is found and named, what is no checkpoint is told apart, exports work.
#include <random>

#include "cli/work.h"

using namespace llmops;
using namespace llmops::test;

namespace {

struct Saved : Work {
  std::string step = "run/step-00000004";
  Saved() { REQUIRE(train({"--steps", "4", "--ranks", "2", "--tokenizer", "byte", "--out", "run"}).code == 0); }

  RunResult ckpt(std::vector<std::string> words) const {
    words.insert(words.begin(), "ckpt");
    return llmops(std::move(words));
  }
  // The findings of `ckpt verify`; each run says the same by its exit code.
  std::vector<Json> findings(const std::string& path) const {
    const RunResult run = ckpt({"verify", path, "--format", "json"});
    const auto json = json_parse(run.out);
    REQUIRE_MESSAGE(json.ok(), run.out, run.err);
    const std::vector<Json> found = json->find("results")->as_array();
    CHECK(run.code == (found.empty() ? 0 : 1));
    return found;
  }
};

bool names(const std::vector<Json>& findings, const std::string& file) {
  return std::ranges::any_of(findings, [&](const Json& f) { return f.find("file")->as_string().ends_with(file); });
}

// Some finding of the file holds the byte, or speaks of the whole file.
bool covers(const std::vector<Json>& findings, const std::string& file, int64_t byte) {
  return std::ranges::any_of(findings, [&](const Json& f) {
    const Json *begin = f.find("byte_begin"), *end = f.find("byte_end");
    return f.find("file")->as_string().ends_with(file) &&
           (begin->is_null() || (begin->as_int() <= byte && byte < end->as_int()));
  });
}

}  // namespace

TEST_CASE("one changed bit anywhere is found, in its file and at its byte") {
  const Saved work;
  CHECK(work.findings("run").empty());
  std::mt19937 random(5);
  const auto files = files_of(work.dir / work.step);
  CHECK(files.size() >= 3);
  CHECK(std::ranges::any_of(files, [](const auto& file) { return file.first == "manifest.json"; }));
  for (const auto& [name, content] : files) {
    std::vector<size_t> places = {0, content.size() / 2, content.size() - 1};
    for (int i = 0; i < 8; ++i) places.push_back(random() % content.size());
    for (size_t at : places) {
      std::string damaged = content;
      damaged[at] ^= static_cast<char>(1 << random() % 8);
      work.dir.write(work.step + "/" + name, damaged);
      INFO(name, " byte ", at);
      CHECK(covers(work.findings(work.step), name, static_cast<int64_t>(at)));
      CHECK(names(work.findings("run"), name));
    }
    work.dir.write(work.step + "/" + name, content);
  }
  CHECK(work.findings("run").empty());
}

TEST_CASE("files that are shorter, longer, missing or swapped are found") {
  const Saved work;
  const auto files = files_of(work.dir / work.step);
  for (const auto& [name, content] : files) {
    INFO(name);
    work.dir.write(work.step + "/" + name, content.substr(0, content.size() - 1));
    CHECK(names(work.findings(work.step), name));
    work.dir.write(work.step + "/" + name, content + "x");
    CHECK(names(work.findings(work.step), name));
    work.dir.write(work.step + "/" + name, "");
    CHECK(names(work.findings(work.step), name));
    if (name.starts_with("shard-")) {
      std::filesystem::remove(work.dir / (work.step + "/" + name));
      CHECK(names(work.findings(work.step), name));
    }
    work.dir.write(work.step + "/" + name, content);
  }
  const std::string first = work.step + "/shard-00000.safetensors", second = work.step + "/shard-00001.safetensors";
  const std::string a = work.dir.read(first), b = work.dir.read(second);
  work.dir.write(first, b);
  work.dir.write(second, a);
  CHECK(names(work.findings(work.step), "shard-00000.safetensors"));
  CHECK(names(work.findings(work.step), "shard-00001.safetensors"));
  work.dir.write(first, a);
  work.dir.write(second, b);
  CHECK(work.findings("run").empty());
}

TEST_CASE("what is no checkpoint, and what is not there") {
  const Saved work;
  std::filesystem::create_directory(work.dir / "empty");
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"verify"}, {"ls"}, {"export", "--to", "hf", "--", "DIR", "out"}}) {
    for (const auto& [path, code] : {std::pair{"empty", 3}, {"missing", 4}}) {
      std::vector<std::string> all = words;
      if (const auto dir = std::ranges::find(all, "DIR"); dir != all.end()) *dir = path;
      else all.push_back(path);
      const RunResult run = work.ckpt(all);
      INFO(words[0], " ", path, ": ", run.err);
      CHECK(run.code == code);
      CHECK(run.out == "");
      CHECK(run.err.find(path) != std::string::npos);
      CHECK(std::ranges::count(run.err, '\n') == 1);
      CHECK_FALSE(std::filesystem::exists(work.dir / "out"));
    }
  }
  CHECK(work.ckpt({"verify"}).code == 2);
}

TEST_CASE("ls lists the weights and both moments, of the newest step of a run too") {
  const Saved work;
  const RunResult run = work.ckpt({"ls", "run", "--format", "json"});
  const RunResult step = work.ckpt({"ls", work.step, "--format", "json"});
  REQUIRE_MESSAGE(run.code == 0, run.err);
  CHECK(run.out.substr(0, run.out.find("\"path\"")) == step.out.substr(0, step.out.find("\"path\"")));
  const auto json = json_parse(run.out);
  REQUIRE(json.ok());
  CHECK(json->find("step")->as_int() == 4);
  CHECK(json->find("meta")->find("train")->find("batch")->as_int() == 8);
  int64_t bytes = 0, moments = 0, weights = 0;
  for (const Json& tensor : json->find("results")->as_array()) {
    const std::string name = tensor.find("name")->as_string();
    bytes += tensor.find("size_bytes")->as_int();
    ++(name.starts_with("optim.") ? moments : weights);
    CHECK(tensor.find("digest")->as_string().size() == 32);
  }
  CHECK(bytes < json->find("size_bytes")->as_int());  // the files: with headers and manifest
  CHECK(bytes * 11 / 10 > json->find("size_bytes")->as_int());
  CHECK(moments == 2 * weights);
}

TEST_CASE("an export answers as the run does; in bf16 it is half as large; nothing is overwritten, no damage travels") {
  const Saved work;
  const auto answer = [&](const std::string& model) {
    const RunResult run = work.llmops(
        {"infer", "run", "--ckpt", model, "--tokenizer", "byte", "--prompt", "the rank", "--max-tokens", "12"});
    REQUIRE_MESSAGE(run.code == 0, run.err);
    return run.out;
  };
  for (const char* out : {"hf", "again"}) {
    const RunResult run = work.ckpt({"export", "run", "--to", "hf", out, "--format", "json"});
    REQUIRE_MESSAGE(run.code == 0, run.err);
    CHECK(json_parse(run.out).ok());
  }
  CHECK(files_of(work.dir / "hf") == files_of(work.dir / "again"));
  CHECK(answer("hf") == answer("run"));
  REQUIRE(work.ckpt({"export", work.step, "--to", "hf", "half", "--dtype", "bf16"}).code == 0);
  const auto size = [&](const std::string& dir) {
    return std::filesystem::file_size(work.dir / (dir + "/model.safetensors"));
  };
  CHECK(size("half") < size("hf") * 6 / 10);
  CHECK(size("half") > size("hf") * 4 / 10);

  const RunResult used = work.ckpt({"export", "run", "--to", "hf", "hf"});
  CHECK(used.code == 2);
  CHECK(used.err.find("hf") != std::string::npos);
  CHECK(files_of(work.dir / "hf") == files_of(work.dir / "again"));
  std::string shard = work.dir.read(work.step + "/shard-00001.safetensors");
  shard.back() ^= 1;
  work.dir.write(work.step + "/shard-00001.safetensors", shard);
  const RunResult damaged = work.ckpt({"export", work.step, "--to", "hf", "damaged"});
  CHECK(damaged.code == 3);
  CHECK(damaged.err.find("shard-00001.safetensors") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(work.dir / "damaged"));
}
