#include "cmds/infer_requests.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace llmops::infer_command_detail {
namespace {

Status wrong(std::string_view key, const Json& found, std::string_view expected) {
  return invalid_error(fmt::format("{} is {}, expected {}", key, escape_control(found.dump().substr(0, 80)), expected));
}

Status read_int(std::string_view key, const Json& value, int64_t min, int64_t max, int64_t* out) {
  if (!value.is_integer() || value.as_int(min - 1) < min || value.as_int() > max)
    return wrong(key, value, fmt::format("an integer from {} to {}", min, max));
  *out = value.as_int();
  return {};
}

Status read_real(std::string_view key, const Json& value, double min, double max, double* out) {
  if (!value.is_number() || !(value.as_double() >= min && value.as_double() <= max))
    return wrong(key, value, fmt::format("a number from {} to {}", min, max));
  *out = value.as_double();
  return {};
}

Status read_stop(const Json& value, std::vector<std::string>* out) {
  out->clear();
  if (value.is_string()) return out->push_back(value.as_string()), Status();
  if (!value.is_array()) return wrong("stop", value, "a string or a list of strings");
  for (const Json& item : value.as_array()) {
    if (!item.is_string()) return wrong("stop", value, "a string or a list of strings");
    out->push_back(item.as_string());
  }
  return {};
}

Status read_prompt(const Json& value, Request* request) {
  if (value.is_string()) return request->prompt_text = value.as_string(), Status();
  if (!value.is_array()) return wrong("prompt", value, "a string or an array of token ids");
  if (!value.as_array().empty() && !value.as_array()[0].is_number())
    return invalid_error("prompt is a list of prompts, which this release does not take; give each a line of its own");
  std::vector<int32_t> ids;
  for (const Json& item : value.as_array()) {
    int64_t id = 0;
    LLMOPS_TRY(read_int("prompt", item, 0, INT32_MAX, &id));
    ids.push_back(static_cast<int32_t>(id));
  }
  request->prompt_ids = std::move(ids);
  return {};
}

// Fields that change nothing here, with the one value at which that is true.
bool is_default(std::string_view key, const Json& value) {
  if (value.is_null() || key == "model" || key == "user" || key == "metadata") return true;
  if (key == "n" || key == "best_of") return value.is_integer() && value.as_int() == 1;
  if (key == "stream" || key == "echo" || key == "logprobs") return value.is_bool() && !value.as_bool();
  if (key == "presence_penalty" || key == "frequency_penalty") return value.is_number() && value.as_double() == 0;
  return false;
}

Status read_field(const std::string& key, const Json& value, Request* r) {
  SamplingOptions& s = r->sampling;
  int64_t seed = 0;
  if (key == "prompt") return read_prompt(value, r);
  if (is_default(key, value)) return {};
  if (key == "max_tokens" || key == "max_completion_tokens") return read_int(key, value, 0, 1 << 24, &s.max_tokens);
  if (key == "temperature") return read_real(key, value, 0, 100, &s.temperature);
  if (key == "top_k") return read_int(key, value, 0, 1 << 24, &s.top_k);
  if (key == "top_p") {
    if (value.is_number() && value.as_double() == 0) return wrong(key, value, "a number above 0 up to 1");
    return read_real(key, value, 0, 1, &s.top_p);
  }
  if (key == "stop") return read_stop(value, &s.stop);
  if (key == "seed") {
    LLMOPS_TRY(read_int(key, value, 0, INT64_MAX, &seed));
    s.seed = static_cast<uint64_t>(seed);
    return {};
  }
  if (key == "ignore_eos")
    return value.is_bool() ? (s.ignore_eos = value.as_bool(), Status()) : wrong(key, value, "true or false");
  return invalid_error(fmt::format("field \"{}\" is not supported by this release", escape_control(key)));
}

Status read_body(const Json& body, Request* request) {
  if (!body.is_object()) return wrong("body", body, "an object");
  if (!body.find("prompt")) return invalid_error("has no prompt; expected {\"prompt\": TEXT or token ids, ...}");
  for (const auto& [key, value] : body.as_object()) LLMOPS_TRY(read_field(key, value, request));
  return {};
}

Status read_openai(const Json& json, Request* request) {
  request->openai = true;
  const Json *id = json.find("custom_id"), *method = json.find("method"), *url = json.find("url"),
             *body = json.find("body");
  if (id && id->is_string())
    request->custom_id = id->as_string();
  else
    return invalid_error("custom_id is missing; expected a string");
  if (method && method->as_string() != "POST") return wrong("method", *method, "\"POST\"");
  if (!url || url->as_string() != "/v1/completions")
    return invalid_error(fmt::format(
        "url is {}, this release answers \"/v1/completions\" (chat needs a chat template, which it does not run)",
        url ? escape_control(url->dump()) : "missing"));
  if (!body || !body->is_object()) return invalid_error("body is missing; expected an object with a prompt");
  return read_body(*body, request);
}

}  // namespace

Request read_request(const Record& record, const Options& options, int64_t index) {
  Request request;
  request.index = index;
  request.line = record.line;
  request.sampling = options.sampling;
  request.status = record.status;
  if (!request.status.ok()) return request;
  // A draw's key is the seed alone when a request gives one, else it differs from line to line.
  request.sampling.seed = options.sampling.seed + static_cast<uint64_t>(index);
  const bool is_batch_line =
      record.json.find("body") || record.json.find("custom_id") || record.json.find("method") || record.json.find("url");
  request.status = is_batch_line ? read_openai(record.json, &request) : read_body(record.json, &request);
  return request;
}

Result<Prompt> to_prompt(const Request& request, const Tokenizer* tokenizer) {
  if (request.prompt_ids) return Prompt{*request.prompt_ids, request.sampling};
  if (!tokenizer)
    return usage_error("the model has no tokenizer: give --tokenizer, or the prompt as token ids (--input)");
  LLMOPS_ASSIGN(std::vector<int32_t> ids, tokenizer->encode(request.prompt_text));
  return Prompt{std::move(ids), request.sampling};
}

std::vector<Column> record_columns() {
  return {{"prompt", "prompt"},
          {"text", "text"},
          {"finish_reason", "finish"},
          {"prompt_tokens", "prompt tokens"},
          {"completion_tokens", "completion tokens"}};
}

namespace {

Json prompt_json(const Request& request) {
  if (!request.prompt_ids) return utf8_repair(request.prompt_text);
  Json ids(Json::Array{});
  for (int32_t id : *request.prompt_ids) ids.push_back(id);
  return ids;
}

Json openai_body(const Request& request, const Completion& c, const Backend& backend) {
  Json choice(Json::Object{}), choices(Json::Array{}), usage(Json::Object{}), body(Json::Object{});
  choice["index"] = 0;
  choice["text"] = c.text;
  choice["logprobs"] = Json();
  choice["finish_reason"] = name_of(c.finish_reason);
  choices.push_back(std::move(choice));
  usage["prompt_tokens"] = c.prompt_tokens;
  usage["completion_tokens"] = c.completion_tokens;
  usage["total_tokens"] = c.prompt_tokens + c.completion_tokens;
  body["id"] = fmt::format("cmpl-{}", request.index);
  body["object"] = "text_completion";
  body["created"] = 0;  // the same answer at any time
  body["model"] = backend.model;
  if (!backend.matmul.empty()) body["system_fingerprint"] = backend.matmul;
  body["choices"] = std::move(choices);
  body["usage"] = std::move(usage);
  return body;
}

Json openai_error(const Status& status) {
  Json error(Json::Object{}), body(Json::Object{});
  error["message"] = status.message();
  error["type"] = "invalid_request_error";
  error["param"] = Json();
  error["code"] = Json();
  body["error"] = std::move(error);
  return body;
}

}  // namespace

Json plain_record(const Request& request, const Completion& c, const Backend& backend) {
  Json json(Json::Object{});
  json["prompt"] = prompt_json(request);
  json["text"] = c.text;
  json["finish_reason"] = name_of(c.finish_reason);
  json["prompt_tokens"] = c.prompt_tokens;
  json["completion_tokens"] = c.completion_tokens;
  if (!backend.matmul.empty()) json["matmul"] = backend.matmul;
  return json;
}

Json answer(const Request& request, const Completion* completion, const Backend& backend) {
  if (!request.openai) {
    if (completion) return plain_record(request, *completion, backend);
    Json json(Json::Object{});
    json["line"] = request.line;
    json["error"] = request.status.message();
    return json;
  }
  Json response(Json::Object{}), json(Json::Object{});
  response["status_code"] = completion ? 200 : 400;
  response["request_id"] = fmt::format("req-{}", request.index);
  response["body"] = completion ? openai_body(request, *completion, backend) : openai_error(request.status);
  json["id"] = fmt::format("batch_req_{}", request.index);
  json["custom_id"] = request.custom_id.empty() ? Json() : Json(request.custom_id);
  json["response"] = std::move(response);
  json["error"] = Json();
  return json;
}

std::string escape_for_terminal(std::string_view text) {
  std::string out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find_first_of("\n\t", begin), text.size());
    out += escape_control(text.substr(begin, end - begin));
    if (end < text.size()) out += text[end];
    begin = end + 1;
  }
  return out;
}

}  // namespace llmops::infer_command_detail
