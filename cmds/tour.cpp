// llmops tour: the main job in two minutes, each claim checked.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <map>

#include "base/run.h"
#include "base/text.h"
#include "bench/collective.h"
#include "ckpt/steps.h"
#include "ckpt/verify.h"
#include "cmds/child.h"
#include "cmds/command.h"
#include "cmds/device_option.h"
#include "comm/launch.h"
#include "infer/generate.h"
#include "infer/load.h"
#include "report/progress.h"
#include "train/peak.h"

namespace llmops {
namespace {

constexpr const char* kRateFile = "LLMOPS_TOUR_RATE_FILE";  // set for the ranks that measure the all-reduce
constexpr int kRanks = 2;
constexpr int64_t kReduceBytes = 16 << 20;
constexpr double kLossMax = 2.6;  // after kSteps on English text; the loss starts near ln(vocabulary), 4 and more

struct Options {
  std::string data;
  std::string keep;
  int64_t steps = 600;
  std::string device = "auto";
};

void declare(Options& o, OptionTable& t) {
  t.path("data", &o.data, "text to train on").meta("FILE").otherwise("the King James Bible of Debian's bible-kjv");
  t.path("keep", &o.keep, "leave the data, the run and its logs in this folder").meta("DIR");
  t.integer("steps", &o.steps, 100, 1000000, "training steps");
  declare_device(&o.device, t);
}

class Tour {
 public:
  Tour(const Options& options, Context& context, std::string dir)
      : o_(options),
        context_(context),
        dir_(std::move(dir)),
        report_({{"stage", "stage"},
                 {"result", "result"},
                 {"time_s", "time", Unit::s},
                 {"verdict", "verdict", Unit::verdict}}),
        progress_("tour", static_cast<double>(o_.steps)) {}

  Status run() {
    using Stage = Status (Tour::*)(std::string*);
    struct Named {
      const char* name;
      Stage stage;
    };
    for (const Named& named : {Named{"data", &Tour::data},
                               {"train on 2 ranks, kill -9 half way", &Tour::train_and_kill},
                               {"resume and finish", &Tour::resume},
                               {"verify the checkpoints", &Tour::verify_run},
                               {"generate three lines", &Tour::generate_lines},
                               {"all-reduce, 2 ranks", &Tour::all_reduce},
                               {"matmul", &Tour::matmul_rate}}) {
      if (cancel_signal() != 0) return {Code::interrupted, "stopped by a signal"};
      const double start_s = monotonic_s();
      std::string result;
      const Status status = (this->*named.stage)(&result);
      progress_.clear();
      if (status.code() == Code::interrupted) return status;
      if (!status.ok()) {
        ++failed_;
        if (first_.ok()) first_ = status;
      }
      report_.row({named.name, status.ok() ? result : status.message(), monotonic_s() - start_s,
                   status.ok() ? "pass" : "FAIL"});
      if (!status.ok() && status.code() != Code::finding) break;  // what comes next needs this
    }
    for (const std::string& line : lines_) report_.note("generated: " + line);
    if (!o_.keep.empty()) report_.note("everything is in " + dir_);
    LLMOPS_TRY(context_.print(report_));
    if (failed_ == 0) return {};
    return Status(first_.code(), "a stage failed: " + first_.message());
  }

 private:
  std::string path(const char* name) const { return dir_ + "/" + name; }

  Status data(std::string* result) {
    LLMOPS_TRY(write_file_durable(path("llmops.toml"), ""));  // the caller's own does not steer the children
    text_ = o_.data;
    if (text_.empty()) {
      text_ = path("bible.txt");
      if (Status status = bible(); !status.ok()) {
        text_ = "/usr/share/common-licenses";
        *result = "Debian's license texts, since bible-kjv is not installed (apt-get install bible-kjv)";
        return {};
      }
    }
    LLMOPS_ASSIGN(const std::string content, read_file(text_));
    if (content.empty()) return invalid_error(text_ + ": is empty");
    *result = fmt::format("{} of text: {}", format_bytes(static_cast<int64_t>(content.size())),
                          o_.data.empty() ? "King James Bible" : o_.data);
    return {};
  }

  Status bible() {
    LLMOPS_ASSIGN(Child child, Child::start({"bible", "-f", "gen1:1-rev22:21"}, path("tour.log")));
    std::string text, line;
    while (child.next_line(&line)) text += line + "\n";
    if (child.wait() != 0 || text.size() < (1u << 20)) return io_error("bible printed no text");
    return write_file_durable(text_, text);
  }

  std::vector<std::string> train_arguments() const {
    return {"/proc/self/exe", "train",
            "--model",        "char",
            "--data",         text_,
            "--steps",        fmt::format("{}", o_.steps),
            "--ranks",        fmt::format("{}", kRanks),
            "--shards",       fmt::format("{}", kRanks),
            "--save-every",   fmt::format("{}", std::max<int64_t>(1, o_.steps / 8)),
            "--device",       o_.device,
            "--out",          path("run"),
            "--config",       path("llmops.toml"),
            "--format",       "jsonl",
            "--resume",       "auto"};
  }

  // Reads step records until the end, or until `kill_at`; the losses by step.
  Status follow(Child& child, int64_t kill_at, std::map<int64_t, std::string>* losses, Json* summary) {
    std::string line;
    while (child.next_line(&line)) {
      if (cancel_signal() != 0) return {Code::interrupted, "stopped by a signal"};
      const auto json = json_parse(line);
      if (!json.ok()) return json.status();
      if (const Json* end = json->find("summary")) *summary = *end;
      const Json *step = json->find("step"), *loss = json->find("loss");
      if (!step || !loss) continue;
      (*losses)[step->as_int()] = loss->dump();
      progress_.update(static_cast<double>(step->as_int()), "loss " + loss->dump().substr(0, 6));
      if (step->as_int() == kill_at) return {};
    }
    return {};
  }

  Status train_and_kill(std::string* result) {
    LLMOPS_ASSIGN(Child child, Child::start(train_arguments(), path("tour.log")));
    kill_at_ = o_.steps / 2 + o_.steps / 16;  // between two saves
    Json summary;
    LLMOPS_TRY(follow(child, kill_at_, &before_, &summary));
    if (!before_.contains(kill_at_)) return failed_child(child.wait(), "training ended before it was killed");
    child.kill_now();
    const int code = child.wait();
    if (code != 128 + 9) return {Code::finding, fmt::format("training was killed and ended with {}", code)};
    *result = fmt::format("loss {} to {} in {} steps, then killed", before_.at(1).substr(0, 6),
                          before_.at(kill_at_).substr(0, 6), kill_at_);
    return {};
  }

  // What a child said last, with the meaning of its exit code.
  Status failed_child(int code, const std::string& what) {
    std::string log = "no log";
    if (auto text = read_file(path("tour.log")); text.ok() && !text->empty()) {
      while (text->ends_with('\n')) text->pop_back();
      log = text->substr(text->rfind('\n') + 1);
    }
    Code meaning = Code::peer;
    for (Code candidate : {Code::finding, Code::usage, Code::invalid, Code::io})
      if (exit_code(candidate) == code) meaning = candidate;
    return {meaning, fmt::format("{} with exit code {}: {}", what, code, log)};
  }

  // Steps that both processes computed must have the same losses to the last bit.
  Status resume(std::string* result) {
    LLMOPS_ASSIGN(Child child, Child::start(train_arguments(), path("tour.log")));
    std::map<int64_t, std::string> after;
    Json summary;
    LLMOPS_TRY(follow(child, -1, &after, &summary));
    const int code = child.wait();
    if (code != 0) return failed_child(code, "the resumed run ended");
    if (after.empty() || after.begin()->first > kill_at_)
      return {Code::finding, "the resumed run repeats no step of the killed one"};
    int64_t same = 0;
    for (const auto& [step, loss] : after) {
      const auto it = before_.find(step);
      if (it == before_.end()) continue;
      if (it->second != loss)
        return {Code::finding, fmt::format("step {}: loss {} before the kill, {} after", step, it->second, loss)};
      ++same;
    }
    const double last = json_parse(after.rbegin()->second)->as_double();
    const Json* val = summary.find("val_loss");
    if (last > kLossMax)
      return {Code::finding, fmt::format("training loss is {:.3f}, expected at most {}", last, kLossMax)};
    *result = fmt::format("from step {}: {} repeated steps bit-equal; loss {:.3f}, validation {:.3f}",
                          after.begin()->first - 1, same, last, val ? val->as_double() : 0.0);
    return {};
  }

  Status verify_run(std::string* result) {
    Pool pool(usable_cores());
    LLMOPS_ASSIGN(const VerifyReport report, verify(path("run"), pool));
    if (!report.findings.empty())
      return {Code::finding, fmt::format("{}: {}", report.findings[0].file, report.findings[0].what)};
    *result = fmt::format("{} steps, {} files, {}: no finding", report.steps.size(), report.files,
                          format_bytes(report.bytes));
    return {};
  }

  Status generate_lines(std::string* result) {
    LLMOPS_ASSIGN(const DeviceChoice choice, choose_device(o_.device, 1));
    LLMOPS_ASSIGN(const std::unique_ptr<Device> device, open_device(choice, 0, usable_cores()));
    LLMOPS_ASSIGN(LoadedModel loaded, load_model(*device, path("run"), "", DType::f32));
    std::vector<Prompt> prompts;
    for (std::string start : {"And ", "The ", "In "}) {
      Prompt prompt;
      auto ids = loaded.tokenizer()->encode(start);
      if (ids.ok()) {
        prompt.ids = ids.take();
      } else {  // --data may lack these letters: begin with one that it has
        prompt.ids = {loaded.tokenizer()->vocab_size() - 1};
        start = loaded.tokenizer()->token_bytes(prompt.ids[0]);
      }
      prompt.sampling = {.max_tokens = 56,
                         .temperature = 0.7,
                         .top_k = 20,
                         .top_p = 1,
                         .seed = prompts.size() + 1,
                         .stop = {"\n"},
                         .ignore_eos = false};
      prompts.push_back(std::move(prompt));
      lines_.push_back(std::move(start));
    }
    GenerateStats stats;
    LLMOPS_ASSIGN(const std::vector<Completion> completions,
                  generate(*loaded.model, loaded.tokenizer(), prompts, {}, &stats));
    for (size_t i = 0; i < completions.size(); ++i) {
      if (completions[i].text.empty()) return {Code::finding, "a completion is empty"};
      lines_[i] += completions[i].text;
    }
    *result = fmt::format("{} tokens at {}", stats.decode_tokens,
                          for_people(static_cast<double>(stats.decode_tokens) / stats.decode_s, Unit::tokens_per_s));
    return {};
  }

  Status all_reduce(std::string* result) {
    const std::string file = path("rate.json");
    LLMOPS_ASSIGN(const int code,
                  run_ranks(kRanks, {"llmops", "tour", "--device", o_.device},
                            {.env = {fmt::format("{}={}", kRateFile, file)}}));
    if (code != 0) return peer_error(fmt::format("the ranks ended with exit code {}", code));
    LLMOPS_ASSIGN(const std::string text, read_file(file));
    LLMOPS_ASSIGN(const Json json, json_parse(text));
    if (json.find("wrong")->as_int(-1) != 0)
      return {Code::finding, fmt::format("{} sums are wrong", json.find("wrong")->as_int())};
    *result = fmt::format("{} in {}: bus bandwidth {}, sums exact", format_bytes(json.find("bytes")->as_int()),
                          format_duration(json.find("time_us")->as_double() * 1e-6),
                          for_people(json.find("busbw_bytes_per_s")->as_double(), Unit::bytes_per_s));
    return {};
  }

  Status matmul_rate(std::string* result) {
    LLMOPS_ASSIGN(const DeviceChoice choice, choose_device(o_.device, 1));
    LLMOPS_ASSIGN(const std::unique_ptr<Device> device, open_device(choice, 0, usable_cores()));
    (void)matmul_library(*device);
    const double rate = measure_matmul_flops_per_s(*device);
    if (!(rate > 0)) return {Code::finding, "the matmul did not run"};
    const std::string place = choice.is_cuda ? device->name()
                                             : fmt::format("{} threads, {}", device->pool().threads(), name_of(device->isa()));
    *result = fmt::format("{0} x {0} x {0} f32, {1}: {2}", matmul_peak_size(*device), place,
                          for_people(rate, Unit::flops_per_s));
    return {};
  }

  const Options& o_;
  Context& context_;
  std::string dir_, text_;
  Report report_;
  Progress progress_;
  std::map<int64_t, std::string> before_;
  int64_t kill_at_ = 0;
  std::vector<std::string> lines_;
  int failed_ = 0;
  Status first_;
};

// A rank that measures the all-reduce and leaves the result in a file.
Status measure_as_rank(const Options& o, const Launch& launch, const char* file) {
  LLMOPS_ASSIGN(const DeviceChoice choice, choose_device(o.device, launch.world));
  LLMOPS_ASSIGN(const std::unique_ptr<Device> device, open_device(choice, launch.rank, 1));
  LLMOPS_ASSIGN(const std::unique_ptr<Communicator> comm, open_communicator(*device, launch));
  LLMOPS_ASSIGN(const CollectiveRate rate, measure_all_reduce(*device, *comm, kReduceBytes, 0.5));
  if (launch.rank != 0) return {};
  Json json(Json::Object{});
  json["bytes"] = rate.bytes;
  json["time_us"] = rate.time_us;
  json["busbw_bytes_per_s"] = rate.busbw_bytes_per_s;
  json["wrong"] = rate.wrong;
  return write_file_durable(file, json.dump());
}

Status run(Options& o, Context& context) {
  LLMOPS_ASSIGN(const Launch launch, parse_launch_env(std::nullopt));
  if (const char* file = std::getenv(kRateFile); file && launch.role == Launch::Role::member)
    return measure_as_rank(o, launch, file);
  LLMOPS_ASSIGN(const DeviceChoice choice, choose_device(o.device, kRanks));
  if (!choice.note.empty()) warn("tour: " + choice.note);
  std::string dir = o.keep;
  if (dir.empty()) {
    const char* tmp = std::getenv("TMPDIR");
    dir = std::string(tmp && *tmp ? tmp : "/tmp") + "/llmops-tour-XXXXXX";
    if (!mkdtemp(dir.data())) return errno_status(dir, "make a folder from", errno);
  } else if (auto steps = list_steps(dir + "/run"); steps.ok() && !steps->empty()) {
    return usage_error("--keep " + dir + ": holds an earlier tour; give another folder");
  }
  LLMOPS_TRY(Dir::create(dir).status());
  const Status status = Tour(o, context, dir).run();
  if (o.keep.empty())
    if (auto parent = Dir::open(dir.substr(0, dir.rfind('/'))); parent.ok())
      (void)parent->remove_tree(dir.substr(dir.rfind('/') + 1));
  return status;
}

}  // namespace

Command tour_command() {
  return make_command<Options, declare, run>({
      .name = "tour",
      .summary = "train, kill, resume, verify, generate and measure on this machine, with a verdict for each",
      .description = "Trains a small character model on real text on two ranks, kills the run half way, resumes it and "
                     "checks that the repeated steps "
                     "have the same losses to the last bit, verifies its checkpoints, generates three lines, and "
                     "measures all-reduce and matmul. "
                     "Takes about a minute on two cores.",
      .examples = {{"llmops tour", "the whole tour"},
                   {"llmops tour --keep tour --data FILE", "on your own text, leaving the run for a look"}},
  });
}

}  // namespace llmops
