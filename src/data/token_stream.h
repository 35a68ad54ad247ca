// A long row of tokens: in memory as 16 bits each (32 where an id needs it), or in files that are read piece by piece.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/io.h"
#include "base/status.h"
#include "data/shards.h"

namespace llmops {

class TokenBuffer {
 public:
  void append(std::span<const int32_t> ids);      // ids >= 0
  void replace(std::span<const int32_t> new_ids);  // every id by new_ids[id]
  void read(int64_t offset, std::span<int32_t> out) const;
  int64_t size() const;
  TokenType type() const { return wide_.empty() ? TokenType::u16 : TokenType::u32; }
  std::span<const std::byte> raw() const;
  int64_t memory_bytes() const { return static_cast<int64_t>(raw().size()); }

 private:
  std::vector<uint16_t> narrow_;  // empty once an id above 65535 was met; then all are in wide_
  std::vector<uint32_t> wide_;
};

struct TokenFile {
  std::string path;
  File file;
  TokenType type = TokenType::u16;
};

class TokenStream {
 public:
  // Either tokens in memory are appended, or runs of files are added, not both.
  TokenBuffer& memory() { return memory_; }
  const TokenBuffer& memory() const { return memory_; }
  void add_file(TokenFile file, std::span<const TokenRun> runs);
  int64_t size() const { return runs_.empty() ? memory_.size() : runs_.back().first + runs_.back().run.count; }

  // Ids outside [0, vocab) are Code::invalid, with file and position.
  Status read(int64_t offset, std::span<int32_t> out, int64_t vocab) const;

  // A run, the stream's token that it begins with, and its file.
  struct Placed {
    int64_t first;
    TokenRun run;
    size_t file;
  };
  const std::vector<Placed>& runs() const { return runs_; }
  const std::vector<TokenFile>& files() const { return files_; }

 private:
  TokenBuffer memory_;
  std::vector<TokenFile> files_;
  std::vector<Placed> runs_;
};

}  // namespace llmops
