#include "ckpt/text_file.h"

#include <fmt/format.h>

#include <span>

namespace llmops {

Result<std::string> read_text(const Dir& dir, std::string_view name, int64_t bytes_max) {
  LLMOPS_ASSIGN(const File file, dir.open_file(name));
  return read_text(file, bytes_max);
}

Result<std::string> read_text(const File& file, int64_t bytes_max) {
  LLMOPS_ASSIGN(const int64_t bytes, file.size());
  if (bytes > bytes_max)
    return invalid_error(fmt::format("{}: has {} bytes, at most {} are read", file.path(), bytes, bytes_max));
  std::string text(static_cast<size_t>(bytes), '\0');
  LLMOPS_TRY(file.read_at(0, std::as_writable_bytes(std::span(text))));
  return text;
}

}  // namespace llmops
