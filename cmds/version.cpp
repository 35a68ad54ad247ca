// llmops version: what this binary is and what it can use here.
#include <dlfcn.h>

#include "base/pool.h"
#include "cmds/build_info.h"
#include "cmds/command.h"
#include "kernels/tables.h"

namespace llmops {
namespace {

struct Options {};

void declare(Options&, OptionTable&) {}

// libcuda is the driver's; its presence tells whether CUDA work can start, and opening it starts nothing.
bool cuda_loadable() {
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return false;
  dlclose(library);
  return true;
}

Status run(Options&, Context& context) {
  Json::Array sets_compiled, sets_found;
  for (Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512, Isa::avx512_bf16}) {
    sets_compiled.push_back(name_of(isa));
    if (isa_runs(isa)) sets_found.push_back(name_of(isa));
  }
  Report report;
  report.summary({"version", "version"}, build_version());
  report.summary({"commit", "commit"}, build_commit());
  report.summary({"compiler", "compiler"}, build_compiler());
  report.summary({"build_type", "build type"}, build_type());
  report.summary({"instruction_sets_compiled", "instruction sets compiled"}, sets_compiled);
  report.summary({"instruction_sets_found", "instruction sets found"}, sets_found);
  report.summary({"threads_usable", "threads usable"}, usable_cores());
  report.summary({"cuda_compiled", "CUDA compiled in"}, op_table_cuda() != nullptr);
  report.summary({"cuda_loadable", "CUDA driver loadable"}, cuda_loadable());
  return context.print(report);
}

}  // namespace

Command version_command() {
  return make_command<Options, declare, run>({
      .name = "version",
      .summary = "version, commit, compiler, instruction sets, threads, CUDA",
      .description =
          "Says what this binary is and what it can use on this machine. Nothing is started: the CUDA driver is "
          "only opened to see whether it is there. llmops --version prints one line and opens nothing.",
      .examples = {{"llmops version", "for people"}, {"llmops version --format json", "for scripts"}},
  });
}

}  // namespace llmops
