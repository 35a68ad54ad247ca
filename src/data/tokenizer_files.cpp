// Reads vocab.json + merges.txt and tokenizer.json of GPT-2's kind. A tokenizer.json that asks for anything else is
// refused by the name of the field: a tokenizer that is nearly right gives text that is nearly right.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "data/tokenizer_tables.h"

namespace llmops {
namespace {

// A value as a message shows it: an object by its "type", anything else as short JSON.
std::string shown(const Json* value) {
  if (!value) return "nothing";
  const Json* type = value->find("type");
  std::string text = type ? type->dump() : value->dump();
  if (text.size() > 60) text = text.substr(0, 57 - utf8_tail(text.substr(0, 57))) + "...";
  return escape_control(text);
}

Status unlike(const std::string& field, const Json* found, std::string_view expected) {
  return invalid_error(fmt::format("{}: found {}, expected {} (read is GPT-2's byte-level BPE only)", field,
                                   shown(found), expected));
}

bool is_absent(const Json* value) { return !value || value->is_null(); }
bool is_empty_text(const Json* value) { return is_absent(value) || (value->is_string() && value->as_string().empty()); }
bool is_false(const Json* value) { return is_absent(value) || (value->is_bool() && !value->as_bool()); }

Status check_keys(const Json& object, std::string_view where, std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : object.as_object())
    if (std::find(known.begin(), known.end(), key) == known.end())
      return invalid_error(fmt::format("{}{}: a field that is not known, with value {}", where, escape_control(key),
                                       shown(&value)));
  return {};
}

Status read_vocab(const Json& json, std::string_view where, Gpt2Parts* parts) {
  if (!json.is_object() || json.as_object().empty())
    return invalid_error(fmt::format("{}: found {}, expected an object of token: id", where, shown(&json)));
  parts->vocab.reserve(json.as_object().size());
  for (const auto& [token, id] : json.as_object()) {
    const int64_t value = id.is_integer() ? id.as_int(-1) : -1;
    if (value < 0 || value >= kIdMax)
      return invalid_error(fmt::format("{}: token {} has id {}, expected an integer in 0..{}", where,
                                       escape_control(json_quote(token)), shown(&id), kIdMax - 1));
    parts->vocab.emplace_back(token, static_cast<int32_t>(value));
  }
  return {};
}

// "left right"
bool split_merge(std::string_view line, Gpt2Parts* parts) {
  const size_t space = line.find(' ');
  if (space == 0 || space == std::string_view::npos || space + 1 == line.size()) return false;
  if (line.find(' ', space + 1) != std::string_view::npos) return false;
  parts->merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  return true;
}

Status read_merges_json(const Json* merges, Gpt2Parts* parts) {
  if (!merges || !merges->is_array()) return unlike("model.merges", merges, "an array");
  parts->merges.reserve(merges->as_array().size());
  for (size_t i = 0; i < merges->as_array().size(); ++i) {
    const Json& merge = merges->as_array()[i];
    const auto& pair = merge.as_array();
    bool good = false;
    if (merge.is_string()) {
      good = split_merge(merge.as_string(), parts);
    } else if (pair.size() == 2 && pair[0].is_string() && pair[1].is_string()) {
      parts->merges.emplace_back(pair[0].as_string(), pair[1].as_string());
      good = true;
    }
    if (!good) return unlike(fmt::format("model.merges[{}]", i), &merge, "\"left right\" or [\"left\", \"right\"]");
  }
  return {};
}

Status read_added(const Json* list, Gpt2Parts* parts) {
  if (is_absent(list)) return {};
  if (!list->is_array()) return unlike("added_tokens", list, "an array");
  for (size_t i = 0; i < list->as_array().size(); ++i) {
    const Json& item = list->as_array()[i];
    const std::string where = fmt::format("added_tokens[{}].", i);
    LLMOPS_TRY(check_keys(item, where, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
    for (const char* flag : {"single_word", "lstrip", "rstrip"})
      if (!is_false(item.find(flag))) return unlike(where + flag, item.find(flag), "false");
    const Json *id = item.find("id"), *content = item.find("content");
    if (!id || !id->is_integer() || id->as_int(-1) < 0 || id->as_int() >= kIdMax)
      return unlike(where + "id", id, fmt::format("an integer in 0..{}", kIdMax - 1));
    if (!content || content->as_string().empty()) return unlike(where + "content", content, "a text");
    const Json *special = item.find("special"), *normalized = item.find("normalized");
    parts->added.push_back({content->as_string(), static_cast<int32_t>(id->as_int()), special && special->as_bool(),
                            normalized && normalized->as_bool()});
  }
  return {};
}

// Nothing is put around the text: absent, or ByteLevel (which moves offsets only), or a template of the text alone.
bool adds_nothing(const Json* post) {
  if (is_absent(post)) return true;
  const Json* type = post->find("type");
  if (!type) return false;
  if (type->as_string() == "ByteLevel") return true;
  const Json* single = post->find("single");
  return type->as_string() == "TemplateProcessing" && single && single->as_array().size() == 1 &&
         single->as_array()[0].find("Sequence");
}

Status check_pipeline(const Json& root) {
  LLMOPS_TRY(check_keys(root, "", {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                                   "post_processor", "decoder", "model"}));
  for (const char* field : {"truncation", "padding", "normalizer"})
    if (!is_absent(root.find(field))) return unlike(field, root.find(field), "null");
  const Json *pre = root.find("pre_tokenizer"), *decoder = root.find("decoder");
  const Json* pre_type = pre ? pre->find("type") : nullptr;
  if (!pre_type || pre_type->as_string() != "ByteLevel") return unlike("pre_tokenizer.type", pre, "\"ByteLevel\"");
  LLMOPS_TRY(check_keys(*pre, "pre_tokenizer.", {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  const Json *prefix = pre->find("add_prefix_space"), *regex = pre->find("use_regex");
  if (!prefix || !prefix->is_bool() || prefix->as_bool())  // the library takes an absent one for true
    return unlike("pre_tokenizer.add_prefix_space", prefix, "false");
  if (!is_absent(regex) && !regex->as_bool()) return unlike("pre_tokenizer.use_regex", regex, "true");
  if (!adds_nothing(root.find("post_processor")))
    return unlike("post_processor", root.find("post_processor"), "one that adds no tokens");
  const Json* decoder_type = decoder ? decoder->find("type") : nullptr;
  if (!decoder_type || decoder_type->as_string() != "ByteLevel")
    return unlike("decoder.type", decoder, "\"ByteLevel\"");
  return {};
}

Status check_model(const Json& model) {
  const Json* type = model.find("type");
  if (!type || type->as_string() != "BPE") return unlike("model.type", type, "\"BPE\"");
  LLMOPS_TRY(check_keys(model, "model.",
                        {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                         "byte_fallback", "ignore_merges", "vocab", "merges"}));
  if (!is_absent(model.find("dropout"))) return unlike("model.dropout", model.find("dropout"), "null");
  for (const char* field : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!is_empty_text(model.find(field))) return unlike(std::string("model.") + field, model.find(field), "\"\"");
  for (const char* field : {"byte_fallback", "ignore_merges"})
    if (!is_false(model.find(field))) return unlike(std::string("model.") + field, model.find(field), "false");
  if (!model.find("vocab")) return unlike("model.vocab", nullptr, "an object of token: id");
  return {};
}

}  // namespace

Result<Gpt2Parts> read_gpt2(std::string_view vocab_json, std::string_view merges_txt) {
  Gpt2Parts parts;
  auto vocab = json_parse(vocab_json);
  if (!vocab.ok()) return vocab.status().in("vocab.json");
  LLMOPS_TRY(read_vocab(*vocab, "vocab.json", &parts));
  int64_t line_number = 0;
  while (!merges_txt.empty()) {
    const size_t end = std::min(merges_txt.find('\n'), merges_txt.size());
    std::string_view line = merges_txt.substr(0, end);
    merges_txt.remove_prefix(std::min(end + 1, merges_txt.size()));
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (line_number == 1 && line.starts_with("#version"))) continue;
    if (!utf8_valid(line) || !split_merge(line, &parts))
      return invalid_error(fmt::format("merges.txt:{}: found \"{}\", expected two tokens with one space between",
                                       line_number, escape_control(line.substr(0, 60))));
  }
  for (const auto& [token, id] : parts.vocab)
    if (token == kEndOfText) parts.added.push_back({token, id, true, false});
  return parts;
}

Result<Gpt2Parts> read_tokenizer_json(std::string_view text) {
  LLMOPS_ASSIGN(const Json root, json_parse(text));
  const Json* model = root.find("model");
  if (!model || !model->is_object()) return unlike("model", model, "an object");
  LLMOPS_TRY(check_model(*model));
  LLMOPS_TRY(check_pipeline(root));
  Gpt2Parts parts;
  LLMOPS_TRY(read_vocab(*model->find("vocab"), "model.vocab", &parts));
  LLMOPS_TRY(read_merges_json(model->find("merges"), &parts));
  LLMOPS_TRY(read_added(root.find("added_tokens"), &parts));
  return parts;
}

}  // namespace llmops
