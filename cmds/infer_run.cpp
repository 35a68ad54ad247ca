// llmops infer run: completions of a prompt, or of JSON lines.
#include <fmt/format.h>

#include <string>
#include <unordered_set>

#include "base/run.h"
#include "base/text.h"
#include "cmds/device_option.h"
#include "cmds/infer_requests.h"
#include "infer/load.h"
#include "report/progress.h"

namespace llmops {
namespace {

using namespace infer_command_detail;

void declare(Options& o, OptionTable& t) {
  t.section("Model");
  t.path("ckpt", &o.ckpt, "step folder, run folder (its newest valid step) or Hugging Face directory")
      .meta("DIR")
      .required();
  t.path("tokenizer", &o.tokenizer, "byte, or a tokenizer to use in place of the model's").meta("PATH");
  t.choice("dtype", &o.dtype, {{"f32", DType::f32}, {"bf16", DType::bf16}}, "weights, cache and activations");
  declare_device(&o.device, t);
  t.flag("fast-matmul", &o.fast_matmul,
         "cuBLASLt's matmul in place of our own on a CUDA device: answers then depend on --batch, in their last bits");
  t.duration("deadline", &o.deadline_s, "longest wait for a CUDA device that comes no further");
  t.integer("threads", &o.threads, 1, 1024, "threads").otherwise("usable cores");
  t.section("Prompts");
  t.text("prompt", &o.prompt, "the prompt");
  t.path("input", &o.input,
         "JSON lines, - for stdin: {\"prompt\": ...} or OpenAI batch requests; a prompt may be an array of token ids")
      .meta("FILE");
  t.integer("batch", &o.batch, 1, 4096, "prompts that are run together");
  t.section("Sampling (JSON lines may give their own)");
  t.integer("max-tokens", &o.sampling.max_tokens, 0, 1 << 24, "tokens to generate at most");
  t.real("temperature", &o.sampling.temperature, 0, 100, "0 is greedy");
  t.integer("top-k", &o.sampling.top_k, 0, 1 << 24, "draw from the k most likely tokens; 0: from all");
  t.real("top-p", &o.sampling.top_p, 0, 1, "draw from the most likely tokens that together reach this probability")
      .limits = "above 0, up to 1";
  t.integer("seed", &o.seed, 0, INT64_MAX, "seed of the draws");
  t.list("stop", &o.sampling.stop, "end the text before this").meta("TEXT");
  t.flag("ignore-eos", &o.sampling.ignore_eos, "go on after an end-of-text token");
}

// The text of one prompt as it comes, on a terminal or in a pipe.
Status run_plain(const Options& o, LoadedModel& loaded, const Backend& backend, Context& context) {
  Request request;
  request.sampling = o.sampling;
  request.prompt_text = *o.prompt;
  LLMOPS_ASSIGN(Prompt prompt, to_prompt(request, loaded.tokenizer()));
  const bool stream = context.format == Format::table;
  const OnText print = [&](size_t, std::string_view text) {
    (void)context.out.write(context.out.is_terminal() ? escape_for_terminal(text) : std::string(text));
  };
  LLMOPS_ASSIGN(const std::vector<Completion> completions,
                generate(*loaded.model, loaded.tokenizer(), std::span(&prompt, 1), stream ? print : OnText()));
  if (stream) return completions[0].text.ends_with('\n') ? Status() : context.out.write("\n");
  Report report(record_columns());
  report.record(plain_record(request, completions[0], backend));
  return context.print(report);
}

class Batches {
 public:
  Batches(const Options& o, LoadedModel& loaded, const Backend& backend, Context& context)
      : o_(o),
        loaded_(loaded),
        backend_(backend),
        writer_(context.out, context.format_given() ? context.format : Format::jsonl, context.colour),
        progress_("infer", 0) {}

  Status run() {
    LLMOPS_ASSIGN(RecordReader reader, RecordReader::open(o_.input, {.keep_going = true}));
    LLMOPS_TRY(writer_.begin(record_columns()));
    while (true) {
      LLMOPS_ASSIGN(std::optional<Record> record, reader.next());
      if (!record) break;
      pending_.push_back(read_request(*record, o_, lines_++));
      if (Request& request = pending_.back();
          !request.custom_id.empty() && !custom_ids_.insert(request.custom_id).second)
        request.status =
            invalid_error("custom_id \"" + escape_control(request.custom_id) + "\" is not unique in the file");
      if (static_cast<int64_t>(pending_.size()) == o_.batch) LLMOPS_TRY(flush());
    }
    LLMOPS_TRY(flush());
    progress_.clear();
    if (lines_ == 0) return invalid_error(o_.input + ": holds no request");
    Report rest;
    LLMOPS_TRY(writer_.end(rest));
    if (failed_ > 0)
      return {Code::finding, fmt::format("{} of {} requests failed; their records say why", failed_, lines_)};
    return {};
  }

 private:
  // Runs what is pending: good requests together, the others answered with their error, all in the order of the input.
  Status flush() {
    std::vector<Prompt> prompts;
    for (Request& request : pending_) {
      if (!request.status.ok()) continue;
      auto prompt = to_prompt(request, loaded_.tokenizer());
      if (prompt.ok())
        request.status = check_prompt(loaded_.model->config(), *prompt);
      else
        request.status = prompt.status();
      if (request.status.ok()) prompts.push_back(prompt.take());
    }
    LLMOPS_ASSIGN(const std::vector<Completion> completions, generate(*loaded_.model, loaded_.tokenizer(), prompts));
    size_t next = 0;
    for (const Request& request : pending_) {
      if (!request.status.ok()) ++failed_;
      LLMOPS_TRY(writer_.record(answer(request, request.status.ok() ? &completions[next++] : nullptr, backend_)));
    }
    done_ += static_cast<int64_t>(pending_.size());
    progress_.update(static_cast<double>(done_));
    pending_.clear();
    return {};
  }

  const Options& o_;
  LoadedModel& loaded_;
  const Backend& backend_;
  ReportWriter writer_;
  Progress progress_;
  std::vector<Request> pending_;
  std::unordered_set<std::string> custom_ids_;
  int64_t lines_ = 0, done_ = 0, failed_ = 0;
};

Status run(Options& o, Context& context) {
  if (o.prompt.has_value() == !o.input.empty())
    return usage_error("give one of --prompt TEXT and --input FILE (- for stdin)");
  if (o.sampling.top_p == 0) return usage_error("--top-p is 0, expected more than 0 up to 1");
  if (o.deadline_s == 0) return usage_error("--deadline is 0, expected a time to wait");
  o.sampling.seed = static_cast<uint64_t>(o.seed);
  LLMOPS_ASSIGN(const DeviceChoice choice, choose_device(o.device, 1));
  if (!choice.note.empty()) warn("infer run: " + choice.note);
  LLMOPS_ASSIGN(const std::unique_ptr<Device> device,
                open_device(choice, 0, o.threads ? static_cast<int>(*o.threads) : usable_cores()));
  device->set_deadline(o.deadline_s);
  Backend backend;
  if (o.fast_matmul) {
    if (!choice.is_cuda) return usage_error("--fast-matmul is for a CUDA device, found the CPU, which has one matmul");
    LLMOPS_ASSIGN(backend.matmul, device->use_fast_matmul());
    log(LogLevel::normal, fmt::format("infer run: matmul by {}: answers depend on --batch", backend.matmul));
  }
  LLMOPS_ASSIGN(LoadedModel loaded, load_model(*device, o.ckpt, o.tokenizer, o.dtype));
  backend.model = loaded.name;
  for (const std::string& note : loaded.notes) warn("infer run: " + note);
  return o.prompt ? run_plain(o, loaded, backend, context) : Batches(o, loaded, backend, context).run();
}

}  // namespace

Command infer_run_command() {
  return make_command<Options, declare, run>({
      .name = "infer run",
      .summary = "generate text from a checkpoint, for one prompt or for JSON lines",
      .description = "Runs a model on a prompt, or on the requests of a file. A prompt alone prints its completion; "
                     "JSON lines in give JSON "
                     "lines out, in order, a bad line answered by its error and exit code 1 at the end.\n\n"
                     "Answers do not depend on threads, on --batch or on the other prompts. A draw depends on the seed "
                     "and on the number of the token.",
      .examples = {{"llmops infer run --ckpt runs/char --prompt \"In the beginning\" --max-tokens 64",
                    "the newest valid step of a run"},
                   {"llmops infer run --ckpt runs/char --prompt \"And \" --temperature 0.8 --top-k 40 --seed 7",
                    "sampled"},
                   {"llmops infer run --ckpt runs/char --input requests.jsonl > answers.jsonl", "a batch"}},
  });
}

}  // namespace llmops
