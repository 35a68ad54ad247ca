// From what a user names as tokenizer to its files.
#include <fmt/format.h>
#include <sys/stat.h>

#include "base/text.h"
#include "data/input.h"
#include "data/tokenizer_tables.h"

namespace llmops {
namespace {

constexpr int64_t kFileBytesMax = int64_t{256} << 20;

bool exists(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0;
}

// `path` as it stands or compressed; empty when none is there.
std::string find_packed(const std::string& path) {
  for (const char* suffix : {"", ".gz", ".zst"})
    if (exists(path + suffix)) return path + suffix;
  return {};
}

// "DIR/gpt2-vocab.json.gz" -> "DIR/gpt2-merges.txt"; empty when the name has no "vocab.json".
std::string merges_beside(const std::string& vocab_path) {
  const size_t at = vocab_path.rfind("vocab.json");
  if (at == std::string::npos || vocab_path.find('/', at) != std::string::npos) return {};
  return vocab_path.substr(0, at) + "merges.txt";
}

// The end-of-sequence token that tokenizer_config.json in the same folder names; empty when there is none.
Result<std::string> configured_eos(const std::string& folder) {
  const std::string path = find_packed(folder + "tokenizer_config.json");
  if (path.empty()) return std::string();
  LLMOPS_ASSIGN(const std::string text, read_all(path, kFileBytesMax));
  auto json = json_parse(text);
  if (!json.ok()) return json.status().in(path);
  const Json* eos = json->find("eos_token");
  if (!eos) return std::string();
  const Json* content = eos->find("content");
  return content ? content->as_string() : eos->as_string();
}

}  // namespace

Result<Tokenizer> Tokenizer::load_gpt2(const std::string& vocab_path, const std::string& merges_path) {
  LLMOPS_ASSIGN(const std::string vocab, read_all(vocab_path, kFileBytesMax));
  LLMOPS_ASSIGN(const std::string merges, read_all(merges_path, kFileBytesMax));
  auto tokenizer = parse_gpt2(vocab, merges);
  return tokenizer.ok() ? std::move(tokenizer) : tokenizer.status().in(vocab_path);
}

Result<Tokenizer> Tokenizer::load(const std::string& spec) {
  if (spec == "byte") return bytes();
  if (spec == "char") return usage_error("tokenizer char: its characters come from the data, and there is none here");
  struct stat info;
  if (::stat(spec.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    const std::string whole = find_packed(spec + "/tokenizer.json"), vocab = find_packed(spec + "/vocab.json");
    if (whole.empty() && vocab.empty())
      return io_error(spec + ": holds no tokenizer.json and no vocab.json with merges.txt");
    return load(whole.empty() ? vocab : whole);
  }
  if (const std::string merges = merges_beside(spec); !merges.empty()) {
    const std::string found = find_packed(merges);
    return load_gpt2(spec, found.empty() ? merges : found);
  }
  LLMOPS_ASSIGN(const std::string text, read_all(spec, kFileBytesMax));
  auto tokenizer = parse_tokenizer_json(text);
  if (!tokenizer.ok()) return tokenizer.status().in(spec);
  LLMOPS_ASSIGN(const std::string eos, configured_eos(spec.substr(0, spec.rfind('/') + 1)));
  if (eos.empty()) return tokenizer;
  auto tables = std::make_shared<Tables>(*tokenizer->tables_);
  for (const AddedSet& set : tables->added)
    for (const AddedToken& token : set.tokens)
      if (token.content == eos) tables->eos = token.id;
  return Tokenizer(std::move(tables));
}

}  // namespace llmops
