#include "cmds/build_info.h"

#include "llmops_commit.h"  // written at build time by cmds/commit.cmake, when the commit changed

namespace llmops {

std::string_view build_version() { return LLMOPS_VERSION; }
std::string_view build_commit() { return LLMOPS_COMMIT; }
std::string_view build_compiler() { return LLMOPS_COMPILER; }
std::string_view build_type() { return LLMOPS_BUILD_TYPE; }

}  // namespace llmops
