// What run_ranks() tells its ranks.
#pragma once

namespace llmops {

constexpr const char* kMemberVariable = "LLMOPS_MEMBER";  // RANK:WORLD:DESCRIPTOR:PARENT_PID

}  // namespace llmops
