// llmops ckpt export: a step as a directory that other programs read.
#include <fmt/format.h>

#include "base/run.h"
#include "base/text.h"
#include "ckpt/export.h"
#include "ckpt/steps.h"
#include "ckpt/verify.h"
#include "cmds/command.h"
#include "report/progress.h"

namespace llmops {
namespace {

struct Options {
  std::string dir, to, out;
  DType dtype = DType::f32;
};

void declare(Options& o, OptionTable& t) {
  t.argument("DIR", &o.dir, "step folder, or run folder: its newest valid step");
  t.choice("to", &o.to, {"hf"}, "format: hf is a Hugging Face directory").required();
  t.argument("OUT", &o.out, "the new folder");
  t.choice("dtype", &o.dtype, {{"f32", DType::f32}, {"bf16", DType::bf16}}, "type of the weights written");
}

// The step to export, its content verified: damage must not travel on unseen.
Result<std::string> valid_step(const std::string& dir) {
  Pool pool(usable_cores());
  LLMOPS_ASSIGN(const std::string newest, newest_step(dir));
  if (newest == dir) {
    LLMOPS_ASSIGN(const VerifyReport report, verify(dir, pool));
    if (report.findings.empty()) return dir;
    return invalid_error(fmt::format("{}: is damaged: {}: {}; see llmops ckpt verify", dir, report.findings[0].file,
                                     report.findings[0].what));
  }
  LLMOPS_ASSIGN(const NewestValid found, newest_valid(dir, pool));
  for (const std::string& skipped : found.skipped) warn("ckpt export: skipped " + skipped);
  if (!found.step) return invalid_error(fmt::format("{}: none of its steps is valid; see llmops ckpt verify", dir));
  return found.step->path;
}

Status run(Options& o, Context& context) {
  const auto path = valid_step(o.dir);
  std::optional<Result<ExportReport>> exported;
  if (path.ok()) {
    LLMOPS_ASSIGN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(*path));
    std::optional<Progress> progress;
    exported = export_hf(*checkpoint, o.out, o.dtype, [&](int64_t done, int64_t total) {
      if (!progress) progress.emplace("ckpt export", static_cast<double>(total));
      progress->update(static_cast<double>(done), format_bytes(done));
    });
  }
  const Status status = path.ok() ? exported->status() : path.status();
  if (!status.ok()) return status;
  Report report;
  report.summary({"step", "step"}, *path);
  report.summary({"out", "written to"}, o.out);
  report.summary({"tensors", "tensors"}, (*exported)->tensors);
  report.summary({"size_bytes", "size", Unit::bytes}, (*exported)->bytes);
  report.summary({"files", "files"}, (*exported)->files);
  if (!(*exported)->has_tokenizer) report.note("without a tokenizer: a byte or character one has no Hugging Face form");
  return context.print(report);
}

}  // namespace

Command ckpt_export_command() {
  return make_command<Options, declare, run>({
      .name = "ckpt export",
      .summary = "write a step as a Hugging Face directory",
      .description = "Writes config.json, generation_config.json, model.safetensors (shards of at most 5 GB with an "
                     "index) and the files of a GPT-2 tokenizer, with "
                     "Hugging Face's names, fused as it fuses. The step is verified first. GPT-2 without biases gets "
                     "zero biases. OUT must not exist, or be empty.",
      .examples = {{"llmops ckpt export runs/char --to hf char-hf", "the newest valid step of a run"},
                   {"llmops ckpt export runs/char/step-00000200 --to hf char-bf16 --dtype bf16",
                    "one step, in bfloat16"}},
  });
}

}  // namespace llmops
