// Bytes of a file as a stream: plain, gzip or zstd (found by content), or stdin ("-").
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace llmops {

class Input {
 public:
  static Result<Input> open(const std::string& path);
  Input(Input&&) noexcept;
  Input& operator=(Input&&) noexcept;
  ~Input();

  const std::string& path() const;
  bool compressed() const;
  // Up to out.size() decompressed bytes; 0 only at the end. A truncated stream, a wrong checksum and foreign bytes
  // behind the last member are Code::invalid.
  Result<size_t> read(std::span<char> out);
  // The first bytes without consuming them: up to `bytes`, fewer only when the stream is shorter.
  Result<std::string_view> peek(size_t bytes);

  struct State;

 private:
  explicit Input(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The whole decompressed content; Code::invalid when it is longer than bytes_max.
Result<std::string> read_all(const std::string& path, int64_t bytes_max);

}  // namespace llmops
