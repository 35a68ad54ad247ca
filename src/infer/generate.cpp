#include "infer/generate.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/run.h"
#include "infer/stop.h"
#include "kernels/ops.h"

namespace llmops {
namespace {

constexpr int64_t kPrefillRows = 2048;  // tokens of a forward pass at most, so that activations stay small

// One prompt on its way.
struct Sequence {
  const Prompt* prompt;
  Completion completion;
  StopText text;
  int64_t context = 0;  // tokens in the cache
  bool done = false;

  Sequence(const Prompt& p, const Tokenizer* tokenizer) : prompt(&p), text(tokenizer, p.sampling.stop) {
    completion.prompt_tokens = static_cast<int64_t>(p.ids.size());
  }
};

// Device tensors of the sampler's per-row options.
class Sampler {
 public:
  static Result<Sampler> make(Device& device, int64_t rows) {
    Sampler sampler;
    sampler.rows_ = rows;
    LLMOPS_ASSIGN(sampler.memory_, device.alloc(rows * kRowBytes, Category::staging));
    LLMOPS_ASSIGN(sampler.host_, HostSide::of(device, sampler.memory_));
    return sampler;
  }
  Status run(Stream& stream, TensorView logits, const std::vector<Sequence*>& sequences) {
    auto* key = host_.as<int64_t>();
    int64_t* position = key + rows_;
    auto* temperature = reinterpret_cast<float*>(position + rows_);
    float* top_p = temperature + rows_;
    auto* top_k = reinterpret_cast<int32_t*>(top_p + rows_);
    for (size_t i = 0; i < sequences.size(); ++i) {
      const SamplingOptions& o = sequences[i]->prompt->sampling;
      key[i] = static_cast<int64_t>(o.seed);
      position[i] = sequences[i]->completion.completion_tokens;
      temperature[i] = static_cast<float>(o.temperature);
      top_p[i] = static_cast<float>(o.top_p);
      top_k[i] = static_cast<int32_t>(o.top_k);
    }
    const int64_t n = static_cast<int64_t>(sequences.size());
    host_.push(stream);
    const auto view = [&](const void* data, DType dtype) { return dense_view(on_device(data), dtype, {n}, logits.device); };
    LLMOPS_TRY(sample(stream, {.logits = logits,
                               .temperature = view(temperature, DType::f32),
                               .top_k = view(top_k, DType::i32),
                               .top_p = view(top_p, DType::f32),
                               .key = view(key, DType::i64),
                               .position = view(position, DType::i64),
                               .ids = dense_view(on_device(top_k + rows_), DType::i32, {n}, logits.device),
                               .vocab = logits.dim[1]}));
    host_.pull(stream, rows_ * kIdsAt, rows_ * 4);
    return stream.sync();
  }
  int32_t id(size_t i) const { return host_.as<int32_t>()[rows_ * kIdsAt / 4 + static_cast<int64_t>(i)]; }

 private:
  // Bytes of a row: key, position, temperature, top_p, top_k; then the id that is drawn.
  static constexpr int64_t kIdsAt = 8 + 8 + 4 + 4 + 4, kRowBytes = kIdsAt + 4;
  void* on_device(const void* host) const {
    return memory_.as<char>() + (static_cast<const char*>(host) - host_.as<char>());
  }

  Buffer memory_;
  HostSide host_;
  int64_t rows_ = 0;
};

bool ends_text(const ModelConfig& config, const Tokenizer* tokenizer, int32_t id) {
  if (std::ranges::find(config.eos_ids, id) != config.eos_ids.end()) return true;
  return tokenizer && tokenizer->eos() == id;
}

class Generator {
 public:
  Generator(InferModel& model, const Tokenizer* tokenizer, std::span<const Prompt> prompts, const OnText& on_text,
            GenerateStats* stats)
      : model_(model), tokenizer_(tokenizer), on_text_(on_text), stats_(stats) {
    for (const Prompt& prompt : prompts) sequences_.emplace_back(prompt, tokenizer);
  }

  Result<std::vector<Completion>> run() {
    const int64_t n = static_cast<int64_t>(sequences_.size());
    int64_t capacity = 1;
    for (const Sequence& s : sequences_)
      capacity = std::max(
          capacity, std::min(model_.config().positions, s.completion.prompt_tokens + s.prompt->sampling.max_tokens));
    LLMOPS_TRY(
        model_.reserve(static_cast<int>(n), capacity, std::min(kPrefillRows, std::max(total_prompt_tokens(), n))));
    LLMOPS_ASSIGN(Sampler sampler, Sampler::make(model_.device(), n));
    LLMOPS_TRY(prefill(sampler));
    const double start_s = monotonic_s();
    while (true) {
      if (cancel_signal() != 0) return Status(Code::interrupted, "stopped by a signal");
      LLMOPS_ASSIGN(const bool more, decode(sampler));
      if (!more) break;
    }
    if (stats_) stats_->decode_s += monotonic_s() - start_s;
    std::vector<Completion> completions;
    for (Sequence& s : sequences_) {
      s.completion.text = s.text.text();
      completions.push_back(std::move(s.completion));
    }
    return completions;
  }

 private:
  int64_t total_prompt_tokens() const {
    int64_t total = 0;
    for (const Sequence& s : sequences_) total += s.completion.prompt_tokens;
    return total;
  }

  // Prompts in pieces of at most kPrefillRows rows; a prompt's last piece gives its first token.
  Status prefill(Sampler& sampler) {
    const double start_s = monotonic_s();
    size_t i = 0;
    int64_t at = 0;  // tokens of prompt i that are done
    while (i < sequences_.size()) {
      std::vector<SequenceRows> rows;
      std::vector<Sequence*> ready;
      int64_t room = kPrefillRows;
      while (i < sequences_.size() && room > 0) {
        Sequence& s = sequences_[i];
        const int64_t count = std::min(room, s.completion.prompt_tokens - at);
        const bool last = at + count == s.completion.prompt_tokens;
        rows.push_back({static_cast<int>(i), at,
                        std::span(s.prompt->ids).subspan(static_cast<size_t>(at), static_cast<size_t>(count)), last});
        room -= count;
        at += count;
        s.context = at;
        if (last) {
          ready.push_back(&s);
          ++i;
          at = 0;
        }
      }
      LLMOPS_TRY(run_rows(rows, ready, sampler));
      if (cancel_signal() != 0) return {Code::interrupted, "stopped by a signal"};
    }
    if (stats_) {
      stats_->prefill_s += monotonic_s() - start_s;
      stats_->prefill_tokens += total_prompt_tokens();
    }
    return {};
  }

  // One token for each sequence that goes on; false when none does.
  Result<bool> decode(Sampler& sampler) {
    std::vector<SequenceRows> rows;
    std::vector<Sequence*> going;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      Sequence& s = sequences_[i];
      if (s.done) continue;
      rows.push_back({static_cast<int>(i), s.context, std::span(&s.completion.ids.back(), 1), true});
      ++s.context;
      going.push_back(&s);
    }
    if (rows.empty()) return false;
    LLMOPS_TRY(run_rows(rows, going, sampler));
    if (stats_) stats_->decode_tokens += static_cast<int64_t>(rows.size());
    return true;
  }

  Status run_rows(const std::vector<SequenceRows>& rows, const std::vector<Sequence*>& ready, Sampler& sampler) {
    LLMOPS_ASSIGN(const TensorView logits, model_.forward(rows));
    if (ready.empty()) return {};
    LLMOPS_TRY(sampler.run(model_.device().compute(), logits, ready));
    for (size_t i = 0; i < ready.size(); ++i) LLMOPS_TRY(accept(*ready[i], sampler.id(i)));
    return {};
  }

  Status accept(Sequence& s, int32_t id) {
    const SamplingOptions& o = s.prompt->sampling;
    if (o.max_tokens == 0) return finish(s, FinishReason::length);
    ++s.completion.completion_tokens;
    if (!o.ignore_eos && ends_text(model_.config(), tokenizer_, id)) return finish(s, FinishReason::stop);
    s.completion.ids.push_back(id);
    LLMOPS_ASSIGN(const bool stopped, s.text.push(id));
    if (stopped) return finish(s, FinishReason::stop);
    const bool full = s.context + 1 > model_.config().positions;
    if (s.completion.completion_tokens >= o.max_tokens || full) return finish(s, FinishReason::length);
    emit(s);
    return {};
  }

  Status finish(Sequence& s, FinishReason reason) {
    s.done = true;
    s.completion.finish_reason = reason;
    s.text.finish();
    emit(s);
    return {};
  }

  void emit(Sequence& s) {
    const std::string_view fresh = s.text.take();
    if (on_text_ && !fresh.empty()) on_text_(static_cast<size_t>(&s - sequences_.data()), fresh);
  }

  InferModel& model_;
  const Tokenizer* tokenizer_;
  const OnText& on_text_;
  GenerateStats* stats_;
  std::vector<Sequence> sequences_;
};

}  // namespace

std::string_view name_of(FinishReason reason) { return reason == FinishReason::stop ? "stop" : "length"; }

Status check_prompt(const ModelConfig& config, const Prompt& prompt) {
  if (prompt.ids.empty()) return invalid_error("the prompt is empty; expected at least one token");
  const int64_t n = static_cast<int64_t>(prompt.ids.size());
  if (n > config.positions)
    return invalid_error(fmt::format("the prompt has {} tokens, the model's context is {}", n, config.positions));
  for (int32_t id : prompt.ids)
    if (id < 0 || id >= config.vocab)
      return invalid_error(fmt::format("the prompt has token id {}, the vocabulary is 0 to {}", id, config.vocab - 1));
  return {};
}

Result<std::vector<Completion>> generate(InferModel& model, const Tokenizer* tokenizer, std::span<const Prompt> prompts,
                                         const OnText& on_text, GenerateStats* stats) {
  if (prompts.empty()) return std::vector<Completion>();
  for (const Prompt& prompt : prompts) {
    LLMOPS_TRY(check_prompt(model.config(), prompt));
    if (!tokenizer && !prompt.sampling.stop.empty())
      return usage_error("stop strings need a tokenizer, and the model has none");
  }
  return Generator(model, tokenizer, prompts, on_text, stats).run();
}

}  // namespace llmops
