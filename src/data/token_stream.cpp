#include "data/token_stream.h"

#include <fmt/format.h>

#include <algorithm>

namespace llmops {

void TokenBuffer::append(std::span<const int32_t> ids) {
  if (wide_.empty()) {
    const size_t held = narrow_.size();
    const bool fits = std::all_of(ids.begin(), ids.end(), [](int32_t id) { return id <= UINT16_MAX; });
    if (fits) {
      narrow_.resize(held + ids.size());
      std::transform(ids.begin(), ids.end(), narrow_.begin() + static_cast<ptrdiff_t>(held),
                     [](int32_t id) { return static_cast<uint16_t>(id); });
      return;
    }
    wide_.assign(narrow_.begin(), narrow_.end());
    narrow_ = {};
  }
  wide_.insert(wide_.end(), ids.begin(), ids.end());
}

void TokenBuffer::replace(std::span<const int32_t> new_ids) {
  for (uint16_t& id : narrow_) id = static_cast<uint16_t>(new_ids[id]);
  for (uint32_t& id : wide_) id = static_cast<uint32_t>(new_ids[id]);
}

void TokenBuffer::read(int64_t offset, std::span<int32_t> out) const {
  if (wide_.empty())
    std::copy_n(narrow_.begin() + offset, out.size(), out.begin());
  else
    std::copy_n(wide_.begin() + offset, out.size(), out.begin());
}

int64_t TokenBuffer::size() const { return static_cast<int64_t>(wide_.empty() ? narrow_.size() : wide_.size()); }

std::span<const std::byte> TokenBuffer::raw() const {
  return wide_.empty() ? std::as_bytes(std::span(narrow_)) : std::as_bytes(std::span(wide_));
}

void TokenStream::add_file(TokenFile file, std::span<const TokenRun> runs) {
  for (const TokenRun& run : runs)
    if (run.count > 0) runs_.push_back({size(), run, files_.size()});
  files_.push_back(std::move(file));
}

Status TokenStream::read(int64_t offset, std::span<int32_t> out, int64_t vocab) const {
  if (offset < 0 || offset > size() || static_cast<int64_t>(out.size()) > size() - offset)
    return invalid_error(fmt::format("internal error: tokens {}..{} of {} were asked for", offset, offset + out.size(),
                                     size()));
  if (runs_.empty()) {
    memory_.read(offset, out);
    return {};
  }
  auto placed = std::upper_bound(runs_.begin(), runs_.end(), offset,
                                 [](int64_t at, const Placed& p) { return at < p.first; }) - 1;
  std::vector<std::byte> raw;
  std::vector<int64_t> ids;
  for (; !out.empty(); ++placed) {
    const TokenFile& file = files_[placed->file];
    const int64_t skip = offset - placed->first, width = token_type_bytes(file.type);
    const int64_t count = std::min<int64_t>(placed->run.count - skip, static_cast<int64_t>(out.size()));
    const int64_t byte_offset = placed->run.byte_offset + skip * width;
    raw.resize(static_cast<size_t>(count * width));
    ids.resize(static_cast<size_t>(count));
    LLMOPS_TRY(file.file.read_at(byte_offset, raw));
    widen_tokens(file.type, raw, ids);
    for (int64_t i = 0; i < count; ++i) {
      if (ids[i] < 0 || ids[i] >= vocab)
        return invalid_error(fmt::format("{}: token {} at byte {} is outside the vocabulary of {} ids", file.path,
                                         ids[i], byte_offset + i * width, vocab));
      out[i] = static_cast<int32_t>(ids[i]);
    }
    out = out.subspan(static_cast<size_t>(count));
    offset += count;
  }
  return {};
}

}  // namespace llmops
