// A corpus in a memory file, from one process of a host to the others. Tokens in memory are copied there once and read
// by all; token files are named by path and size and opened again.
#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "base/bytes.h"
#include "data/corpus_state.h"

namespace llmops {
namespace {

constexpr std::string_view kMagic = "LLMOPSC1";
constexpr std::string_view kName = "shared corpus";

struct Writer {
  std::string bytes;
  void number(int64_t value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof(value)); }
  void text(std::string_view value) {
    number(static_cast<int64_t>(value.size()));
    bytes += value;
  }
  void numbers(std::span<const int64_t> values) {
    number(static_cast<int64_t>(values.size()));
    bytes.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }
};

struct Reader {
  ByteReader bytes;
  Result<int64_t> number() { return bytes.read<int64_t>(); }
  Result<int64_t> count(uint64_t entry_bytes) {
    LLMOPS_ASSIGN(const int64_t value, number());
    LLMOPS_ASSIGN(const uint64_t bounded, bytes.bounded_count(static_cast<uint64_t>(value), entry_bytes));
    return static_cast<int64_t>(bounded);
  }
  Result<std::string> text() {
    LLMOPS_ASSIGN(const int64_t size, count(1));
    LLMOPS_ASSIGN(const auto part, bytes.take(static_cast<uint64_t>(size)));
    return std::string(reinterpret_cast<const char*>(part.data()), part.size());
  }
  Result<std::vector<int64_t>> numbers() {
    LLMOPS_ASSIGN(const int64_t size, count(sizeof(int64_t)));
    LLMOPS_ASSIGN(const auto part, bytes.take(static_cast<uint64_t>(size) * sizeof(int64_t)));
    std::vector<int64_t> values(static_cast<size_t>(size));
    if (size > 0) std::memcpy(values.data(), part.data(), part.size());
    return values;
  }
};

Status write_at(int fd, std::string_view data, int64_t* offset) {
  while (!data.empty()) {
    const ssize_t wrote = real_fs().pwrite(fd, data.data(), data.size(), *offset);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return errno_status(std::string(kName), "write", errno);
    data.remove_prefix(static_cast<size_t>(wrote));
    *offset += wrote;
  }
  return {};
}

Json facts_of(const Corpus::State& state) {
  Json json;
  json["vocab_size"] = state.vocab_size;
  json["files"] = state.files;
  json["fingerprint"] = to_hex(state.fingerprint);
  if (!state.tokenizer) return json;
  json["tokenizer"] = state.tokenizer->to_json();
  Json::Array files;
  for (const NamedFile& file : state.tokenizer->files()) files.push_back(Json::Array{file.name, file.content});
  json["tokenizer_files"] = std::move(files);
  return json;
}

Status read_facts(std::string_view text, Corpus::State* state) {
  LLMOPS_ASSIGN(const Json json, json_parse(text));
  const Json *vocab = json.find("vocab_size"), *count = json.find("files"), *fingerprint = json.find("fingerprint");
  if (!vocab || !count || !fingerprint) return invalid_error("facts are missing");
  state->vocab_size = vocab->as_int();
  state->files = count->as_int();
  LLMOPS_ASSIGN(state->fingerprint, hash_from_hex(fingerprint->as_string()));
  const Json *tokenizer = json.find("tokenizer"), *list = json.find("tokenizer_files");
  if (!tokenizer || !list) return {};
  std::vector<NamedFile> files;
  for (const Json& item : list->as_array())
    if (item.as_array().size() == 2) files.push_back({item.as_array()[0].as_string(), item.as_array()[1].as_string()});
  LLMOPS_ASSIGN(state->tokenizer, Tokenizer::from_json(*tokenizer, files));
  return {};
}

Status write_stream(const TokenStream& stream, Writer* out) {
  out->number(static_cast<int64_t>(stream.files().size()));
  for (size_t i = 0; i < stream.files().size(); ++i) {
    const TokenFile& file = stream.files()[i];
    LLMOPS_ASSIGN(const int64_t bytes, file.file.size());
    out->text(file.path);
    out->number(bytes);
    out->number(static_cast<int64_t>(file.type));
    std::vector<int64_t> runs;
    for (const auto& placed : stream.runs())
      if (placed.file == i) runs.insert(runs.end(), {placed.run.byte_offset, placed.run.count});
    out->numbers(runs);
  }
  out->number(stream.memory().size());
  out->number(static_cast<int64_t>(stream.memory().type()));
  return {};
}

Status read_file_runs(Reader& in, TokenStream* stream) {
  LLMOPS_ASSIGN(const std::string path, in.text());
  LLMOPS_ASSIGN(const int64_t bytes, in.number());
  LLMOPS_ASSIGN(const int64_t type, in.number());
  LLMOPS_ASSIGN(const auto values, in.numbers());
  LLMOPS_ASSIGN(File file, File::open(path));
  LLMOPS_ASSIGN(const int64_t found, file.size());
  if (found != bytes)
    return invalid_error(fmt::format("{}: had {} bytes when it was checked, now {}", path, bytes, found));
  std::vector<TokenRun> runs;
  for (size_t i = 0; i + 1 < values.size(); i += 2) runs.push_back({values[i], values[i + 1]});
  stream->add_file({path, std::move(file), static_cast<TokenType>(type)}, runs);
  return {};
}

// *tokens_at: where the tokens in memory of this stream lie in the shared file; moves on behind them.
Status read_stream(Reader& in, int fd, int64_t* tokens_at, TokenStream* stream) {
  LLMOPS_ASSIGN(const int64_t files, in.count(1));
  for (int64_t i = 0; i < files; ++i) LLMOPS_TRY(read_file_runs(in, stream));
  LLMOPS_ASSIGN(const int64_t count, in.number());
  LLMOPS_ASSIGN(const int64_t type_number, in.number());
  if (count == 0) return {};
  const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (copy < 0) return errno_status(std::string(kName), "duplicate", errno);
  const auto type = static_cast<TokenType>(type_number);
  const TokenRun run{*tokens_at, count};
  stream->add_file({std::string(kName), File(real_fs(), copy, std::string(kName)), type}, {&run, 1});
  *tokens_at += count * token_type_bytes(type);
  return {};
}

}  // namespace

Status Corpus::save_to(int fd) const {
  Writer out;
  out.text(facts_of(*state_).dump());
  for (const TokenStream& stream : state_->streams) LLMOPS_TRY(write_stream(stream, &out));
  for (const State::Part& part : state_->parts) {
    out.number(static_cast<int64_t>(part.stream));
    out.number(part.begin);
    out.number(part.count);
    out.numbers(part.document_starts);
  }
  Writer head;
  head.bytes = kMagic;
  head.number(static_cast<int64_t>(out.bytes.size()));
  int64_t offset = 0;
  LLMOPS_TRY(write_at(fd, head.bytes, &offset));
  LLMOPS_TRY(write_at(fd, out.bytes, &offset));
  for (const TokenStream& stream : state_->streams) {
    const auto raw = stream.memory().raw();
    LLMOPS_TRY(write_at(fd, {reinterpret_cast<const char*>(raw.data()), raw.size()}, &offset));
  }
  return {};
}

Result<Corpus> Corpus::load_from(int fd) {
  const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (copy < 0) return errno_status(std::string(kName), "duplicate", errno);
  const File file(real_fs(), copy, std::string(kName));
  std::byte head[16];
  LLMOPS_TRY(file.read_at(0, head));
  int64_t bytes = 0;
  std::memcpy(&bytes, head + kMagic.size(), sizeof(bytes));
  LLMOPS_ASSIGN(const int64_t size, file.size());
  if (std::memcmp(head, kMagic.data(), kMagic.size()) != 0 || bytes < 0 || bytes > size - 16)
    return invalid_error(fmt::format("{}: is none, or damaged", kName));
  std::vector<std::byte> body(static_cast<size_t>(bytes));
  LLMOPS_TRY(file.read_at(sizeof(head), body));
  Reader in{ByteReader(body)};
  auto state = std::make_unique<State>();
  LLMOPS_ASSIGN(const std::string facts, in.text());
  LLMOPS_TRY(read_facts(facts, state.get()));
  int64_t tokens_at = static_cast<int64_t>(sizeof(head)) + bytes;
  for (TokenStream& stream : state->streams) LLMOPS_TRY(read_stream(in, fd, &tokens_at, &stream));
  for (State::Part& part : state->parts) {
    LLMOPS_ASSIGN(const int64_t stream, in.number());
    part.stream = stream == 1;
    LLMOPS_ASSIGN(part.begin, in.number());
    LLMOPS_ASSIGN(part.count, in.number());
    LLMOPS_ASSIGN(part.document_starts, in.numbers());
  }
  return Corpus(std::move(state));
}

}  // namespace llmops
