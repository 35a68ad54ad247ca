// A program with llmops' main and command framework, but commands made for tests: options of every type, streamed rows,
// signals, memory.
#include <unistd.h>

#include <limits>
#include <new>

#include "base/io.h"
#include "base/run.h"
#include "cmds/command.h"
#include "report/progress.h"

namespace llmops {
namespace {

// Shows what each option became and where it came from.
enum class Mode { slow, quick };
struct ShowOptions {
  int64_t steps = 10;
  int ranks = 1;
  double lr = 1e-3;
  std::optional<double> clip;
  int64_t memory = 1 << 20;
  double max_time = 90;
  std::string prompt;
  std::string out;
  Mode mode = Mode::slow;
  std::string sampler = "greedy";
  std::vector<std::string> stop;
  bool save = true;
  bool dry_run = false;
  std::vector<std::string> files;
};

void declare_show(ShowOptions& o, OptionTable& t) {
  t.section("Numbers");
  t.integer("steps", &o.steps, 1, std::numeric_limits<int64_t>::max(), "optimizer steps").short_name('n');
  t.integer("ranks", &o.ranks, 1, 64, "processes");
  t.real("lr", &o.lr, 0, 10, "learning rate");
  t.real("clip", &o.clip, 0, std::numeric_limits<double>::max(), "gradient clip");
  t.bytes("memory", &o.memory, "memory to use");
  t.duration("max-time", &o.max_time, "time limit");
  t.section("Words");
  t.text("prompt", &o.prompt, "a text");
  t.path("out", &o.out, "a folder").meta("DIR");
  t.choice("mode", &o.mode, {{"slow", Mode::slow}, {"quick", Mode::quick}}, "how fast");
  t.choice("sampler", &o.sampler, {"greedy", "top-k", "top-p"}, "how to draw");
  t.list("stop", &o.stop, "a stop string");
  t.flag("save", &o.save, "keep the result");
  t.flag("dry-run", &o.dry_run, "only say what would be done");
  t.arguments("FILE", &o.files, "input files");
}

Status run_show(ShowOptions&, Context& context) {
  Report report;
  report.extra("options", context.options.echo());
  Json origins = Json::Object();
  for (const Option& option : context.options.options()) origins[option.key()] = option.origin_text;
  report.extra("origins", origins);
  report.extra("toml", context.options.to_toml("show"));
  return context.print(report);
}

// Rows one by one, as a training run writes them.
struct StreamOptions {
  int64_t rows = 3;
  int pause_ms = 0;
  bool fails = false;
  std::string done;
};

void declare_stream(StreamOptions& o, OptionTable& t) {
  t.integer("rows", &o.rows, 0, 1000000, "rows");
  t.integer("pause-ms", &o.pause_ms, 0, 1000, "time a row takes").meta("MS");
  t.flag("fails", &o.fails, "end with a finding");
  t.path("done", &o.done, "file to make when all rows are done").meta("FILE");
}

Status run_stream(StreamOptions& o, Context& context) {
  ReportWriter writer(context.out, context.format, context.colour);
  Progress progress("rows", static_cast<double>(o.rows));
  LLMOPS_TRY(writer.begin({{"step", "step"}, {"step_ms", "time", Unit::ms}, {"verdict", "verdict", Unit::verdict}}));
  for (int64_t i = 0; i < o.rows; ++i) {
    usleep(static_cast<useconds_t>(o.pause_ms) * 1000);
    progress.update(static_cast<double>(i + 1), "loss 2.31");
    LLMOPS_TRY(writer.row({i, 1.5, "ok"}));
  }
  Report rest;
  rest.summary({"tokens", "tokens", Unit::count}, 124439808);
  LLMOPS_TRY(writer.end(rest));
  if (!o.done.empty()) LLMOPS_TRY(write_file_durable(o.done, "done\n"));
  return o.fails ? Status(Code::finding, "row 2: found 1, expected 2") : Status();
}

// Ends the way a long run ends.
struct EndOptions {
  std::string how;
  std::string text = "a\x1b[31mb\nc";
};

void declare_end(EndOptions& o, OptionTable& t) {
  t.argument("HOW", &o.how, "how to end").choices = {"memory", "saved", "unsaved", "text"};
  t.text("text", &o.text, "a text");
}

Status run_end(EndOptions& o, Context& context) {
  if (o.how == "memory") throw std::bad_alloc();
  Report report{{"text", "text"}};
  report.row({o.text});
  if (o.how == "text") return context.print(report);
  while (cancel_signal() == 0) usleep(1000);
  context.saved = o.how == "saved";
  return {Code::interrupted, "stopped by a signal; run it again with --resume auto"};
}

struct VerifyOptions {
  std::string dir;
};
void declare_verify(VerifyOptions& o, OptionTable& t) { t.argument("DIR", &o.dir, "a checkpoint folder"); }
Status run_verify(VerifyOptions& o, Context& context) { return context.out.write(o.dir + "\n"); }
Status run_list(VerifyOptions& o, Context& context) { return context.out.write(o.dir + "\n"); }

}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {
      make_command<ShowOptions, declare_show, run_show>(
          {"show", "show options", "", {{"llmops show --steps 3", "three"}}}),
      make_command<StreamOptions, declare_stream, run_stream>({"stream", "write rows", "", {}}),
      make_command<EndOptions, declare_end, run_end>({"end", "end somehow", "", {}}),
      make_command<VerifyOptions, declare_verify, run_verify>({"ckpt verify", "check", "", {}}),
      make_command<VerifyOptions, declare_verify, run_list>({"ckpt ls", "list", "", {}}),
  };
  return all;
}

}  // namespace llmops
