#include "data/text_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "data/records.h"

namespace llmops {

namespace {
constexpr size_t kReadBytes = size_t{1} << 18, kChunkBytes = size_t{4} << 20;
}

// Characters numbered in the order of their first appearance.
struct TextReader::Characters {
  std::vector<int32_t> number = std::vector<int32_t>(0x110000, -1);
  std::vector<uint32_t> met;
};

TextReader::TextReader(const std::optional<Tokenizer>& tokenizer, std::string text_field)
    : tokenizer_(tokenizer), text_field_(std::move(text_field)) {
  if (tokenizer_)
    encoder_.emplace(*tokenizer_);
  else
    characters_ = std::make_unique<Characters>();
}
TextReader::~TextReader() = default;

Status TextReader::append(std::string_view text, TokenStream* stream) {
  ids_.clear();
  if (encoder_) {
    LLMOPS_TRY(encoder_->append(text, ids_));
  } else {
    if (!utf8_valid(text)) return invalid_error("not UTF-8, so it has no characters; use the byte tokenizer");
    for (size_t pos = 0; pos < text.size();) {
      const uint32_t c = utf8_next(text, &pos);
      if (characters_->number[c] < 0) {
        characters_->number[c] = static_cast<int32_t>(characters_->met.size());
        characters_->met.push_back(c);
      }
      ids_.push_back(characters_->number[c]);
    }
  }
  stream->memory().append(ids_);
  return {};
}

Status TextReader::read_text(Input& input, TokenStream* stream, std::vector<int64_t>* document_starts) {
  const int64_t begin = stream->size();
  std::string held;  // text that is not yet encoded
  size_t wanted = kChunkBytes;
  for (size_t at = 0;;) {
    const size_t old = held.size();
    held.resize(old + kReadBytes);
    LLMOPS_ASSIGN(const size_t got, input.read(std::span(held).subspan(old)));
    held.resize(old + got);
    if (got > 0 && held.size() < wanted) continue;
    const size_t cut = got == 0 ? held.size() : encoder_ ? encoder_->safe_cut(held) : held.size() - utf8_tail(held);
    const Status status = append(std::string_view(held).substr(0, cut), stream);
    if (!status.ok()) return status.in(fmt::format("{}: bytes {}..{}", input.path(), at, at + cut));
    at += cut;
    held.erase(0, cut);
    wanted = std::max(kChunkBytes, 2 * held.size());  // no place to cut: look again when there is twice as much
    if (got == 0) break;
  }
  if (stream->size() == begin) return invalid_error(input.path() + ": is empty");
  document_starts->push_back(begin);
  return {};
}

Status TextReader::read_jsonl(Input input, TokenStream* stream, std::vector<int64_t>* document_starts) {
  const std::string path = input.path();
  const std::optional<int32_t> eos = tokenizer_ ? tokenizer_->eos() : std::nullopt;
  const int64_t begin = stream->size();
  RecordReader reader(std::move(input), RecordOptions());
  for (;;) {
    LLMOPS_ASSIGN(const auto record, reader.next());
    if (!record) break;
    const Json* text = record->json.find(text_field_);
    if (!text || !text->is_string())
      return invalid_error(fmt::format("{}:{}: field \"{}\" is {}, expected a text", path, record->line,
                                       escape_control(text_field_), text ? "no text" : "not there"));
    const int64_t start = stream->size();
    const Status status = append(text->as_string(), stream);
    if (!status.ok()) return status.in(fmt::format("{}:{}", path, record->line));
    if (eos) stream->memory().append({&*eos, 1});
    if (stream->size() > start) document_starts->push_back(start);
  }
  if (reader.records() == 0) return invalid_error(path + ": is empty");
  if (stream->size() == begin) return invalid_error(path + ": all texts are empty");
  return {};
}

Result<Tokenizer> TextReader::finish(std::span<TokenStream* const> streams) {
  if (tokenizer_) return *tokenizer_;
  const auto& met = characters_->met;
  std::vector<int32_t> order(met.size()), new_ids(met.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return met[a] < met[b]; });
  for (size_t i = 0; i < order.size(); ++i) new_ids[order[i]] = static_cast<int32_t>(i);
  for (TokenStream* stream : streams) stream->memory().replace(new_ids);
  return Tokenizer::from_characters(met);
}

}  // namespace llmops
