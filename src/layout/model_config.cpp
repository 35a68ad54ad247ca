#include "layout/model_config.h"

#include <fmt/format.h>

#include "base/text.h"

namespace llmops {
namespace {

// One list of the plain fields serves writing, reading and nothing else can be forgotten.
template <class Config, class F>
void each_field(Config& c, F&& f) {
  f("layers", c.layers);
  f("d_model", c.d_model);
  f("heads", c.heads);
  f("kv_heads", c.kv_heads);
  f("head_dim", c.head_dim);
  f("ffn", c.ffn);
  f("vocab", c.vocab);
  f("positions", c.positions);
  f("norm_eps", c.norm_eps);
  f("norm_bias", c.norm_bias);
  f("qkv_bias", c.qkv_bias);
  f("out_bias", c.out_bias);
  f("mlp_bias", c.mlp_bias);
  f("qk_norm", c.qk_norm);
  f("learned_positions", c.learned_positions);
  f("tied_head", c.tied_head);
  f("weights_in_out", c.weights_in_out);
  f("init_std", c.init_std);
  f("bos_id", c.bos_id);
  f("pad_id", c.pad_id);
  f("rope_theta", c.rope.theta);
  f("rope_interleaved", c.rope.interleaved);
  f("rope_factor", c.rope.factor);
  f("rope_low_freq_factor", c.rope.low_freq_factor);
  f("rope_high_freq_factor", c.rope.high_freq_factor);
  f("rope_original_positions", c.rope.original_positions);
}

constexpr std::string_view kFamilies[] = {"gpt2", "llama", "qwen3"};
constexpr std::string_view kNorms[] = {"layer", "rms"};
constexpr std::string_view kMlps[] = {"gelu_tanh", "gelu_erf", "swiglu"};
constexpr std::string_view kScalings[] = {"none", "linear", "llama3"};

template <class Enum, size_t n>
Status read_enum(const Json& json, const char* key, const std::string_view (&names)[n], Enum* out) {
  const Json* value = json.find(key);
  for (size_t i = 0; value && i < n; ++i)
    if (value->as_string() == names[i]) {
      *out = static_cast<Enum>(i);
      return {};
    }
  return invalid_error(fmt::format("model config: {} is {}, which this release does not know", key,
                                   value ? escape_control(value->dump()) : "missing"));
}

Status read_value(const Json* value, const char* key, int64_t* out) {
  if (!value || !value->is_integer()) return invalid_error(fmt::format("model config: {} must be an integer", key));
  *out = value->as_int();
  return {};
}
Status read_value(const Json* value, const char* key, double* out) {
  if (!value || !value->is_number()) return invalid_error(fmt::format("model config: {} must be a number", key));
  *out = value->as_double();
  return {};
}
Status read_value(const Json* value, const char* key, bool* out) {
  if (!value || !value->is_bool()) return invalid_error(fmt::format("model config: {} must be true or false", key));
  *out = value->as_bool();
  return {};
}

}  // namespace

std::string_view name_of(Family family) { return kFamilies[static_cast<int>(family)]; }

Json to_json(const ModelConfig& config) {
  Json json(Json::Object{});
  json["family"] = name_of(config.family);
  json["norm"] = kNorms[static_cast<int>(config.norm)];
  json["mlp"] = kMlps[static_cast<int>(config.mlp)];
  json["rope_scaling"] = kScalings[static_cast<int>(config.rope.scaling)];
  each_field(config, [&](const char* key, const auto& value) { json[key] = value; });
  Json eos(Json::Array{});
  for (int64_t id : config.eos_ids) eos.push_back(id);
  json["eos_ids"] = std::move(eos);
  return json;
}

Result<ModelConfig> model_config_from_json(const Json& json) {
  ModelConfig config;
  LLMOPS_TRY(read_enum(json, "family", kFamilies, &config.family));
  LLMOPS_TRY(read_enum(json, "norm", kNorms, &config.norm));
  LLMOPS_TRY(read_enum(json, "mlp", kMlps, &config.mlp));
  LLMOPS_TRY(read_enum(json, "rope_scaling", kScalings, &config.rope.scaling));
  Status status;
  each_field(config, [&](const char* key, auto& value) {
    if (status.ok()) status = read_value(json.find(key), key, &value);
  });
  LLMOPS_TRY(status);
  if (const Json* eos = json.find("eos_ids"))
    for (const Json& id : eos->as_array()) config.eos_ids.push_back(id.as_int(-1));
  LLMOPS_TRY(check(config));
  return config;
}

Status check(const ModelConfig& c) {
  struct Limit {
    const char* name;
    int64_t value, max;
  };
  const Limit limits[] = {{"layers", c.layers, 10000},     {"width", c.d_model, 1 << 20},   {"heads", c.heads, 1 << 16},
                          {"kv heads", c.kv_heads, 1 << 16}, {"head dim", c.head_dim, 1 << 16}, {"ffn width", c.ffn, 1 << 24},
                          {"vocabulary", c.vocab, 1 << 24}, {"positions", c.positions, int64_t{1} << 31}};
  for (const Limit& limit : limits)
    if (limit.value < 1 || limit.value > limit.max)
      return invalid_error(fmt::format("model config: {} is {}, expected 1 to {}", limit.name, limit.value, limit.max));
  if (c.heads % c.kv_heads != 0)
    return invalid_error(fmt::format("model config: {} heads are not a multiple of {} kv heads", c.heads, c.kv_heads));
  if (!c.learned_positions && c.head_dim % 2 != 0)
    return invalid_error(fmt::format("model config: head dim {} is odd, which RoPE cannot rotate", c.head_dim));
  if (!(c.norm_eps > 0) || !(c.rope.theta > 0) || !(c.rope.factor > 0))
    return invalid_error("model config: norm epsilon, RoPE theta and RoPE factor must be positive");
  return {};
}

}  // namespace llmops
