// One use of a command: its options bound to a table with the common ones, and the sources that fill them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "cmds/command.h"

namespace llmops {

// Options of every command.
struct CommonOptions {
  Format format = Format::table;
  bool quiet = false;
  int verbose = 0;
  std::string config;
  bool no_color = false;
  bool help = false;
};
void declare_common(CommonOptions& common, OptionTable& table);

struct Invocation {
  explicit Invocation(const Command& command);
  Invocation(const Invocation&) = delete;
  Invocation& operator=(const Invocation&) = delete;

  std::string name;
  CommonOptions common;
  std::unique_ptr<CommandRun> run;
  OptionTable table;  // its options write into `common` and `run`
};

// Each fills only what nobody before it filled; called in this order: command line, environment, configuration.
Status read_command_line(OptionTable& table, std::span<const std::string> words);
Status read_environment(OptionTable& table, std::string_view command);
// `path` empty: ./llmops.toml when there is one. Every table and key of the file is checked, whatever the command.
Status read_config(OptionTable& table, std::string_view command, const std::string& path);
Status check_required(const OptionTable& table);

const Command* find_command(std::string_view name);
bool is_noun(std::string_view word);  // "ckpt", of "ckpt verify"
// The verbs of a noun; with "": the first words of all commands.
std::vector<std::string> command_words(std::string_view noun);
// "; did you mean 'x'?", or "" when none is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace llmops
