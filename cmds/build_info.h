// What was built, for `version` and for the records that a run writes.
#pragma once

#include <string_view>

namespace llmops {

std::string_view build_version();   // "0.1.0"
std::string_view build_commit();    // "23cf774d1f0a", "...-dirty", or "unknown" outside a git checkout
std::string_view build_compiler();  // "GNU 12.2.0"
std::string_view build_type();      // "Release"

}  // namespace llmops
