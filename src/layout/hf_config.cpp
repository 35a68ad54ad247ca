// Reading and writing Hugging Face's config.json. Field meanings: transformers' configuration classes of GPT-2, Llama
// and Qwen3.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "layout/model_config.h"

namespace llmops {
namespace {

// Fields that leave the mathematics of inference and of training without dropout alone.
constexpr std::string_view kHarmless[] = {
    "architectures",
    "model_type",
    "transformers_version",
    "use_cache",
    "dtype",
    "torch_dtype",
    "_name_or_path",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "initializer_range",
    "attention_dropout",
    "attn_pdrop",
    "embd_pdrop",
    "resid_pdrop",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "n_ctx",
    "pretraining_tp",
    "reorder_and_upcast_attn",
    "max_window_layers",
    "_attn_implementation",
    "attn_implementation",
    "gradient_checkpointing",
    "output_past",
    "id2label",
    "label2id",
};

class Reader {
 public:
  explicit Reader(const Json& json) : json_(json) {}

  const Json* find(std::string_view key) {
    used_.push_back(key);
    const Json* value = json_.find(key);
    return value && !value->is_null() ? value : nullptr;
  }
  int64_t integer(const char* key, int64_t fallback) {
    const Json* value = find(key);
    if (value && !value->is_integer()) fail(key, *value, "an integer");
    return value ? value->as_int() : fallback;
  }
  int64_t needed(const char* key) {
    const Json* value = find(key);
    if (!value && status_.ok()) status_ = invalid_error(fmt::format("config.json: {} is missing", key));
    return value ? integer(key, 0) : 0;
  }
  double number(const char* key, double fallback) {
    const Json* value = find(key);
    if (value && !value->is_number()) fail(key, *value, "a number");
    return value ? value->as_double() : fallback;
  }
  bool boolean(const char* key, bool fallback) {
    const Json* value = find(key);
    if (value && !value->is_bool()) fail(key, *value, "true or false");
    return value ? value->as_bool() : fallback;
  }
  std::string text(const char* key, const char* fallback) {
    const Json* value = find(key);
    if (value && !value->is_string()) fail(key, *value, "a string");
    return value ? value->as_string() : fallback;
  }
  // A field that must have one value, since another one is other mathematics.
  void require(const char* key, const Json& expected) {
    const Json* value = find(key);
    if (value && value->dump() != expected.dump()) fail(key, *value, expected.dump());
  }
  void fail(std::string_view key, const Json& found, std::string_view expected) {
    if (status_.ok())
      status_ = invalid_error(fmt::format("config.json: {} is {}, this release supports {}", escape_control(key),
                                          escape_control(found.dump().substr(0, 80)), expected));
  }
  // Every field must be known: one that is not, and says something, may change the mathematics.
  Status finish() {
    if (!status_.ok()) return status_;
    for (const auto& [key, value] : json_.as_object()) {
      const bool says_nothing = value.is_null() || (value.is_bool() && !value.as_bool()) ||
                                (value.is_array() && value.as_array().empty()) ||
                                (value.is_object() && value.as_object().empty());
      if (says_nothing || std::ranges::find(used_, key) != used_.end() ||
          std::ranges::find(kHarmless, key) != std::end(kHarmless))
        continue;
      return invalid_error(
          fmt::format("config.json: field {} = {} is not known to this release and may change the mathematics",
                      escape_control(key), escape_control(value.dump().substr(0, 80))));
    }
    return {};
  }
  const Status& status() const { return status_; }

 private:
  const Json& json_;
  std::vector<std::string_view> used_;
  Status status_;
};

// rope_parameters (transformers 5) or rope_theta + rope_scaling (transformers 4); the type key is rope_type or, older,
// type.
void read_rope(Reader& reader, RopeConfig* rope) {
  rope->theta = reader.number("rope_theta", 10000.0);
  const Json* scaling = reader.find("rope_scaling");
  const Json* theta = reader.find("rope_theta");
  if (const Json* parameters = reader.find("rope_parameters")) {
    if (scaling && scaling->dump() != parameters->dump())
      return reader.fail("rope_scaling", *scaling, "the same as in rope_parameters, or none");
    const Json* inner = parameters->find("rope_theta");
    if (theta && inner && theta->as_double() != inner->as_double())
      return reader.fail("rope_theta", *theta, "the same as in rope_parameters, or none");
    scaling = parameters;
  }
  if (!scaling) return;
  if (!scaling->is_object()) return reader.fail("rope_scaling", *scaling, "an object");
  std::string type = "default";
  for (const auto& [key, value] : scaling->as_object()) {
    if (key == "rope_type" || key == "type")
      type = value.as_string();
    else if (key == "rope_theta")
      rope->theta = value.as_double();
    else if (key == "factor")
      rope->factor = value.as_double();
    else if (key == "low_freq_factor")
      rope->low_freq_factor = value.as_double();
    else if (key == "high_freq_factor")
      rope->high_freq_factor = value.as_double();
    else if (key == "original_max_position_embeddings")
      rope->original_positions = value.as_int();
    else if (key == "partial_rotary_factor" && value.as_double() == 1.0)
      continue;
    else if (!value.is_null())
      return reader.fail("rope parameter " + key, value, "rope_theta, factor and llama3's fields");
  }
  if (type == "default")
    rope->scaling = RopeScaling::none;
  else if (type == "linear")
    rope->scaling = RopeScaling::linear;
  else if (type == "llama3")
    rope->scaling = RopeScaling::llama3;
  else
    reader.fail("rope_type", Json(type), "default, linear and llama3");
  if (rope->scaling == RopeScaling::none) rope->factor = 1.0;
}

void read_tokens(Reader& reader, ModelConfig* c) {
  c->bos_id = reader.find("bos_token_id") ? reader.integer("bos_token_id", -1) : -1;
  if (const Json* eos = reader.find("eos_token_id")) {
    if (eos->is_integer()) c->eos_ids.push_back(eos->as_int());
    for (const Json& id : eos->as_array()) c->eos_ids.push_back(id.as_int(-1));
  }
  c->init_std = reader.number("initializer_range", 0.02);
}

void read_gpt2(Reader& reader, ModelConfig* c) {
  c->family = Family::gpt2;
  c->layers = reader.needed("n_layer");
  c->d_model = reader.needed("n_embd");
  c->heads = c->kv_heads = reader.needed("n_head");
  c->head_dim = c->heads > 0 ? c->d_model / c->heads : 0;
  if (c->heads > 0 && c->d_model % c->heads != 0) reader.fail("n_embd", Json(c->d_model), "a multiple of n_head");
  c->ffn = reader.integer("n_inner", 4 * c->d_model);
  c->vocab = reader.needed("vocab_size");
  c->positions = reader.needed("n_positions");
  c->norm_eps = reader.number("layer_norm_epsilon", 1e-5);
  const std::string activation = reader.text("activation_function", "gelu_new");
  if (activation == "gelu_new" || activation == "gelu_pytorch_tanh")
    c->mlp = MlpKind::gelu_tanh;
  else if (activation == "gelu")
    c->mlp = MlpKind::gelu_erf;
  else
    reader.fail("activation_function", Json(activation), "gelu_new, gelu_pytorch_tanh and gelu");
  reader.require("scale_attn_weights", Json(true));
  reader.require("scale_attn_by_inverse_layer_idx", Json(false));
  reader.require("add_cross_attention", Json(false));
  c->tied_head = reader.boolean("tie_word_embeddings", true);
}

void read_llama(Reader& reader, ModelConfig* c) {
  c->layers = reader.needed("num_hidden_layers");
  c->d_model = reader.needed("hidden_size");
  c->heads = reader.needed("num_attention_heads");
  c->kv_heads = reader.integer("num_key_value_heads", c->heads);
  c->head_dim = reader.integer("head_dim", c->heads > 0 ? c->d_model / c->heads : 0);
  c->ffn = reader.needed("intermediate_size");
  c->vocab = reader.needed("vocab_size");
  c->positions = reader.integer("max_position_embeddings", 2048);
  c->norm = NormKind::rms;
  c->norm_bias = false;
  c->norm_eps = reader.number("rms_norm_eps", 1e-6);
  c->mlp = MlpKind::swiglu;
  c->qkv_bias = c->out_bias = reader.boolean("attention_bias", false);
  c->mlp_bias = reader.boolean("mlp_bias", false);
  c->learned_positions = c->weights_in_out = false;
  c->tied_head = reader.boolean("tie_word_embeddings", false);
  reader.require("hidden_act", Json("silu"));
  reader.require("partial_rotary_factor", Json(1.0));
  if (reader.boolean("use_sliding_window", true)) {
    if (const Json* window = reader.find("sliding_window")) reader.fail("sliding_window", *window, "full attention");
  } else {
    reader.find("sliding_window");
  }
  if (const Json* types = reader.find("layer_types"))
    for (const Json& type : types->as_array())
      if (type.as_string() != "full_attention") reader.fail("layer_types", type, "full_attention");
  if (reader.find("pad_token_id")) c->pad_id = reader.integer("pad_token_id", -1);
  read_rope(reader, &c->rope);
}

}  // namespace

Result<ModelConfig> model_config_from_hf(const Json& json) {
  if (!json.is_object()) return invalid_error("config.json: expected a JSON object");
  Reader reader(json);
  ModelConfig config;
  const std::string type = reader.text("model_type", "");
  if (type == "gpt2") {
    read_gpt2(reader, &config);
  } else if (type == "llama" || type == "qwen3") {
    config.family = type == "llama" ? Family::llama : Family::qwen3;
    config.qk_norm = type == "qwen3";
    read_llama(reader, &config);
  } else {
    return invalid_error(fmt::format("config.json: model_type is \"{}\", this release runs gpt2, llama and qwen3",
                                     escape_control(type)));
  }
  read_tokens(reader, &config);
  LLMOPS_TRY(reader.finish());
  LLMOPS_TRY(check(config));
  return config;
}

namespace {

void write_rope(const RopeConfig& rope, Json* json) {
  Json scaling(Json::Object{});
  scaling["rope_theta"] = rope.theta;
  scaling["rope_type"] = rope.scaling == RopeScaling::none     ? "default"
                         : rope.scaling == RopeScaling::linear ? "linear"
                                                               : "llama3";
  if (rope.scaling != RopeScaling::none) scaling["factor"] = rope.factor;
  if (rope.scaling == RopeScaling::llama3) {
    scaling["low_freq_factor"] = rope.low_freq_factor;
    scaling["high_freq_factor"] = rope.high_freq_factor;
    scaling["original_max_position_embeddings"] = rope.original_positions;
  }
  (*json)["rope_theta"] = rope.theta;  // transformers 4 reads these two, transformers 5 rope_parameters
  (*json)["rope_scaling"] = rope.scaling == RopeScaling::none ? Json() : scaling;
  (*json)["rope_parameters"] = std::move(scaling);
}

}  // namespace

Json model_config_to_hf(const ModelConfig& c, DType dtype) {
  Json json(Json::Object{});
  const bool gpt2 = c.family == Family::gpt2;
  Json architectures(Json::Array{});
  architectures.push_back(gpt2                        ? "GPT2LMHeadModel"
                          : c.family == Family::llama ? "LlamaForCausalLM"
                                                      : "Qwen3ForCausalLM");
  json["architectures"] = std::move(architectures);
  json["model_type"] = name_of(c.family);
  json["vocab_size"] = c.vocab;
  json["torch_dtype"] = info(dtype).name_config;
  json["initializer_range"] = c.init_std;
  json["tie_word_embeddings"] = c.tied_head;
  json["bos_token_id"] = c.bos_id >= 0 ? Json(c.bos_id) : Json();
  Json eos(Json::Array{});
  for (int64_t id : c.eos_ids) eos.push_back(id);
  json["eos_token_id"] = c.eos_ids.empty() ? Json() : c.eos_ids.size() == 1 ? Json(c.eos_ids[0]) : eos;
  if (gpt2) {
    json["n_layer"] = c.layers;
    json["n_embd"] = c.d_model;
    json["n_head"] = c.heads;
    json["n_inner"] = c.ffn;
    json["n_positions"] = c.positions;
    json["layer_norm_epsilon"] = c.norm_eps;
    json["activation_function"] = c.mlp == MlpKind::gelu_erf ? "gelu" : "gelu_new";
    for (const char* dropout : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) json[dropout] = 0.0;
    return json;
  }
  json["num_hidden_layers"] = c.layers;
  json["hidden_size"] = c.d_model;
  json["num_attention_heads"] = c.heads;
  json["num_key_value_heads"] = c.kv_heads;
  json["head_dim"] = c.head_dim;
  json["intermediate_size"] = c.ffn;
  json["max_position_embeddings"] = c.positions;
  json["rms_norm_eps"] = c.norm_eps;
  json["hidden_act"] = "silu";
  json["attention_bias"] = c.qkv_bias;
  if (c.family == Family::llama) json["mlp_bias"] = c.mlp_bias;
  json["attention_dropout"] = 0.0;
  json["pad_token_id"] = c.pad_id >= 0 ? Json(c.pad_id) : Json();
  write_rope(c.rope, &json);
  return json;
}

}  // namespace llmops
