// What a command is. One file a command: a `struct Options` with every default, `declare` (names, help, ranges; touches
// nothing), `run` (cross checks, one call into src/, render). cmds/version.cpp is the example to copy; a new command is
// listed in cmds/commands.cpp and nowhere else.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cmds/options.h"
#include "report/output.h"
#include "report/report.h"

namespace llmops {

// What run() gets beside its options.
struct Context {
  const char* command;         // "ckpt verify"
  const OptionTable& options;  // origins and the JSON echo
  Output& out;
  Format format;  // of --format
  bool colour;    // on stdout
  // Set by a command whose work is on the disk: stopped by a signal it ends with 75, else by the signal (130, 143).
  bool saved = false;

  bool format_given() const { return options.given("format"); }
  // For commands whose data is one document: its form with --format json or jsonl.
  bool wants_json() const { return format == Format::json || format == Format::jsonl; }
  Status print(const Json& json) { return out.write(json.dump(format == Format::json ? 2 : -1) + "\n"); }
  Status print(const Report& report) { return ReportWriter(out, format, colour).write(report); }
};

struct Example {
  const char* line;  // "llmops ckpt verify runs/a": one that works; a test runs it
  const char* does;  // "check every step of a run"
};

class CommandRun {
 public:
  virtual ~CommandRun() = default;
  virtual void declare(OptionTable&) = 0;
  virtual Status run(Context&) = 0;
};

struct CommandText {
  const char* name;         // "train", or noun and verb: "ckpt verify"
  const char* summary;      // one phrase for the list of commands
  const char* description;  // for the man page: paragraphs parted by an empty line; may be ""
  std::vector<Example> examples;
};

struct Command {
  CommandText text;
  std::unique_ptr<CommandRun> (*make)();
};

// Command train_command() { return make_command<Options, declare, run>({...}); }
template <class Options, void (*kDeclare)(Options&, OptionTable&), Status (*kRun)(Options&, Context&)>
Command make_command(CommandText text) {
  struct Run final : CommandRun {
    Options options;
    void declare(OptionTable& table) override { kDeclare(options, table); }
    Status run(Context& context) override { return kRun(options, context); }
  };
  return {std::move(text), []() -> std::unique_ptr<CommandRun> { return std::make_unique<Run>(); }};
}

const std::vector<Command>& commands();  // cmds/commands.cpp: all of them, in the order of --help

}  // namespace llmops
