#include "data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/io.h"
#include "base/json.h"
#include "base/run.h"
#include "base/text.h"
#include "data/corpus_state.h"
#include "data/shards.h"
#include "data/sources.h"
#include "data/text_source.h"

namespace llmops {
namespace {

constexpr int64_t kIndexBytesMax = int64_t{16} << 30;
constexpr int64_t kIdLimit = int64_t{1} << 31;  // ids are int32

// Reads files one after another into the two streams.
class Loader {
 public:
  Loader(const DataOptions& options, const std::optional<Tokenizer>& tokenizer, Corpus::State* state)
      : options_(options), state_(state), reader_(tokenizer, options.text_field) {}

  Status load(const std::vector<std::string>& paths, size_t stream);
  Status finish();
  const std::vector<int64_t>& document_starts(size_t stream) const { return documents_[stream]; }
  bool any_tokens() const { return any_tokens_; }

 private:
  Status load_file(const std::string& path, size_t stream);
  Status load_text(DataFormat format, Input input, size_t stream);
  Status tell_json_lines(Input& input) const;
  Status load_tokens(DataFormat format, const std::string& path, size_t stream);
  Status load_megatron(const std::string& index_path, size_t stream);

  const DataOptions& options_;
  Corpus::State* state_;
  TextReader reader_;
  std::vector<int64_t> documents_[2];
  bool any_text_ = false, any_tokens_ = false;
};

Status Loader::load(const std::vector<std::string>& paths, size_t stream) {
  for (const std::string& path : paths) {
    LLMOPS_TRY(load_file(path, stream));
    ++state_->files;
    if (any_text_ && any_tokens_)
      return usage_error(path + ": text and token files are mixed; give files of one kind");
  }
  return {};
}

Status Loader::load_file(const std::string& path, size_t stream) {
  DataFormat format = options_.format;
  const std::string index = path == "-" ? std::string() : megatron_index_path(path);
  if (format == DataFormat::megatron && index.empty()) return io_error(path + ": no .idx is beside it");
  if (!index.empty() && (format == DataFormat::detect || format == DataFormat::megatron))
    return load_megatron(index, stream);
  const bool is_tokens = format == DataFormat::llmc || format == DataFormat::u16;
  if (is_tokens && path != "-") return load_tokens(format, path, stream);
  LLMOPS_ASSIGN(Input input, Input::open(path));
  if (format == DataFormat::detect) {
    LLMOPS_ASSIGN(format, detect_format(input));
    if (format == DataFormat::text) LLMOPS_TRY(tell_json_lines(input));
  }
  if (format == DataFormat::text || format == DataFormat::jsonl) return load_text(format, std::move(input), stream);
  if (path == "-" || input.compressed())
    return invalid_error(input.path() + ": token files are read where they lie: neither compressed nor from stdin");
  return load_tokens(format, path, stream);
}

// A text that begins like JSON lines is still a text: only a name or the user can say otherwise. But it is said.
Status Loader::tell_json_lines(Input& input) const {
  LLMOPS_ASSIGN(const std::string_view head, input.peek(size_t{64} << 10));
  const auto line = json_parse(head.substr(0, head.find('\n')));
  if (line.ok() && line->find(options_.text_field))
    warn(fmt::format("{}: looks like JSON lines and is read as plain text; --data-format jsonl reads field \"{}\"",
                     input.path(), escape_control(options_.text_field)));
  return {};
}

Status Loader::load_text(DataFormat format, Input input, size_t stream) {
  any_text_ = true;
  if (format == DataFormat::jsonl)
    return reader_.read_jsonl(std::move(input), &state_->streams[stream], &documents_[stream]);
  return reader_.read_text(input, &state_->streams[stream], &documents_[stream]);
}

Status Loader::load_tokens(DataFormat format, const std::string& path, size_t stream) {
  any_tokens_ = true;
  LLMOPS_ASSIGN(File file, File::open(path));
  LLMOPS_ASSIGN(const int64_t bytes, file.size());
  if (bytes == 0) return invalid_error(path + ": is empty");
  LlmcShard shard;
  if (format == DataFormat::llmc) {
    std::vector<std::byte> header(static_cast<size_t>(std::min(bytes, kLlmcHeaderBytes)));
    LLMOPS_TRY(file.read_at(0, header));
    auto parsed = parse_llmc_header(header, bytes);
    if (!parsed.ok()) return parsed.status().in(path);
    shard = *parsed;
  } else {
    if (bytes % 2 != 0)
      return invalid_error(fmt::format("{}: {} bytes are no whole number of uint16 tokens", path, bytes));
    shard.run = {0, bytes / 2};
  }
  if (shard.run.count == 0) return invalid_error(path + ": holds no tokens");
  state_->streams[stream].add_file({path, std::move(file), shard.type}, {&shard.run, 1});
  return {};
}

Status Loader::load_megatron(const std::string& index_path, size_t stream) {
  any_tokens_ = true;
  const std::string bin_path = index_path.substr(0, index_path.size() - 4) + ".bin";
  LLMOPS_ASSIGN(const std::string idx, read_file(index_path, kIndexBytesMax));
  if (idx.empty()) return invalid_error(index_path + ": is empty");
  LLMOPS_ASSIGN(File file, File::open(bin_path));
  LLMOPS_ASSIGN(const int64_t bytes, file.size());
  auto index = parse_megatron_index(std::as_bytes(std::span(idx)), bytes);
  if (!index.ok()) return index.status().in(index_path);
  if (index->tokens == 0) return invalid_error(index_path + ": holds no tokens");
  TokenStream& to = state_->streams[stream];
  for (const int64_t start : index->document_starts) documents_[stream].push_back(to.size() + start);
  to.add_file({bin_path, std::move(file), index->type}, index->runs);
  return {};
}

Status Loader::finish() {
  if (!any_text_) return {};
  TokenStream* const streams[] = {&state_->streams[0], &state_->streams[1]};
  LLMOPS_ASSIGN(state_->tokenizer, reader_.finish(streams));
  return {};
}

// Document starts within [begin, begin + count), counted from begin.
std::vector<int64_t> starts_within(const std::vector<int64_t>& starts, int64_t begin, int64_t count) {
  std::vector<int64_t> out;
  const auto first = std::lower_bound(starts.begin(), starts.end(), begin);
  const auto last = std::lower_bound(first, starts.end(), begin + count);
  for (auto it = first; it != last; ++it) out.push_back(*it - begin);
  return out;
}

void divide(const DataOptions& options, const Loader& loader, Corpus::State* state) {
  const int64_t first = state->streams[0].size(), second = state->streams[1].size();
  if (second > 0) {
    state->parts[0] = {0, 0, first, loader.document_starts(0)};
    state->parts[1] = {1, 0, second, loader.document_starts(1)};
    return;
  }
  const auto train = static_cast<int64_t>(static_cast<double>(first) * (1 - options.val_fraction));
  state->parts[0] = {0, 0, train, starts_within(loader.document_starts(0), 0, train)};
  state->parts[1] = {0, train, first - train, starts_within(loader.document_starts(0), train, first - train)};
}

// Reads every token once: its range, the highest of all, and the fingerprint.
Status scan(Corpus::State* state, int64_t vocab) {
  Hasher hasher;
  std::vector<int32_t> ids;
  int32_t highest = 0;
  const int64_t sizes[] = {state->parts[0].count, state->parts[1].count};
  hasher.update(std::as_bytes(std::span(sizes)));
  for (const Corpus::State::Part& part : state->parts) {
    for (int64_t at = 0; at < part.count; at += static_cast<int64_t>(ids.size())) {
      if (cancel_signal()) return {Code::interrupted, "stopped while checking the data"};
      ids.resize(static_cast<size_t>(std::min<int64_t>(int64_t{1} << 18, part.count - at)));
      LLMOPS_TRY(state->streams[part.stream].read(part.begin + at, ids, vocab));
      highest = std::max(highest, *std::max_element(ids.begin(), ids.end()));
      hasher.update(std::as_bytes(std::span(ids)));
    }
  }
  state->fingerprint = hasher.digest();
  state->vocab_size = vocab < kIdLimit ? vocab : int64_t{highest} + 1;
  return {};
}

}  // namespace

Corpus::Corpus(std::unique_ptr<State> state) : state_(std::move(state)) {}
Corpus::Corpus(Corpus&&) noexcept = default;
Corpus& Corpus::operator=(Corpus&&) noexcept = default;
Corpus::~Corpus() = default;

Result<Corpus> Corpus::open(const DataOptions& options, const std::optional<Tokenizer>& given) {
  if (!(options.val_fraction >= 0 && options.val_fraction < 1))
    return usage_error(fmt::format("validation fraction: {}, expected 0 or more and below 1", options.val_fraction));
  if (options.vocab_size < 0 || options.vocab_size > kIdLimit)
    return usage_error(fmt::format("vocabulary size: {}, expected 0..{}", options.vocab_size, kIdLimit));
  LLMOPS_ASSIGN(const Sources sources, expand_paths(options));
  std::optional<Tokenizer> tokenizer = given;
  if (!tokenizer && options.tokenizer != "char") {
    LLMOPS_ASSIGN(tokenizer, Tokenizer::load(options.tokenizer));
  }
  auto state = std::make_unique<State>();
  Loader loader(options, tokenizer, state.get());
  LLMOPS_TRY(loader.load(sources.train, 0));
  LLMOPS_TRY(loader.load(sources.val, 1));
  LLMOPS_TRY(loader.finish());
  // "byte" is the default, not a statement about token files; a tokenizer that was named or given is one.
  const bool stated = given || (tokenizer && tokenizer->kind() != TokenizerKind::byte);
  if (!state->tokenizer && stated) state->tokenizer = tokenizer;
  divide(options, loader, state.get());
  const int64_t own = state->tokenizer ? state->tokenizer->vocab_size() : kIdLimit;
  LLMOPS_TRY(scan(state.get(), loader.any_tokens() && options.vocab_size > 0 ? options.vocab_size : own));
  return Corpus(std::move(state));
}

const std::optional<Tokenizer>& Corpus::tokenizer() const { return state_->tokenizer; }
int64_t Corpus::vocab_size() const { return state_->vocab_size; }
int64_t Corpus::tokens(Split split) const { return state_->parts[static_cast<int>(split)].count; }
Hash128 Corpus::fingerprint() const { return state_->fingerprint; }
int64_t Corpus::files() const { return state_->files; }

const std::vector<int64_t>& Corpus::document_starts(Split split) const {
  return state_->parts[static_cast<int>(split)].document_starts;
}

int64_t Corpus::memory_bytes() const {
  return state_->streams[0].memory().memory_bytes() + state_->streams[1].memory().memory_bytes();
}

Status Corpus::read(Split split, int64_t offset, std::span<int32_t> out) const {
  const State::Part& part = state_->parts[static_cast<int>(split)];
  if (offset < 0 || offset > part.count || static_cast<int64_t>(out.size()) > part.count - offset)
    return invalid_error(fmt::format("internal error: {} tokens at {} of a split of {} were asked for", out.size(),
                                     offset, part.count));
  return state_->streams[part.stream].read(part.begin + offset, out, state_->vocab_size);
}

}  // namespace llmops
