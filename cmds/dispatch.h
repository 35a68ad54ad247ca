// From the words of a command line to an exit code.
#pragma once

#include <span>
#include <string>

#include "report/output.h"

namespace llmops {

int dispatch(std::span<const std::string> words, Output& out);

}  // namespace llmops
