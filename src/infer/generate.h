// Text generation: a static batch of prompts is prefilled, then decoded together until each has ended.
//
// A row's bits do not depend on the batch, so a completion is a function of (model, prompt, options) alone; a draw's
// random key is (seed, number of the token).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "infer/model.h"

namespace llmops {

struct SamplingOptions {
  int64_t max_tokens = 64;
  double temperature = 0;  // 0: greedy
  int64_t top_k = 0;       // 0: all
  double top_p = 1;
  uint64_t seed = 0;
  std::vector<std::string> stop;  // the text ends before the first of them
  bool ignore_eos = false;
};

struct Prompt {
  std::vector<int32_t> ids;
  SamplingOptions sampling;
};

enum class FinishReason : uint8_t { stop, length };
std::string_view name_of(FinishReason reason);

struct Completion {
  std::string text;          // valid UTF-8; decoded token ids joined by blanks when there is no tokenizer
  std::vector<int32_t> ids;  // generated, an end-of-text id left out
  FinishReason finish_reason = FinishReason::length;
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;  // generated, an end-of-text id or the tokens of a stop string included
};

// Text as it becomes final: never part of a stop string, never half a character.
using OnText = std::function<void(size_t prompt, std::string_view text)>;

struct GenerateStats {
  double prefill_s = 0, decode_s = 0;
  int64_t prefill_tokens = 0, decode_tokens = 0;
};

// What keeps a prompt from being run: empty, longer than the context, ids outside the vocabulary. Ok otherwise.
Status check_prompt(const ModelConfig& config, const Prompt& prompt);

// All prompts at once (the caller cuts its work into batches). `tokenizer` may be null: then stop strings are an error.
// Cancellation is looked at between tokens: Code::interrupted.
Result<std::vector<Completion>> generate(InferModel& model, const Tokenizer* tokenizer, std::span<const Prompt> prompts,
                                         const OnText& on_text = {}, GenerateStats* stats = nullptr);

}  // namespace llmops
