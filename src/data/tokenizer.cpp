#include "data/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "data/tokenizer_tables.h"

namespace llmops {
namespace {

std::string character_name(uint32_t c) {
  std::string text;
  utf8_append(text, c);
  return fmt::format("U+{:04X} {}", c, escape_control(json_quote(text)));
}

std::shared_ptr<const Tokenizer::Tables> byte_tables() {
  auto tables = std::make_shared<Tokenizer::Tables>();
  for (int b = 0; b < 256; ++b) tables->bytes.emplace_back(1, static_cast<char>(b));
  return tables;
}

// The end-of-sequence id that to_json() wrote: an id of the vocabulary, or null.
Status read_eos(const Json& json, Tokenizer::Tables* tables) {
  const Json* eos = json.find("eos");
  tables->eos.reset();
  if (!eos || eos->is_null()) return {};
  const int64_t id = eos->as_int(-1);
  if (id < 0 || id >= static_cast<int64_t>(tables->bytes.size()))
    return invalid_error(fmt::format("tokenizer: eos is {}, expected an id below {}", escape_control(eos->dump()),
                                     tables->bytes.size()));
  tables->eos = static_cast<int32_t>(id);
  return {};
}

Result<Tokenizer> characters_from_json(const Json& json) {
  const Json* list = json.find("characters");
  if (!list || !list->is_array()) return invalid_error("tokenizer: expected \"characters\", a list of characters");
  std::vector<uint32_t> code_points;
  for (const Json& item : list->as_array()) {
    const std::string& text = item.as_string();
    size_t pos = 0;
    if (!text.empty() && utf8_valid(text)) code_points.push_back(utf8_next(text, &pos));
    if (pos == 0 || pos != text.size())
      return invalid_error(fmt::format("tokenizer: characters holds {}, expected single characters",
                                       escape_control(item.dump())));
  }
  return Tokenizer::from_characters(std::move(code_points));
}

}  // namespace

Tokenizer Tokenizer::bytes() {
  static const auto tables = byte_tables();
  return Tokenizer(tables);
}

Result<Tokenizer> Tokenizer::characters_of(std::string_view text) {
  if (text.empty()) return invalid_error("no text to take characters from");
  if (!utf8_valid(text)) return invalid_error("the text is not UTF-8, so it has no characters; use the byte tokenizer");
  std::vector<uint32_t> found;
  std::vector<bool> seen(0x110000);
  for (size_t pos = 0; pos < text.size();) {
    const uint32_t c = utf8_next(text, &pos);
    if (!seen[c]) found.push_back(c);
    seen[c] = true;
  }
  return from_characters(std::move(found));
}

Result<Tokenizer> Tokenizer::from_characters(std::vector<uint32_t> code_points) {
  if (code_points.empty()) return invalid_error("tokenizer: a list of characters must not be empty");
  std::sort(code_points.begin(), code_points.end());
  const auto twice = std::adjacent_find(code_points.begin(), code_points.end());
  if (twice != code_points.end())
    return invalid_error("tokenizer: character " + character_name(*twice) + " is listed twice");
  auto tables = std::make_shared<Tables>();
  tables->kind = TokenizerKind::character;
  for (const uint32_t c : code_points) {
    if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000))
      return invalid_error(fmt::format("tokenizer: U+{:04X} is no character", c));
    utf8_append(tables->bytes.emplace_back(), c);
  }
  tables->characters = std::move(code_points);
  return Tokenizer(std::move(tables));
}

Result<Tokenizer> Tokenizer::parse_gpt2(std::string_view vocab_json, std::string_view merges_txt) {
  LLMOPS_ASSIGN(const Gpt2Parts parts, read_gpt2(vocab_json, merges_txt));
  LLMOPS_ASSIGN(auto tables, gpt2_tables(parts));
  tables->files = {{"vocab.json", std::string(vocab_json)}, {"merges.txt", std::string(merges_txt)}};
  return Tokenizer(std::move(tables));
}

Result<Tokenizer> Tokenizer::parse_tokenizer_json(std::string_view text) {
  LLMOPS_ASSIGN(const Gpt2Parts parts, read_tokenizer_json(text));
  LLMOPS_ASSIGN(auto tables, gpt2_tables(parts));
  tables->files = {{"tokenizer.json", std::string(text)}};
  return Tokenizer(std::move(tables));
}

Json Tokenizer::to_json() const {
  Json json;
  json["kind"] = kind_name();
  if (kind() == TokenizerKind::byte) return json;
  if (kind() == TokenizerKind::character) {
    Json::Array characters;
    for (const std::string& c : tables_->bytes) characters.emplace_back(c);
    json["characters"] = std::move(characters);
    return json;
  }
  json["vocab_size"] = vocab_size();
  json["eos"] = eos() ? Json(*eos()) : Json();
  Json::Array names;
  for (const NamedFile& file : files()) names.emplace_back(file.name);
  json["files"] = std::move(names);
  return json;
}

Result<Tokenizer> Tokenizer::from_json(const Json& json, const std::vector<NamedFile>& files) {
  const Json* kind = json.find("kind");
  const std::string& name = kind ? kind->as_string() : json.as_string();
  if (name == "byte") return bytes();
  if (name == "char") return characters_from_json(json);
  if (name != "gpt2")
    return invalid_error(fmt::format("tokenizer: kind is \"{}\", expected byte, char or gpt2", escape_control(name)));
  const auto content = [&](std::string_view wanted) -> const std::string* {
    for (const NamedFile& file : files)
      if (file.name == wanted) return &file.content;
    return nullptr;
  };
  const std::string *vocab = content("vocab.json"), *merges = content("merges.txt"), *both = content("tokenizer.json");
  if (!both && !(vocab && merges))
    return invalid_error("tokenizer: neither tokenizer.json nor vocab.json with merges.txt is stored");
  LLMOPS_ASSIGN(Tokenizer tokenizer, both ? parse_tokenizer_json(*both) : parse_gpt2(*vocab, *merges));
  const Json* size = json.find("vocab_size");
  if (size && size->as_int() != tokenizer.vocab_size())
    return invalid_error(fmt::format("tokenizer: the stored files have {} ids, expected {}", tokenizer.vocab_size(),
                                     escape_control(size->dump())));
  auto tables = std::make_shared<Tables>(*tokenizer.tables_);
  LLMOPS_TRY(read_eos(json, tables.get()));
  return Tokenizer(std::move(tables));
}

const std::vector<NamedFile>& Tokenizer::files() const { return tables_->files; }
TokenizerKind Tokenizer::kind() const { return tables_->kind; }
int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(tables_->bytes.size()); }
std::optional<int32_t> Tokenizer::eos() const { return tables_->eos; }
bool Tokenizer::is_special(int32_t id) const { return tables_->special.contains(id); }

std::string_view Tokenizer::kind_name() const {
  constexpr std::string_view kNames[] = {"byte", "char", "gpt2"};
  return kNames[static_cast<int>(kind())];
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  return id < 0 || id >= vocab_size() ? std::string_view() : std::string_view(tables_->bytes[id]);
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, Specials specials) const {
  std::vector<int32_t> ids;
  LLMOPS_TRY(Encoder(*this).append(text, ids, specials));
  return ids;
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string out;
  for (const int32_t id : ids) {
    const std::string_view bytes = token_bytes(id);
    if (bytes.empty())
      return invalid_error(fmt::format("token id {} is not in the vocabulary of {} ids", id, vocab_size()));
    out += bytes;
  }
  return out;
}

Result<std::string> StreamDecoder::push(int32_t id) {
  LLMOPS_ASSIGN(const std::string bytes, tokenizer_.decode({&id, 1}));
  held_ += bytes;
  std::string rest = held_.substr(held_.size() - utf8_tail(held_));
  held_.resize(held_.size() - rest.size());
  std::string text = utf8_repair(held_);
  held_ = std::move(rest);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text = utf8_repair(held_);
  held_.clear();
  return text;
}

}  // namespace llmops
