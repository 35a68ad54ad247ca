// Everything written from the option table: help, man pages, completions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cmds/invocation.h"

namespace llmops {

constexpr char kProgramSummary[] = "train, checkpoint, verify and run language models on one machine";
std::string overview_text();                    // `llmops --help`
std::string noun_text(std::string_view noun);   // `llmops ckpt --help`
std::string help_text(const Command& command);  // `llmops train --help`
Json help_json(const Command& command);         // the same as data
Json commands_json(std::string_view noun);      // names and summaries of all commands, or of a noun's

std::string man_page_name(std::string_view command);  // "llmops-ckpt-verify.1"; "llmops.1" for ""
std::string man_page(const Command& command);
std::string man_overview();

std::string completion_script(std::string_view shell);  // "bash", "zsh", "fish"

// "at least 1, default 50": what the table knows beside the help phrase; may be empty.
std::string facts_of(const Option& option);
std::string synopsis(const Command& command, const OptionTable& table);  // "llmops ckpt verify [OPTIONS] DIR"
std::vector<std::string> sections_of(const OptionTable& table);          // headings in order

}  // namespace llmops
