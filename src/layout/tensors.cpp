#include "layout/tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace llmops {
namespace {

// The tensors of a model as HF files have them; `pieces` names the parts a fused tensor is made of along `axis`.
struct Source {
  std::string name;
  Shape shape;
  Init init;
  double std;
  bool decay;
  int axis = 0;
  std::vector<std::pair<const char*, int64_t>> pieces;  // suffix, extent along axis
};

class Lister {
 public:
  explicit Lister(const ModelConfig& config) : c_(config) {}

  std::vector<Source> list() {
    const bool gpt2 = c_.family == Family::gpt2;
    matrix(gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight", {c_.vocab, c_.d_model}, c_.init_std);
    if (c_.learned_positions) matrix("transformer.wpe.weight", {c_.positions, c_.d_model}, c_.init_std);
    for (int64_t layer = 0; layer < c_.layers; ++layer)
      gpt2 ? gpt2_block(fmt::format("transformer.h.{}.", layer)) : llama_block(fmt::format("model.layers.{}.", layer));
    norm(gpt2 ? "transformer.ln_f" : "model.norm", c_.d_model, c_.norm_bias);
    if (!c_.tied_head) matrix("lm_head.weight", {c_.vocab, c_.d_model}, c_.init_std);
    return std::move(sources_);
  }

 private:
  void matrix(const std::string& name, Shape shape, double std) {
    sources_.push_back({name, std::move(shape), Init::normal, std, true});
  }
  void vector(const std::string& name, int64_t n, Init init) { sources_.push_back({name, {n}, init, 0, false}); }
  void norm(const std::string& name, int64_t n, bool bias) {
    vector(name + ".weight", n, Init::ones);
    if (bias) vector(name + ".bias", n, Init::zeros);
  }
  // Residual projections start smaller, so that the variance of the stream does not grow with depth (GPT-2,
  // section 2.3).
  double residual_std() const { return c_.init_std / std::sqrt(2.0 * static_cast<double>(c_.layers)); }

  void gpt2_block(const std::string& p) {
    const std::vector<std::pair<const char*, int64_t>> qkv = {
        {"#q", c_.q_dim()}, {"#k", c_.kv_dim()}, {"#v", c_.kv_dim()}};
    norm(p + "ln_1", c_.d_model, c_.norm_bias);
    matrix(p + "attn.c_attn.weight", {c_.d_model, c_.qkv_dim()}, c_.init_std);
    sources_.back().axis = 1;
    sources_.back().pieces = qkv;
    if (c_.qkv_bias) {
      vector(p + "attn.c_attn.bias", c_.qkv_dim(), Init::zeros);
      sources_.back().pieces = qkv;
    }
    matrix(p + "attn.c_proj.weight", {c_.q_dim(), c_.d_model}, residual_std());
    if (c_.out_bias) vector(p + "attn.c_proj.bias", c_.d_model, Init::zeros);
    norm(p + "ln_2", c_.d_model, c_.norm_bias);
    matrix(p + "mlp.c_fc.weight", {c_.d_model, c_.ffn}, c_.init_std);
    if (c_.mlp_bias) vector(p + "mlp.c_fc.bias", c_.ffn, Init::zeros);
    matrix(p + "mlp.c_proj.weight", {c_.ffn, c_.d_model}, residual_std());
    if (c_.mlp_bias) vector(p + "mlp.c_proj.bias", c_.d_model, Init::zeros);
  }

  void linear(const std::string& name, int64_t out, int64_t in, bool bias, double std) {
    matrix(name + ".weight", {out, in}, std);
    if (bias) vector(name + ".bias", out, Init::zeros);
  }
  void llama_block(const std::string& p) {
    norm(p + "input_layernorm", c_.d_model, false);
    linear(p + "self_attn.q_proj", c_.q_dim(), c_.d_model, c_.qkv_bias, c_.init_std);
    linear(p + "self_attn.k_proj", c_.kv_dim(), c_.d_model, c_.qkv_bias, c_.init_std);
    linear(p + "self_attn.v_proj", c_.kv_dim(), c_.d_model, c_.qkv_bias, c_.init_std);
    if (c_.qk_norm) {
      vector(p + "self_attn.q_norm.weight", c_.head_dim, Init::ones);
      vector(p + "self_attn.k_norm.weight", c_.head_dim, Init::ones);
    }
    linear(p + "self_attn.o_proj", c_.d_model, c_.q_dim(), c_.out_bias, residual_std());
    norm(p + "post_attention_layernorm", c_.d_model, false);
    linear(p + "mlp.gate_proj", c_.ffn, c_.d_model, c_.mlp_bias, c_.init_std);
    linear(p + "mlp.up_proj", c_.ffn, c_.d_model, c_.mlp_bias, c_.init_std);
    linear(p + "mlp.down_proj", c_.d_model, c_.ffn, c_.mlp_bias, residual_std());
  }

  const ModelConfig& c_;
  std::vector<Source> sources_;
};

}  // namespace

int64_t elems_of(const Shape& shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

std::vector<LogicalTensor> logical_tensors(const ModelConfig& config) {
  std::vector<LogicalTensor> tensors;
  for (const Source& source : Lister(config).list()) {
    if (source.pieces.empty()) tensors.push_back({source.name, source.shape, source.init, source.std, source.decay});
    for (const auto& [suffix, extent] : source.pieces) {
      Shape shape = source.shape;
      shape[source.axis] = extent;
      tensors.push_back({source.name + suffix, shape, source.init, source.std, source.decay});
    }
  }
  return tensors;
}

int64_t parameter_count(const ModelConfig& config) {
  int64_t count = 0;
  for (const LogicalTensor& tensor : logical_tensors(config)) count += elems_of(tensor.shape);
  return count;
}

std::vector<HfTensor> hf_tensors(const ModelConfig& config) {
  std::vector<HfTensor> tensors;
  int next = 0;
  for (Source& source : Lister(config).list()) {
    HfTensor tensor{std::move(source.name), std::move(source.shape), source.axis, {}};
    const size_t pieces = source.pieces.empty() ? 1 : source.pieces.size();
    for (size_t i = 0; i < pieces; ++i) tensor.pieces.push_back(next++);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

Box whole(const Shape& shape) { return {Shape(shape.size(), 0), shape}; }

std::vector<Box> boxes_of_range(const Shape& shape, int64_t begin, int64_t end) {
  if (begin >= end) return {};
  if (shape.size() <= 1) {
    if (shape.empty()) return {Box{}};
    return {Box{{begin}, {end - begin}}};
  }
  const Shape inner(shape.begin() + 1, shape.end());
  const int64_t row = elems_of(inner);
  std::vector<Box> boxes;
  auto add = [&](int64_t first_row, int64_t row_count, const Box& part) {
    Box box;
    box.offset.push_back(first_row);
    box.extent.push_back(row_count);
    box.offset.insert(box.offset.end(), part.offset.begin(), part.offset.end());
    box.extent.insert(box.extent.end(), part.extent.begin(), part.extent.end());
    boxes.push_back(std::move(box));
  };
  int64_t first = begin / row;
  if (begin % row != 0 || end < (first + 1) * row) {  // the first row is partial
    for (const Box& part : boxes_of_range(inner, begin % row, std::min(row, end - first * row))) add(first, 1, part);
    ++first;
  }
  const int64_t last = end / row;
  if (last > first) add(first, last - first, whole(inner));
  if (last >= first && end % row != 0)
    for (const Box& part : boxes_of_range(inner, 0, end % row)) add(last, 1, part);
  return boxes;
}

}  // namespace llmops
