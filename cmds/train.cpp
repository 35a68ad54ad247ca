// llmops train: data-parallel training on the ranks of this machine.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/run.h"
#include "base/text.h"
#include "ckpt/source.h"
#include "cmds/build_info.h"
#include "cmds/device_option.h"
#include "cmds/train_options.h"
#include "comm/launch.h"
#include "report/progress.h"

namespace llmops {
namespace {

using namespace train_command_detail;

// How the parent hands the corpus and the steps to go on from or to start with to its ranks.
constexpr const char* kCorpusFd = "LLMOPS_RANK_CORPUS_FD";
constexpr const char* kResumeFrom = "LLMOPS_RANK_RESUME_FROM";
constexpr const char* kInitFrom = "LLMOPS_RANK_INIT_FROM";

// What people read for a category of memory; machines get its name.
std::string_view words_of(std::string_view category) {
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"grads", "gradients"},
      {"optim", "optimizer"},
      {"saved", "activations kept for the backward pass"},
      {"windows", "tokens of a step"},
      {"transient", "activations of one block"},
      {"staging", "copy for the checkpoint"}};
  for (const auto& [name, words] : kWords)
    if (name == category) return words;
  return category;
}

Report plan_report(const TrainPlan& plan, const TrainOptions& t, int world) {
  Report report;
  report.summary({"params", "parameters", Unit::count}, plan.params);
  report.summary({"ranks", "ranks"}, world);
  report.summary({"tokens_per_step", "tokens per step", Unit::count}, plan.tokens_per_step);
  report.summary({"micro_batch", "windows per forward"}, plan.micro_batch);
  report.summary({"flops_per_step", "FLOPs per step (matmuls, causal half of attention)", Unit::flops},
                 plan.flops_per_step);
  int64_t total = 0;
  for (const auto& [category, bytes] : plan.memory_bytes) {
    report.summary(
        {"memory_" + category + "_bytes", fmt::format("memory per rank: {}", words_of(category)), Unit::bytes}, bytes);
    total += bytes;
  }
  report.summary({"memory_bytes", "memory per rank", Unit::bytes}, total);
  report.summary({"checkpoint_bytes", "checkpoint size", Unit::bytes}, plan.checkpoint_bytes);
  if (!t.out.empty())
    if (auto free = free_bytes(t.out); free.ok()) {
      report.summary({"disk_free_bytes", "free disk", Unit::bytes}, *free);
      if (*free < plan.checkpoint_bytes) report.note("a checkpoint does not fit on the disk of " + t.out);
    }
  return report;
}

std::vector<std::string> own_arguments() {
  std::vector<std::string> args;
  if (auto text = read_file("/proc/self/cmdline"); text.ok())
    for (size_t begin = 0, end; (end = text->find('\0', begin)) != std::string::npos; begin = end + 1)
      args.push_back(text->substr(begin, end - begin));
  return args;
}

// The command line of this run with --resume auto, quoted for a shell.
std::string resume_command() {
  std::string line;
  bool resumes = false;
  for (const std::string& arg : own_arguments()) {
    const bool plain = !arg.empty() && arg.find_first_not_of(
                                           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+") ==
                                           std::string::npos;
    std::string quoted = arg;
    for (size_t at = 0; (at = quoted.find('\'', at)) != std::string::npos; at += 4) quoted.replace(at, 1, "'\\''");
    line += (line.empty() ? "" : " ") + (plain ? arg : "'" + quoted + "'");
    resumes |= arg == "--resume" || arg.starts_with("--resume=");
  }
  return line + (resumes ? "" : " --resume auto");
}

class Printer : public TrainObserver {
 public:
  Printer(Context& context, const Options& options, const TrainOptions& train, int world)
      : context_(context),
        options_(options),
        train_(train),
        world_(world),
        writer_(context.out, context.format, context.colour),
        progress_("train", static_cast<double>(train.steps)) {}

  Status on_plan(const TrainPlan& plan) override {
    log(LogLevel::normal,
        fmt::format("train: {} parameters, {} rank{} x {}, {} tokens per step, {} training tokens{}",
                    for_people(plan.params, Unit::count), world_, world_ == 1 ? "" : "s", place_, plan.tokens_per_step,
                    plan.train_tokens,
                    plan.start_step > 0 ? fmt::format(", going on after step {}", plan.start_step) : ""));
    if (plan.peak_flops_per_s > 0)
      log(LogLevel::normal,
          fmt::format("train: MFU = matmul FLOPs (causal half of attention) per second / {}, {}",
                      for_people(plan.peak_flops_per_s, Unit::flops_per_s),
                      is_cuda_ ? "the dense BF16 peak of the data sheet" : "the matmul rate measured at start"));
    if (people() && log_level() == LogLevel::quiet) return {};  // the summary alone
    return writer_.begin({{"step", "step"},
                          {"loss", "loss", Unit::none, 5},
                          {"val_loss", "val loss", Unit::none, 5},
                          {"grad_norm", "norm", Unit::none, 4},
                          {"lr", "lr", Unit::none, 3},
                          {"step_ms", "step", Unit::ms},
                          {"tokens_per_s", "tok/s", Unit::tokens_per_s},
                          {"flops_per_s", "rate", Unit::flops_per_s},
                          {"mfu", "MFU", Unit::ratio},
                          {"data_ms", "data", Unit::ms},
                          {"comm_ms", "comm", Unit::ms},
                          {"eta_s", "ETA", Unit::s}});
  }

  Status on_step(const StepRecord& record) override {
    progress_.update(static_cast<double>(record.step), fmt::format("loss {:.4f}", record.loss));
    const bool wanted =
        record.step == 1 || record.step % options_.log_every == 0 || record.step == train_.steps || record.val_loss;
    if (people() && (!wanted || log_level() == LogLevel::quiet)) return {};
    progress_.clear();
    Json json = to_json(record);
    json["eta_s"] = record.eta_s;
    return writer_.record(json);
  }

  void on_save(const SaveReport& report) override {
    progress_.clear();
    log(LogLevel::verbose,
        fmt::format("train: saved step {}: {} in {}, training held for {}", report.step, format_bytes(report.bytes),
                    format_duration(report.drain_s), format_duration(report.stall_s)));
  }

  Status finish(const TrainSummary& s) {
    progress_.clear();
    Report report;
    report.summary({"steps", "steps"}, s.steps);
    report.summary({"tokens", "tokens", Unit::count}, s.tokens);
    report.summary({"wall_s", "wall time", Unit::s}, s.wall_s);
    const auto of_steps = [&](double value) { return s.steps > 0 ? Json(value) : Json(); };
    report.summary({"step_ms_median", "median step", Unit::ms}, of_steps(s.step_ms_median));
    report.summary({"step_ms_p95", "95 % of steps below", Unit::ms}, of_steps(s.step_ms_p95));
    report.summary({"final_loss", "training loss", Unit::none, 5}, of_steps(s.final_loss));
    report.summary({"val_loss", "validation loss", Unit::none, 5}, s.val_loss ? Json(*s.val_loss) : Json());
    report.summary({"last_checkpoint", "last checkpoint"},
                   s.last_checkpoint.empty() ? Json() : Json(s.last_checkpoint));
    report.summary({"save_stall_s", "training held by saves", Unit::s}, s.save_stall_s);
    report.summary({"save_drain_s", "saving beside training", Unit::s}, s.save_drain_s);
    Json memory(Json::Object{});
    for (const auto& [category, bytes] : s.memory_peak_bytes) memory[category] = bytes;
    report.extra("memory_peak_bytes", std::move(memory));
    report.extra("device", device_);
    report.extra("matmul", matmul_);
    report.extra("finished", s.finished);
    report.extra("options", context_.options.echo());
    if (s.finished && s.steps == 0)
      report.note(train_.resume_from.empty() ? "no step was asked for: nothing was trained"
                                             : "the run was finished already: nothing to do");
    if (!s.finished && !s.last_checkpoint.empty()) report.note("to go on: " + resume_command());
    return writer_.end(report);
  }
  void computes_on(Device& device, const std::string& matmul) {
    device_ = device.name();
    matmul_ = matmul.empty() ? "llmops" : matmul;
    is_cuda_ = device.kind() == DeviceKind::cuda;
    const int threads = device.pool().threads();
    place_ = !is_cuda_ ? fmt::format("{} thread{}", threads, threads == 1 ? "" : "s") : device_;
  }

 private:
  bool people() const { return context_.format == Format::table || context_.format == Format::md; }

  Context& context_;
  const Options& options_;
  const TrainOptions& train_;
  int world_;
  std::string device_, matmul_, place_;
  bool is_cuda_ = false;
  ReportWriter writer_;
  Progress progress_;
};

// run.toml: the resolved options in the form that --config reads, with who ran it where.
Status write_run_file(const Context& context, const std::string& dir, int world) {
  char host[256] = "unknown";
  gethostname(host, sizeof host - 1);
  return write_file_durable(
      dir + "/run.toml",
      fmt::format("# llmops {} ({}), host {}, {} rank{}. Repeat: llmops train --config THIS_FILE --out OTHER_DIR\n{}",
                  build_version(), build_commit(), escape_control(host), world, world == 1 ? "" : "s",
                  context.options.to_toml("train")));
}

// The parent of several ranks: reads the data once and leaves the rest to them.
Status run_parent(const Options& o, const Corpus& corpus, const TrainOptions& t, int world, Context& context) {
  const int fd = memfd_create("llmops-corpus", 0);
  if (fd < 0) return errno_status("corpus", "make a memory file", errno);
  LLMOPS_TRY(corpus.save_to(fd));
  RunOptions options;
  options.grace_s = std::min(options.grace_s, o.deadline_s);  // a rank that is alive hears of it within a collective
  options.env = {fmt::format("{}={}", kCorpusFd, fd), fmt::format("{}={}", kResumeFrom, t.resume_from),
                 fmt::format("{}={}", kInitFrom, t.init_from)};
  LLMOPS_ASSIGN(const int code, run_ranks(world, own_arguments(), options));
  close(fd);
  if (code > 128) {
    request_cancel(code - 128);  // the group took the signal from our handler, and it is ours to end by
    return {Code::interrupted, ""};
  }
  context.saved = code == exit_code(Code::interrupted);
  for (Code candidate : {Code::ok, Code::finding, Code::usage, Code::invalid, Code::io, Code::peer, Code::interrupted})
    if (exit_code(candidate) == code) return candidate == Code::ok ? Status() : Status(candidate, "");
  return peer_error("");
}

// A run that cannot fit is refused before it starts, not killed half way.
Status check_memory(const TrainPlan& plan, int world) {
  double needed = 0;
  for (const auto& [category, bytes] : plan.memory_bytes) needed += static_cast<double>(bytes) * world;
  const double machine = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (needed <= machine) return {};
  return io_error(
      fmt::format("the run needs {:.4g} GB of memory on {} rank{}, the machine has {:.4g} GB; --dry-run says for what",
                  needed * 1e-9, world, world == 1 ? "" : "s", machine * 1e-9));
}

// One rank, or the only one.
Status run_rank(const Options& o, TrainOptions t, const Corpus& corpus, const Launch& launch,
                const DeviceChoice& choice, Context& context) {
  const int threads = static_cast<int>(*o.threads);
  LLMOPS_ASSIGN(const std::unique_ptr<Device> device, open_device(choice, launch.rank, threads));
  // In a group the peers come first: they know the rank.
  device->set_deadline(launch.world > 1 ? 2 * o.deadline_s : o.deadline_s);
  LLMOPS_ASSIGN(const std::unique_ptr<Communicator> comm,
                open_communicator(*device, launch, {.deadline_s = o.deadline_s}));
  Printer printer(context, o, t, launch.world);
  printer.computes_on(*device, matmul_library(*device));
  TrainSummary summary;
  Status status = train_run(*device, *comm, corpus, t, printer, &summary);
  const bool told_by_root =
      status.code() == Code::interrupted || status.code() == Code::finding || status.code() == Code::usage;
  const bool silent = told_by_root || status.message().empty();
  // Stopped in a step, a run with --out has saved it. How the group ends is for rank 0 to say.
  context.saved = launch.rank != 0 || (summary.started && !t.out.empty());
  if (launch.rank != 0) return silent ? Status(status.code(), "") : status.in(fmt::format("rank {}", launch.rank));
  const Status printed = summary.started ? printer.finish(summary) : Status();
  return status.ok() ? printed : status;
}

Status run(Options& o, Context& context) {
  LLMOPS_ASSIGN(const Parallel parallel, apply_plan(o, context.options));
  LLMOPS_ASSIGN(const Launch launch,
                parse_launch_env(o.ranks ? std::optional<int>(static_cast<int>(*o.ranks)) : std::nullopt));
  if (launch.role != Launch::Role::member)
    for (const std::string& note : launch.notes) log(LogLevel::normal, "train: " + note);
  LLMOPS_ASSIGN(TrainOptions t, resolve(o, parallel, launch.world));
  LLMOPS_ASSIGN(const DeviceChoice choice, choose_device(o.device, launch.world));
  t.joins_shards = !choice.is_cuda;  // cuBLASLt chooses its order of additions by the number of rows
  if (!choice.note.empty() && launch.role != Launch::Role::member) warn("train: " + choice.note);
  t.start_s = monotonic_s();
  if (launch.role == Launch::Role::member) {
    const char* fd = std::getenv(kCorpusFd);
    const char* resume_from = std::getenv(kResumeFrom);
    const char* init_from = std::getenv(kInitFrom);
    if (!fd || !resume_from || !init_from) return peer_error("a rank was started without its corpus");
    LLMOPS_ASSIGN(const Corpus corpus, Corpus::load_from(std::atoi(fd)));
    t.resume_from = resume_from;
    o.init_from = t.init_from = init_from;
    LLMOPS_TRY(resolve_model(o, corpus, &t));
    return run_rank(o, std::move(t), corpus, launch, choice, context);
  }
  LLMOPS_ASSIGN(const Corpus corpus, Corpus::open(data_options(o)));
  Pool pool(usable_cores());
  if (!o.init_from.empty()) {
    LLMOPS_ASSIGN(const WeightsFolder weights, find_weights(o.init_from, pool));
    for (const std::string& note : weights.notes) warn("train: " + note);
    o.init_from = t.init_from = weights.path;
  }
  LLMOPS_TRY(resolve_model(o, corpus, &t));
  LLMOPS_TRY(SampleOrder::create(corpus.tokens(Split::train), t.seq, t.seed).status());
  if (o.dry_run) return context.print(plan_report(plan_of(t, launch.world), t, launch.world));
  if (!choice.is_cuda) LLMOPS_TRY(check_memory(plan_of(t, launch.world), launch.world));
  LLMOPS_ASSIGN(const PreparedRun prepared, prepare_run(t.out, o.resume == Resume::automatic, pool));
  for (const std::string& note : prepared.notes) warn("train: skipped " + note);
  if (!t.out.empty()) LLMOPS_TRY(write_run_file(context, t.out, launch.world));
  t.resume_from = prepared.resume_from;
  if (launch.role == Launch::Role::parent) return run_parent(o, corpus, t, launch.world, context);
  return run_rank(o, std::move(t), corpus, launch, choice, context);
}

}  // namespace

Command train_command() {
  return make_command<Options, declare, run>({
      .name = "train",
      .summary = "train a model: data parallel, ZeRO-1, checkpoints, exact resume",
      .description = "Trains a GPT-2, Llama or Qwen3 model on the ranks of this machine. The same seed, data and "
                     "--shards give the same bits "
                     "for any number of ranks and threads, across kills and resumes.\n\n"
                     "With --out DIR a run keeps checkpoints (DIR/step-%08d), metrics.jsonl and run.toml, which holds "
                     "every option as the run used it: llmops train --config DIR/run.toml --out OTHER repeats the run. "
                     "SIGTERM, SIGINT and --max-time save and end with exit code 75; --resume auto goes on. A signal "
                     "before the first step, or without --out, ends the run with nothing saved. A loss or gradient "
                     "that is not finite stops the "
                     "run before the update with exit code 1.",
      .examples = {{"llmops train --model char --data FILE --steps 200 --out runs/char",
                    "nanoGPT's character model on a text"},
                   {"llmops train --model char --data FILE --steps 400 --out runs/char --resume auto --ranks 2",
                    "go on with two ranks"},
                   {"llmops train --model gpt2:6x384 --data FILE --dry-run", "what a run would need"}},
  });
}

}  // namespace llmops
