// llmops train through the real program: equal bits across ranks, shards, threads, kills and resumes; bad input.
#include <cmath>
#include <random>

#include "cli/work.h"

using namespace llmops;
using namespace llmops::test;

TEST_CASE("ranks agree to 1e-5 on their own shards, and to the bit on four") {
  Work work;
  std::vector<std::vector<double>> own;
  std::vector<std::vector<std::string>> four;
  std::vector<std::string> digests;
  for (const char* ranks : {"1", "2", "4"}) {
    const RunResult plain = work.train({"--steps", "12", "--ranks", ranks});
    REQUIRE_MESSAGE(plain.code == 0, plain.err);
    std::vector<double> losses;
    for (const Json& step : steps_of(plain.out)) losses.push_back(step.find("loss")->as_double());
    CHECK(losses.size() == 12);
    own.push_back(losses);
    const std::string out = std::string("run") + ranks;
    const RunResult sharded = work.train({"--steps", "12", "--ranks", ranks, "--shards", "4", "--out", out});
    REQUIRE_MESSAGE(sharded.code == 0, sharded.err);
    four.push_back(losses_of(sharded.out));
    const RunResult ls = work.llmops({"ckpt", "ls", out, "--format", "json"});
    REQUIRE_MESSAGE(ls.code == 0, ls.err);
    const auto json = json_parse(ls.out);
    REQUIRE(json.ok());
    std::string all;
    for (const Json& tensor : json->find("results")->as_array())
      all += tensor.find("name")->as_string() + " " + tensor.find("digest")->as_string() + "\n";
    CHECK(!all.empty());
    digests.push_back(all);
  }
  for (int i : {1, 2}) {
    for (size_t step = 0; step < own[0].size(); ++step) CHECK(std::fabs(own[i][step] - own[0][step]) < 1e-5);
    CHECK(four[i] == four[0]);
    CHECK(digests[i] == digests[0]);
  }
  CHECK(own[0].back() < own[0].front() - 0.05);  // it learns
}

TEST_CASE("two runs of one layout have equal files, at any thread count") {
  Work work;
  std::vector<std::vector<std::pair<std::string, std::string>>> files;
  for (const char* threads : {"1", "1", "2"}) {
    const std::string out = "run" + std::to_string(files.size());
    const RunResult run = work.train({"--steps", "6", "--ranks", "2", "--threads", threads, "--out", out});
    REQUIRE_MESSAGE(run.code == 0, run.err);
    files.push_back(files_of(work.dir / (out + "/step-00000006")));
  }
  CHECK(files[0].size() == 3);
  CHECK(files[1] == files[0]);
  CHECK(files[2] == files[0]);
}

TEST_CASE("gradient accumulation changes the loss by rounding only") {
  Work work;
  const RunResult whole = work.train({"--steps", "5"}), parts = work.train({"--steps", "5", "--micro-batch", "3"});
  REQUIRE_MESSAGE(parts.code == 0, parts.err);
  const std::vector<Json> a = steps_of(whole.out), b = steps_of(parts.out);
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i)
    CHECK(std::fabs(a[i].find("loss")->as_double() - b[i].find("loss")->as_double()) < 1e-5);
}

TEST_CASE("bf16 trains close to f32, with f32 master weights") {
  Work work;
  const RunResult f32 = work.train({"--steps", "20"}),
                  bf16 = work.train({"--steps", "20", "--dtype", "bf16", "--ranks", "2"});
  REQUIRE_MESSAGE(bf16.code == 0, bf16.err);
  const double a = steps_of(f32.out).back().find("loss")->as_double(),
               b = steps_of(bf16.out).back().find("loss")->as_double();
  CHECK(std::fabs(a - b) < 0.05);
}

TEST_CASE("zero 0 and zero 1 train alike") {
  Work work;
  const RunResult sharded = work.train({"--steps", "6", "--ranks", "2"}),
                  replicated = work.train({"--steps", "6", "--ranks", "2", "--zero", "0"});
  REQUIRE_MESSAGE(replicated.code == 0, replicated.err);
  CHECK(losses_of(sharded.out) == losses_of(replicated.out));
}

TEST_CASE("killed at random moments and resumed, a run ends with the files of the undisturbed one") {
  Work work;
  const std::vector<std::string> run = {"--steps", "60", "--ranks", "2", "--save-every", "7"};
  const RunResult whole = work.train(into("whole", run, false));
  REQUIRE_MESSAGE(whole.code == 0, whole.err);
  std::mt19937 random(7);
  std::uniform_real_distribution<double> delay_s(0.05, 0.6 * whole.wall_s);
  int parent_kills = 0, rank_kills = 0;
  RunResult last;
  for (int attempt = 0; attempt < 20; ++attempt) {
    std::vector<std::string> words = into("killed", run, true);
    if (attempt % 2 == 0) {  // the parent
      work.options.signal = SIGKILL;
      work.options.signal_after_s = delay_s(random);
      last = work.train(words);
      work.options.signal_after_s = 0;
      if (last.code == 0) break;
      CHECK(last.code == 128 + SIGKILL);
      ++parent_kills;
    } else {  // its last child: rank 1
      std::string line =
          LLMOPS_BINARY " train --data text.txt --model gpt2:2x32 --tokenizer char --seq 16 --batch 8 --seed 1 -q";
      for (const std::string& word : words) line += " " + word;
      last = run_program({"bash", "-c",
                          line + " >/dev/null & p=$!; sleep " + std::to_string(delay_s(random)) +
                              "; set -- $(cat /proc/$p/task/$p/children); [ $# = 2 ] && kill -9 $2; wait $p"},
                         work.options);
      if (last.code == 0) break;
      CHECK((last.code == 5 || last.err.find("signal 9") != std::string::npos));
      ++rank_kills;
    }
  }
  work.options.signal_after_s = 0;
  last = work.train(into("killed", run, true));
  REQUIRE_MESSAGE(last.code == 0, last.err);
  CHECK(parent_kills > 0);
  CHECK(rank_kills > 0);
  CHECK(files_of(work.dir / "killed/step-00000060") == files_of(work.dir / "whole/step-00000060"));
}

TEST_CASE("SIGTERM saves, says so and ends with 75; resume finishes; a finished run is left alone") {
  Work work;
  work.options.signal = SIGTERM;
  work.options.signal_after_s = 1.0;
  const RunResult stopped = work.train({"--steps", "1000000", "--ranks", "2", "--out", "run"});
  CHECK(stopped.code == 75);
  CHECK(stopped.err.find("--resume auto") != std::string::npos);
  work.options.signal_after_s = 0;
  const int64_t at = steps_of(stopped.out).back().find("step")->as_int();
  const RunResult more =
      work.train({"--steps", std::to_string(at + 3), "--ranks", "2", "--out", "run", "--resume", "auto"});
  REQUIRE_MESSAGE(more.code == 0, more.err);
  CHECK(steps_of(more.out).size() == 3);
  const RunResult done =
      work.train({"--steps", std::to_string(at + 3), "--ranks", "2", "--out", "run", "--resume", "auto"});
  CHECK(done.code == 0);
  CHECK(steps_of(done.out).empty());
}

TEST_CASE("a time limit saves and ends with 75") {
  Work work;
  const RunResult run = work.train({"--steps", "1000000", "--max-time", "1s", "--out", "run"});
  CHECK(run.code == 75);
  CHECK(work.llmops({"ckpt", "verify", "run"}).code == 0);
}

TEST_CASE("--init-from takes a run folder: its newest valid step, on every rank") {
  Work work;
  REQUIRE(work.train({"--steps", "4", "--save-every", "2", "--out", "base"}).code == 0);
  const auto start = [&](const char* from, const char* ranks) {
    const RunResult run = work.train({"--steps", "2", "--shards", "2", "--init-from", from, "--ranks", ranks, "--out",
                                      std::string("from-") + std::filesystem::path(from).filename().string() + ranks});
    REQUIRE_MESSAGE(run.code == 0, run.err);
    return losses_of(run.out);
  };
  CHECK(start("base", "1") == start("base/step-00000004", "1"));
  CHECK(start("base", "2") == losses_of(work.dir.read("from-base1/metrics.jsonl")));
  CHECK(work.dir.read("from-base2/run.toml").find("init_from = \"base/step-00000004\"") != std::string::npos);
  work.dir.write("base/step-00000004/manifest.json", "{}");
  CHECK(start("base/", "1") == start("base/step-00000002", "1"));
}

TEST_CASE("JSON lines without a name that says so are a text, and a note tells how to read them") {
  Work work;
  const std::string lines = "{\"text\": \"" + std::string(300, 'a') + "\"}\n";
  work.dir.write("lines", lines + lines);
  const auto notes = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"train", "--steps", "1", "--seq", "16", "--data"});
    const RunResult run = work.llmops(more);
    CHECK_MESSAGE(run.code == 0, run.err);
    return run.err.find("--data-format jsonl") != std::string::npos;
  };
  CHECK(notes({"lines"}));
  CHECK_FALSE(notes({"lines", "--data-format", "jsonl"}));
  CHECK_FALSE(notes({"lines", "--data-format", "text"}));
  CHECK_FALSE(notes({"text.txt"}));
  const RunResult piped =
      run_program({"sh", "-c", "exec \"$0\" train --steps 1 --seq 16 --data - <lines", LLMOPS_BINARY}, work.options);
  CHECK(piped.code == 0);
  CHECK(piped.err.find("--data-format jsonl") != std::string::npos);
}

TEST_CASE("a run of no steps says so; a dry run names memory in words") {
  Work work;
  const RunResult none = work.train({"--steps", "0", "--out", "none", "--format", "table"});
  CHECK(none.code == 0);
  CHECK((none.out + none.err).find("no step was asked for") != std::string::npos);
  const RunResult dry = work.train({"--dry-run", "--format", "table", "--out", "none"});
  CHECK(dry.out.find("activations kept for the backward pass") != std::string::npos);
  CHECK(dry.out.find("transient") == std::string::npos);
}

TEST_CASE("75 means that something was saved: a run that could save nothing ends by the signal") {
  Work work;
  work.options.signal = SIGTERM;
  work.options.signal_after_s = 0.7;
  const RunResult no_folder = work.train({"--steps", "1000000", "--ranks", "2"});
  CHECK_MESSAGE(no_folder.code == 128 + SIGTERM, no_folder.err);
  // Still reading: the text comes from a pipe that stays open.
  const RunResult reading = run_program(
      {"sh", "-c", "mkfifo pipe && exec 3<>pipe && exec \"$0\" train --data - --out run <&3", LLMOPS_BINARY},
      work.options);
  CHECK_MESSAGE(reading.code == 128 + SIGTERM, reading.err);
  CHECK(!std::filesystem::exists(work.dir / "run"));
  work.options.signal_after_s = 0;
  CHECK(work.train({"--steps", "3", "--max-time", "1s"}).code == 2);  // nowhere to save to
}

TEST_CASE("resume keeps batch, seed and data, and falls back from a damaged step") {
  Work work;
  REQUIRE(work.train({"--steps", "6", "--save-every", "3", "--out", "run"}).code == 0);
  CHECK(work.train({"--steps", "9", "--out", "run"}).code == 2);  // holds steps
  CHECK(work.train({"--steps", "9", "--out", "run", "--resume", "auto", "--seed", "2"}).code == 2);
  CHECK(work.train({"--steps", "9", "--out", "run", "--resume", "auto", "--batch", "4"}).code == 2);
  work.dir.write("text.txt", sample_text(40000, 2));
  const RunResult other = work.train({"--steps", "9", "--out", "run", "--resume", "auto"});
  CHECK(other.code == 2);
  CHECK(other.err.find("the data changed") != std::string::npos);
  work.dir.write("text.txt", sample_text(40000));

  std::string shard = work.dir.read("run/step-00000006/shard-00000.safetensors");
  shard[shard.size() / 2] ^= 1;
  work.dir.write("run/step-00000006/shard-00000.safetensors", shard);
  CHECK(work.llmops({"ckpt", "verify", "run"}).code == 1);
  const RunResult resumed = work.train({"--steps", "6", "--save-every", "3", "--out", "run", "--resume", "auto"});
  REQUIRE_MESSAGE(resumed.code == 0, resumed.err);
  CHECK(resumed.err.find("skipped run/step-00000006") != std::string::npos);
  CHECK(steps_of(resumed.out).front().find("step")->as_int() == 4);
  CHECK(work.llmops({"ckpt", "verify", "run"}).code == 0);
}

TEST_CASE("keep leaves the newest steps; an empty folder starts at 0") {
  Work work;
  std::filesystem::create_directory(work.dir / "run");
  REQUIRE(work.train({"--steps", "10", "--save-every", "2", "--keep", "2", "--out", "run", "--resume", "auto"}).code ==
          0);
  std::vector<std::string> steps;
  for (const auto& entry : std::filesystem::directory_iterator(work.dir / "run"))
    if (entry.is_directory()) steps.push_back(entry.path().filename().string());
  std::sort(steps.begin(), steps.end());
  CHECK(steps == std::vector<std::string>{"step-00000008", "step-00000010"});
  CHECK(work.dir.read("run/latest") == "step-00000010\n");
}

TEST_CASE("keep counts no step that the resume went back behind") {
  Work work;
  REQUIRE(work.train({"--steps", "6", "--save-every", "2", "--out", "run"}).code == 0);
  std::string manifest = work.dir.read("run/step-00000006/manifest.json");
  manifest[manifest.size() / 2] ^= 1;
  work.dir.write("run/step-00000006/manifest.json", manifest);
  std::filesystem::create_directory(work.dir / "run/step-00000099");
  const RunResult run = work.train({"--steps", "5", "--keep", "1", "--out", "run", "--resume", "auto"});
  REQUIRE_MESSAGE(run.code == 0, run.err);
  CHECK(work.llmops({"ckpt", "verify", "run/step-00000005"}).code == 0);
  CHECK(!std::filesystem::exists(work.dir / "run/step-00000004"));
  CHECK(work.llmops({"infer", "run", "--ckpt", "run", "--prompt", "the", "--max-tokens", "2"}).code == 0);
}

TEST_CASE("a damaged step that is given by its name is refused, to start from and to infer with") {
  Work work;
  REQUIRE(work.train({"--steps", "2", "--out", "run"}).code == 0);
  const std::string name = "run/step-00000002", file = name + "/shard-00000.safetensors";
  std::string shard = work.dir.read(file);
  shard[shard.size() / 2] ^= 1;
  work.dir.write(file, shard);
  const RunResult infer = work.llmops({"infer", "run", "--ckpt", name, "--prompt", "the", "--max-tokens", "2"});
  const RunResult train = work.train({"--steps", "2", "--init-from", name});
  for (const RunResult& run : {infer, train}) {
    CHECK(run.code == 3);
    CHECK(run.out.empty());
    CHECK_MESSAGE(run.err.find(file) != std::string::npos, run.err);
  }
}

// Nothing is learned at a rate of 0, and what a new model says of every character is nearly the same.
TEST_CASE("the validation loss is a mean over the tokens of its windows") {
  Work work;
  for (const char* ranks : {"1", "2"}) {
    const RunResult run = work.train({"--steps", "1", "--lr", "0", "--val-windows", "3", "--ranks", ranks});
    REQUIRE_MESSAGE(run.code == 0, run.err);
    const Json step = steps_of(run.out).front();
    CHECK(std::fabs(step.find("val_loss")->as_double() / step.find("loss")->as_double() - 1) < 0.05);
  }
}

TEST_CASE("a full standard output ends the run at the next step, which is saved and named") {
  Work work;
  for (const char* ranks : {"1", "2"}) {
    const std::string out = std::string("full") + ranks;
    work.options.to = Stdout::full_disk;
    const RunResult run = work.train({"--steps", "50", "--ranks", ranks, "--out", out});
    work.options.to = Stdout::capture;
    CHECK(run.code == 4);
    CHECK_MESSAGE(run.err.find("standard output: cannot write") != std::string::npos, run.err);
    CHECK_MESSAGE(run.err.find("the last good step is " + out + "/step-00000002") != std::string::npos, run.err);
    CHECK(work.llmops({"ckpt", "verify", out}).code == 0);
  }
}

TEST_CASE("metrics.jsonl holds every step once, across a resume; run.toml repeats the run") {
  Work work;
  const RunResult first = work.train({"--steps", "4", "--out", "run", "--lr-schedule", "constant", "--warmup", "0"});
  REQUIRE_MESSAGE(first.code == 0, first.err);
  REQUIRE(work.train({"--steps", "8", "--out", "run", "--resume", "auto", "--lr-schedule", "constant", "--warmup", "0"})
              .code == 0);
  const std::vector<Json> steps = steps_of(work.dir.read("run/metrics.jsonl"));
  REQUIRE(steps.size() == 8);
  for (size_t i = 0; i < steps.size(); ++i) CHECK(steps[i].find("step")->as_int() == static_cast<int64_t>(i) + 1);
  const RunResult repeat = work.llmops(
      {"train", "--config", "run/run.toml", "--steps", "8", "--out", "again", "--resume", "none", "--format", "jsonl"});
  REQUIRE_MESSAGE(repeat.code == 0, repeat.err);
  CHECK(losses_of(repeat.out) == losses_of(work.dir.read("run/metrics.jsonl")));
}

namespace {

// "options" of the summary that ends a jsonl run.
Json options_of(const std::string& out) {
  const size_t last = out.rfind('\n', out.size() - 2) + 1;
  auto summary = json_parse(std::string_view(out).substr(last, out.size() - 1 - last));
  REQUIRE_MESSAGE(summary.ok(), out);
  REQUIRE_MESSAGE(summary->find("summary") != nullptr, out);
  const Json* options = summary->find("summary")->find("options");
  REQUIRE_MESSAGE(options != nullptr, out);
  return *options;
}

constexpr const char* kPlan =
    "[model]\ndescriptor = \"gpt2:1x16\"\n[parallel]\ndp = 2\nshards = 4\nzero = 0\n"
    "[train]\ndtype = \"bf16\"\nseq = 16\nglobal_batch = 8\nmicro_batch = 1\n"
    "[checkpoint]\nsave_every = 2\nkeep = 1\ndir = \"planned\"\n";

}  // namespace

TEST_CASE("flags, environment and llmops.toml override plan.toml, also where they repeat a default") {
  Work work;
  work.dir.write("plan.toml", kPlan);
  const RunResult flags =
      work.llmops({"train",     "--data",   "text.txt", "--steps", "3",   "--format",     "jsonl", "--plan",
                   "plan.toml", "--model",  "char",     "--dtype", "f32", "--save-every", "0",     "--keep",
                   "0",         "--shards", "0",        "--ranks", "1",   "--out",        "flags"});
  REQUIRE_MESSAGE(flags.code == 0, flags.err);
  const Json own = options_of(flags.out);
  CHECK(own.find("model")->as_string() == "char");
  CHECK(own.find("dtype")->as_string() == "f32");
  for (const char* zero : {"save_every", "keep", "shards", "zero"}) CHECK(own.find(zero)->dump() == "0");
  CHECK(own.find("ranks")->dump() == "1");
  CHECK(own.find("seq")->dump() == "16");  // from the plan
  CHECK(!std::filesystem::exists(work.dir / "flags/step-00000002"));

  work.dir.write("llmops.toml", "[train]\nmodel = \"char\"\n");
  work.options.env = {{"LLMOPS_TRAIN_DTYPE", "f32"}, {"LLMOPS_SHARDS", "0"}};
  const RunResult others =
      work.llmops({"train", "--data", "text.txt", "--steps", "2", "--format", "jsonl", "--plan", "plan.toml"});
  REQUIRE_MESSAGE(others.code == 0, others.err);
  const Json mixed = options_of(others.out);
  CHECK(mixed.find("model")->as_string() == "char");
  CHECK(mixed.find("dtype")->as_string() == "f32");
  CHECK(mixed.find("shards")->dump() == "0");
  CHECK(mixed.find("ranks")->dump() == "2");
  CHECK(mixed.find("out")->as_string() == "planned");
}

TEST_CASE("run.toml and the options of the summary hold what the run used, and repeat it without the plan") {
  Work work;
  work.dir.write("plan.toml", kPlan);
  const RunResult plain = work.llmops({"train", "--data", "text.txt", "--steps", "20", "--format", "jsonl"});
  REQUIRE_MESSAGE(plain.code == 0, plain.err);
  const Json recipe = options_of(plain.out);
  for (const auto& [key, value] : std::vector<std::pair<const char*, const char*>>{{"batch", "12"},
                                                                                   {"micro_batch", "12"},
                                                                                   {"seq", "64"},
                                                                                   {"lr", "0.001"},
                                                                                   {"lr_min", "1e-04"},
                                                                                   {"warmup", "2"},
                                                                                   {"zero", "1"},
                                                                                   {"ranks", "1"},
                                                                                   {"tokenizer", "\"char\""}})
    CHECK_MESSAGE(recipe.find(key)->dump() == value, key);
  CHECK(recipe.find("threads")->as_int() >= 1);

  const RunResult first =
      work.llmops({"train", "--data", "text.txt", "--steps", "3", "--format", "jsonl", "--plan", "plan.toml"});
  REQUIRE_MESSAGE(first.code == 0, first.err);
  const std::string file = work.dir.read("planned/run.toml");
  for (const char* line : {"model = \"gpt2:1x16\"", "ranks = 2", "shards = 4", "zero = 0", "dtype = \"bf16\"",
                           "seq = 16", "batch = 8", "micro_batch = 1", "save_every = 2", "keep = 1",
                           "out = \"planned\"", "lr = 3e-04", "warmup = 0", "tokenizer = \"byte\"", "threads = "})
    CHECK_MESSAGE(file.find(std::string("\n") + line) != std::string::npos, line);
  std::filesystem::remove(work.dir / "plan.toml");
  const RunResult repeat =
      work.llmops({"train", "--config", "planned/run.toml", "--out", "again", "--format", "jsonl"});
  REQUIRE_MESSAGE(repeat.code == 0, repeat.err);
  CHECK(losses_of(repeat.out) == losses_of(first.out));
  CHECK(files_of(work.dir / "again/step-00000003") == files_of(work.dir / "planned/step-00000003"));
}

TEST_CASE("a gradient that is not finite stops the run before the update") {
  Work work;
  const RunResult run = work.train({"--steps", "50", "--lr", "900", "--clip", "0", "--warmup", "0", "--weight-decay",
                                    "99", "--out", "run", "--save-every", "1"});
  CHECK(run.code == 1);
  CHECK(run.err.find("not finite") != std::string::npos);
  CHECK(run.err.find("rank 0") != std::string::npos);
  CHECK(work.llmops({"ckpt", "verify", "run"}).code == 0);
}

TEST_CASE("dry run says what is needed and writes nothing") {
  Work work;
  const RunResult run = work.llmops({"train", "--data", "text.txt", "--model", "gpt2", "--tokenizer", "char",
                                     "--dry-run", "--out", "run", "--format", "json"});
  REQUIRE_MESSAGE(run.code == 0, run.err);
  const auto json = json_parse(run.out);
  REQUIRE(json.ok());
  CHECK(json->find("params")->as_int() > 85'000'000);
  CHECK(json->find("checkpoint_bytes")->as_int() == json->find("params")->as_int() * 12);
  CHECK(!std::filesystem::exists(work.dir / "run"));
}

TEST_CASE("bad input: one message, the documented code, nothing on stdout") {
  Work work;
  work.dir.write("empty.txt", "");
  work.dir.write("short.txt", "abc");
  work.dir.write("llmops.toml", "");
  struct Case {
    std::vector<std::string> words;
    int code;
    const char* said;
  };
  const Case cases[] = {
      {{"--steps", "1e3x"}, 2, "--steps"},
      {{"--ranks", "-1"}, 2, "--ranks"},
      {{"--lr", "nan"}, 2, "--lr"},
      {{"--lr-min", "1"}, 2, "--lr-min"},
      {{"--setps", "5"}, 2, "--steps"},
      {{"--shards", "3"}, 2, "a power of two that is a multiple of the ranks, 1"},
      {{"--shards", "4", "--ranks", "3"}, 2, "power of two"},
      {{"--batch", "1", "--ranks", "2"}, 2, "--batch"},
      {{"--model", "gpt3"}, 2, "gpt3"},
      {{"--resume", "auto"}, 2, "--out"},
      {{"--deadline", "0"}, 2, "--deadline"},
      {{"--device"}, 2, "--device: found no value, expected cpu, cuda, cuda:INDEX, cuda:UUID or auto"},
      {{"--data", "empty.txt"}, 3, "empty.txt"},
      {{"--data", "short.txt"}, 3, "needs 17"},
      {{"--data", "missing.txt"}, 4, "missing.txt"},
      {{"--init-from", "missing"}, 4, "missing"},
      {{"--out", "text.txt/run"}, 4, "text.txt"},
  };
  for (const Case& c : cases) {
    std::vector<std::string> all = {"train", "--model", "gpt2:2x32", "--tokenizer", "char", "--seq",
                                    "16",    "--steps", "2"};
    if (std::ranges::find(c.words, "--data") == c.words.end()) all.insert(all.end(), {"--data", "text.txt"});
    all.insert(all.end(), c.words.begin(), c.words.end());
    const RunResult run = work.llmops(all);
    INFO(c.words[0], " ", c.words.back(), ": ", run.err);
    CHECK(run.code == c.code);
    CHECK(run.out == "");
    CHECK(run.err.find(c.said) != std::string::npos);
    CHECK(std::ranges::count(run.err, '\n') == 1);
  }
  work.dir.write("llmops.toml", "[train]\nsteps = 5\nlearning_rate = 1\n");
  const RunResult unknown = work.train({"--steps", "2"});
  CHECK(unknown.code == 2);
  CHECK(unknown.err.find("llmops.toml:3:1") != std::string::npos);
}

TEST_CASE("a launcher's group that cannot be joined is an error, never silent copies") {
  Work work;
  work.options.env = {
      {"WORLD_SIZE", "2"}, {"RANK", "0"}, {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "1234"}};
  const RunResult run = work.train({"--steps", "2"});
  CHECK(run.code == 2);
  CHECK(run.out == "");
}

TEST_CASE("a full disk during a save keeps the last good step, says so once and ends with 4" *
          doctest::skip(geteuid() != 0)) {
  for (const char* ranks : {"1", "2"}) {
    Work work;
    const std::string mount = work.dir / "small";
    std::filesystem::create_directory(mount);
    if (const RunResult mounted = run_program({"mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", mount});
        mounted.code != 0) {
      MESSAGE("SKIPPED, nothing was tested: a tmpfs cannot be mounted here: " << mounted.err);
      return;
    }
    const RunResult run = work.train({"--model", "gpt2:2x64", "--steps", "400", "--save-every", "5", "--ranks", ranks,
                                      "--quiet", "--out", mount + "/run"});
    const RunResult check = work.llmops({"ckpt", "verify", mount + "/run"});
    run_program({"umount", mount});
    INFO("ranks ", ranks, ": ", run.err);
    CHECK(run.code == 4);
    CHECK(run.err.find("No space left") != std::string::npos);
    CHECK(run.err.find("the last good step is") != std::string::npos);
    CHECK(run.err.find("step-0000") != std::string::npos);
    CHECK(std::ranges::count(run.err, '\n') == 1);
    CHECK(check.code == 0);
    CHECK(steps_of(run.out).size() < 400);
  }
}
