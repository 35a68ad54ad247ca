// llmops help: a command's help, its man page, or all man pages as files.
#include "base/io.h"
#include "cmds/command.h"
#include "cmds/documents.h"

namespace llmops {
namespace {

struct Options {
  std::vector<std::string> words;
  bool man = false;
  std::string man_dir;
};

void declare(Options& o, OptionTable& t) {
  t.arguments("COMMAND", &o.words, "the command; none: the list of all");
  t.flag("man", &o.man, "print the man page as roff");
  t.path("man-dir", &o.man_dir, "write every man page into this folder").meta("DIR");
}

Status write_pages(const std::string& folder) {
  LLMOPS_TRY(Dir::create(folder).status());
  LLMOPS_TRY(write_file_durable(folder + "/" + man_page_name(""), man_overview()));
  for (const Command& command : commands())
    LLMOPS_TRY(write_file_durable(folder + "/" + man_page_name(command.text.name), man_page(command)));
  return {};
}

Status run(Options& o, Context& context) {
  if (!o.man_dir.empty()) return write_pages(o.man_dir);
  std::string name;
  for (const std::string& word : o.words) name += (name.empty() ? "" : " ") + word;
  const Command* command = find_command(name);
  const bool is_list = name.empty() || (command == nullptr && o.words.size() == 1 && is_noun(name));
  if (is_list && context.wants_json() && !o.man) return context.print(commands_json(name));
  if (name.empty()) return context.out.write(o.man ? man_overview() : overview_text());
  if (is_list) return context.out.write(noun_text(name));
  if (command == nullptr) {
    std::vector<std::string> names;
    for (const Command& known : commands()) names.push_back(known.text.name);
    return usage_error("found the unknown command '" + name + "'" + did_you_mean(name, names));
  }
  if (o.man) return context.out.write(man_page(*command));
  if (context.wants_json()) return context.print(help_json(*command));
  return context.out.write(help_text(*command));
}

}  // namespace

Command help_command() {
  return make_command<Options, declare, run>({
      .name = "help",
      .summary = "show a command's help or man page",
      .description =
          "Shows what --help of a command shows. With --format json the option table itself: names, types, limits, "
          "defaults, examples.",
      .examples = {{"llmops help version", "the options of a command"},
                   {"llmops help version --man", "its man page, for man -l -"},
                   {"llmops help version --format json", "its options as data"}},
  });
}

}  // namespace llmops
