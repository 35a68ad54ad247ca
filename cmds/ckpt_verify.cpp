// llmops ckpt verify: is every byte of a checkpoint what was saved?
#include <fmt/format.h>

#include "base/pool.h"
#include "base/text.h"
#include "ckpt/verify.h"
#include "cmds/command.h"
#include "report/progress.h"

namespace llmops {
namespace {

struct Options {
  std::string dir;
  std::optional<int64_t> threads;
};

void declare(Options& o, OptionTable& t) {
  t.argument("DIR", &o.dir, "step folder, or run folder: all its steps");
  t.integer("threads", &o.threads, 1, 1024, "threads, at most one for each file").otherwise("usable cores");
}

std::string counted(size_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

Status run(Options& o, Context& context) {
  Pool pool(o.threads ? static_cast<int>(*o.threads) : usable_cores());
  std::optional<Progress> progress;
  const auto checked = verify(o.dir, pool, [&](int64_t done, int64_t total) {
    if (!progress) progress.emplace("ckpt verify", static_cast<double>(total));
    progress->update(static_cast<double>(done), format_bytes(done));
  });
  progress.reset();
  if (!checked.ok()) return checked.status();
  Report report{
      {"file", "file"}, {"tensor", "tensor"}, {"byte_begin", "from byte"}, {"byte_end", "to byte"}, {"what", "what"}};
  for (const Finding& f : checked->findings) {
    const bool range = f.end > f.begin;
    report.row({f.file, f.tensor.empty() ? Json() : Json(f.tensor), range ? Json(f.begin) : Json(),
                range ? Json(f.end) : Json(), f.what});
  }
  report.summary({"steps", "steps"}, static_cast<int64_t>(checked->steps.size()));
  report.summary({"files", "files"}, checked->files);
  report.summary({"tensors", "tensors"}, checked->tensors);
  report.summary({"checked_bytes", "checked", Unit::bytes}, checked->bytes);
  report.summary({"findings", "findings"}, static_cast<int64_t>(checked->findings.size()));
  report.summary({"verdict", "verdict", Unit::verdict}, checked->findings.empty() ? "ok" : "damaged");
  LLMOPS_TRY(context.print(report));
  if (checked->findings.empty()) return {};
  return {Code::finding,
          fmt::format("{}: {} in {}; do not load what is named", o.dir, counted(checked->findings.size(), "finding"),
                      counted(checked->steps.size(), "step"))};
}

}  // namespace

Command ckpt_verify_command() {
  return make_command<Options, declare, run>({
      .name = "ckpt verify",
      .summary = "check every byte of a checkpoint: structure, hashes, logical digests",
      .description =
          "Reads every file of a step folder, or of all steps of a run folder, and holds it to the manifest, and the "
          "manifest to its own hash. "
          "A byte that was changed, added or removed anywhere is a finding with its file, its tensor where there is "
          "one, and the range of bytes.\n\n"
          "Exit code 0: all is as it was saved; 1: there are findings; 3: DIR is no checkpoint; 4: DIR is missing.",
      .examples = {{"llmops ckpt verify runs/char", "every step of a run"},
                   {"llmops ckpt verify runs/char/step-00000200 --format json", "one step, for a script"}},
  });
}

}  // namespace llmops
