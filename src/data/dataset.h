// Training data: any number of files become one stream of tokens, and a sample is a window of it.
//
// Read are: text and jsonl (plain, .gz, .zst or "-"), llm.c shards (magic 20240520 v1, 20240801 v7), nanoGPT's raw
// uint16, Megatron's .bin + .idx. Text is tokenised into memory; token files stay on disk and are read by windows.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/status.h"
#include "data/tokenizer.h"

namespace llmops {

// detect: *.idx, or *.bin or a prefix with an .idx beside it: megatron. First word an llm.c magic: llmc. *.jsonl and
// *.ndjson (before .gz, .zst): jsonl. No NUL in the first 64 KiB: text. *.bin of even size: u16. Else an error.
enum class DataFormat : uint8_t { detect, text, jsonl, llmc, u16, megatron };
std::string_view data_format_name(DataFormat format);
Result<DataFormat> parse_data_format(std::string_view name);  // Code::usage with the names

struct DataOptions {
  // Files, folders (their files in sorted order, hidden ones left out), glob patterns, or "-".
  // In a folder, files named val.bin, *_val.bin or *_val_*.bin are the validation set, or left out with val_paths.
  std::vector<std::string> paths;
  std::vector<std::string> val_paths;
  // Without validation files: the last part of the stream validates (train = first floor(tokens * (1 - val_fraction))).
  double val_fraction = 0.1;
  DataFormat format = DataFormat::detect;
  std::string tokenizer = "byte";  // "char": from the data; else what Tokenizer::load takes. Unused for token files.
  std::string text_field = "text";  // jsonl: the field that holds the text
  int64_t vocab_size = 0;           // token files: ids must be below it; 0: the tokenizer's, when one is given
};

enum class Split : uint8_t { train, val };

class Corpus {
 public:
  // `tokenizer`, when given (a resumed or fine-tuned run has one), is used in place of options.tokenizer.
  // An empty file is Code::invalid, a missing one Code::io; every token is checked against the vocabulary.
  static Result<Corpus> open(const DataOptions& options, const std::optional<Tokenizer>& tokenizer = std::nullopt);
  // For ranks on one host: the parent saves the corpus to a memory file and each rank loads it from there, so the data
  // (or stdin) is read and tokenised once. `fd` must be seekable; load keeps its own duplicate.
  Status save_to(int fd) const;  // token files are named, not copied
  static Result<Corpus> load_from(int fd);
  Corpus(Corpus&&) noexcept;
  Corpus& operator=(Corpus&&) noexcept;
  ~Corpus();

  // None for token files opened without one.
  const std::optional<Tokenizer>& tokenizer() const;
  int64_t vocab_size() const;  // token files: options.vocab_size if set; else the tokenizer's, else highest token + 1
  int64_t tokens(Split split) const;
  // Where documents start in the split, ascending; empty when the format does not say (llmc, u16).
  const std::vector<int64_t>& document_starts(Split split) const;
  // XXH3-128 of the sizes and the tokens of both splits: the same however the data was stored or packed.
  Hash128 fingerprint() const;
  int64_t files() const;
  int64_t memory_bytes() const;  // held in memory (0 for token files)

  // Tokens [offset, offset + out.size()) of the split. Safe from several threads at once.
  Status read(Split split, int64_t offset, std::span<int32_t> out) const;

  struct State;

 private:
  explicit Corpus(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Which window is sample i: a function of (seed, i) alone, so any number of ranks goes on with the same samples and the
// data position of a checkpoint is one integer, the samples seen so far.
//
// An epoch is windows_per_epoch() windows of seq + 1 tokens that lie seq apart (the last target of one is the first
// input of the next) from a start drawn per epoch, in an order drawn per epoch.
class SampleOrder {
 public:
  // Code::invalid when `tokens` cannot hold one window.
  static Result<SampleOrder> create(int64_t tokens, int64_t seq, uint64_t seed);
  int64_t windows_per_epoch() const { return windows_; }
  int64_t epoch_of(int64_t sample) const { return sample / windows_; }
  int64_t offset(int64_t sample) const;  // first token of the window of sample >= 0

 private:
  int64_t windows_ = 0, seq_ = 0, slack_ = 0;
  int half_bits_ = 1;
  uint64_t seed_ = 0;
};

// Validation windows lie in order at offset i * seq; how many the split holds (0: too short).
int64_t validation_windows(int64_t tokens, int64_t seq);

}  // namespace llmops
