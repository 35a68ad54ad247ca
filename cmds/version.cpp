// llmops version: what this binary is and what it can use here.
#include <dlfcn.h>

#include "base/pool.h"
#include "cmds/build_info.h"
#include "cmds/command.h"

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

std::vector<std::string> instruction_sets_found() {
  std::vector<std::string> found;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back("avx2");
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) found.push_back("avx512");
  if (__builtin_cpu_supports("avx512bf16")) found.push_back("avx512_bf16");
#endif
  return found;
}

Json words(const std::vector<std::string>& list) {
  Json::Array out(list.begin(), list.end());
  return out;
}

Status run(Options&, Context& context) {
#if LLMOPS_CUDA
  const bool cuda_compiled = true;
#else
  const bool cuda_compiled = false;
#endif
  Report report;
  report.summary({"version", "version"}, build_version());
  report.summary({"commit", "commit"}, build_commit());
  report.summary({"compiler", "compiler"}, build_compiler());
  report.summary({"build_type", "build type"}, build_type());
  report.summary({"instruction_sets_found", "instruction sets found"}, words(instruction_sets_found()));
  report.summary({"threads_usable", "threads usable"}, usable_cores());
  report.summary({"cuda_compiled", "CUDA compiled in"}, cuda_compiled);
  report.summary({"cuda_loadable", "CUDA driver loadable"}, cuda_loadable());
  return context.print(report);
}

}  // namespace

Command version_command() {
  return make_command<Options, declare, run>({
      .name = "version",
      .summary = "version, commit, compiler, instruction sets, threads, CUDA",
      .description = "Says what this binary is and what it can use on this machine. Nothing is started: the CUDA driver is "
                     "only opened to see whether it is there. llmops --version prints one line and opens nothing.",
      .examples = {{"llmops version", "for people"}, {"llmops version --format json", "for scripts"}},
  });
}

}  // namespace llmops
