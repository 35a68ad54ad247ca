#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/checked.h"
#include "base/text.h"
#include "layout/model_config.h"

namespace llmops {
namespace {

struct Size {
  int64_t layers, width;
};

// "dN" by depth from the given table, or "LxD" freely.
std::optional<Size> parse_size(std::string_view text, std::initializer_list<Size> by_depth) {
  if (text.starts_with('d')) {
    const auto depth = parse_int(text.substr(1), 1, 10000);
    for (const Size& size : by_depth)
      if (depth.ok() && size.layers == *depth) return size;
    return std::nullopt;
  }
  const size_t x = text.find('x');
  if (x == std::string_view::npos) return std::nullopt;
  const auto layers = parse_int(text.substr(0, x), 1, 10000), width = parse_int(text.substr(x + 1), 1, 1 << 20);
  if (!layers.ok() || !width.ok()) return std::nullopt;
  return Size{*layers, *width};
}

ModelConfig gpt2(Size size, int64_t vocab) {
  ModelConfig c;
  c.layers = size.layers;
  c.d_model = size.width;
  c.head_dim = size.width % 64 == 0 ? 64 : size.width;
  c.heads = c.kv_heads = size.width / c.head_dim;
  c.ffn = 4 * size.width;
  c.vocab = vocab > 0 ? vocab : 50257;
  c.positions = 1024;
  return c;
}

ModelConfig character(int64_t vocab) {
  ModelConfig c;
  c.layers = 4;
  c.d_model = 128;
  c.heads = c.kv_heads = 4;
  c.head_dim = 32;
  c.ffn = 512;
  c.vocab = vocab;
  c.positions = 64;
  c.norm_bias = c.qkv_bias = c.out_bias = c.mlp_bias = false;
  return c;
}

ModelConfig llama(Family family, Size size, int64_t vocab) {
  ModelConfig c;
  c.family = family;
  c.layers = size.layers;
  c.d_model = size.width;
  c.head_dim = size.width >= 256 ? 64 : std::max<int64_t>(2, size.width / 4 / 2 * 2);
  c.heads = std::max<int64_t>(1, size.width / c.head_dim);
  c.kv_heads = c.heads % 4 == 0 ? c.heads / 4 : c.heads;
  c.ffn = round_up(size.width * 8 / 3, 32);
  c.vocab = vocab > 0 ? vocab : family == Family::llama ? 128256 : 151936;
  c.positions = 8192;
  c.norm = NormKind::rms;
  c.mlp = MlpKind::swiglu;
  c.norm_bias = c.qkv_bias = c.out_bias = c.mlp_bias = c.learned_positions = c.weights_in_out = false;
  c.tied_head = c.qk_norm = family == Family::qwen3;
  c.norm_eps = family == Family::llama ? 1e-5 : 1e-6;
  c.rope.theta = family == Family::llama ? 5e5 : 1e6;
  return c;
}

}  // namespace

Result<ModelConfig> model_config_from_descriptor(std::string_view descriptor, int64_t vocab) {
  const size_t colon = descriptor.find(':');
  const std::string_view name = descriptor.substr(0, colon);
  const std::string_view rest = colon == std::string_view::npos ? std::string_view() : descriptor.substr(colon + 1);
  std::optional<ModelConfig> config;
  if (descriptor == "char") config = character(vocab);
  if (descriptor == "gpt2") config = gpt2({12, 768}, vocab);
  if (name == "gpt2" && !rest.empty())
    if (auto size = parse_size(rest, {{6, 384}, {12, 768}, {24, 1024}, {36, 1280}, {48, 1600}}))
      config = gpt2(*size, vocab);
  if ((name == "llama" || name == "qwen3") && !rest.empty())
    if (auto size = parse_size(rest, {})) config = llama(name == "llama" ? Family::llama : Family::qwen3, *size, vocab);
  if (!config)
    return usage_error(
        fmt::format("model \"{}\" is no built-in descriptor; expected char, gpt2, gpt2:d6|d12|d24|d36|d48, gpt2:LxD, "
                    "llama:LxD or qwen3:LxD (L layers, D width, as in llama:4x256)",
                    escape_control(descriptor)));
  if (config->vocab == 0)
    return usage_error(fmt::format("model {} takes its vocabulary from the data, and none is given", descriptor));
  LLMOPS_TRY(check(*config));
  return *config;
}

}  // namespace llmops
