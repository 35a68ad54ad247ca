#include "infer/stop.h"

#include <algorithm>

namespace llmops {

StopText::StopText(const Tokenizer* tokenizer, std::vector<std::string> stop) : stop_(std::move(stop)) {
  if (tokenizer) decoder_.emplace(*tokenizer);
  std::erase(stop_, "");
}

Result<bool> StopText::push(int32_t id) {
  if (!decoder_) {
    text_ += (text_.empty() ? "" : " ") + std::to_string(id);
    final_ = text_.size();
    return false;
  }
  const size_t before = text_.size();
  LLMOPS_ASSIGN(const std::string more, decoder_->push(id));
  text_ += more;
  size_t first = std::string::npos;
  for (const std::string& stop : stop_) {
    const size_t from = before >= stop.size() ? before - stop.size() + 1 : 0;
    first = std::min(first, text_.find(stop, from));
  }
  if (first != std::string::npos) {
    text_.resize(first);
    stopped_ = true;
    final_ = text_.size();
    return true;
  }
  final_ = std::max(final_, text_.size() - held_back());
  return false;
}

size_t StopText::held_back() const {
  size_t held = 0;
  for (const std::string& stop : stop_)
    for (size_t n = std::min(stop.size() - 1, text_.size()); n > held; --n)
      if (text_.ends_with(std::string_view(stop).substr(0, n))) {
        held = n;
        break;
      }
  return held;
}

void StopText::finish() {
  if (decoder_ && !stopped_) text_ += decoder_->finish();
  final_ = text_.size();
}

std::string_view StopText::take() {
  const std::string_view fresh = std::string_view(text_).substr(taken_, final_ - taken_);
  taken_ = final_;
  return fresh;
}

}  // namespace llmops
