// llmops infer run: requests and answers as JSON.
#pragma once

#include <optional>
#include <string>

#include "cmds/command.h"
#include "data/records.h"
#include "infer/generate.h"

namespace llmops::infer_command_detail {

struct Options {
  std::string ckpt, tokenizer;
  DType dtype = DType::f32;
  std::optional<int64_t> threads;
  std::string device = "auto";
  bool fast_matmul = false;
  double deadline_s = 60;
  std::optional<std::string> prompt;
  std::string input;
  int64_t batch = 32;
  int64_t seed = 0;
  SamplingOptions sampling;
};

// A line of the input. Plain: {"prompt", "max_tokens", "temperature", "top_k", "top_p", "seed", "stop", any other key
// is an error}. OpenAI batch: {"custom_id", "method", "url", "body": {"prompt" or "messages", ...}}.
struct Request {
  Status status;  // why it cannot be run
  int64_t index = 0, line = 0;
  bool openai = false, chat = false;
  std::string custom_id;
  std::string prompt_text;
  std::optional<std::vector<int32_t>> prompt_ids;
  SamplingOptions sampling;
};

Request read_request(const Record& record, const Options& options, int64_t index);
Result<Prompt> to_prompt(const Request& request, const Tokenizer* tokenizer);
std::vector<Column> record_columns();
// What answered: the model's name, and the matmul library on which the bits depend ("" for our own kernels).
struct Backend {
  std::string model, matmul;
};
Json plain_record(const Request& request, const Completion& completion, const Backend& backend);
// The answer to a request in its own form; completion null: its error.
Json answer(const Request& request, const Completion* completion, const Backend& backend);
// Line breaks and tabs stay, other control characters do not reach the terminal.
std::string escape_for_terminal(std::string_view text);

}  // namespace llmops::infer_command_detail
