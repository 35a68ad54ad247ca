// Golden numbers that need no weight file: closed-form weights, ten AdamW steps on one batch, from PyTorch in float64
// (testdata/models/golden_train.json; testdata/README.md says how it was made). Run on each device of golden_devices().
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "base/io.h"
#include "base/json.h"
#include "comm/launch.h"
#include "support/golden_devices.h"
#include "train/step.h"

using namespace llmops;
using test::golden_devices;

namespace {

const Json& golden() {
  static const Json json = [] {
    auto text = read_file(LLMOPS_TESTDATA "/models/golden_train.json");
    REQUIRE(text.ok());
    auto parsed = json_parse(*text);
    REQUIRE(parsed.ok());
    return parsed.take();
  }();
  return json;
}

ModelConfig config_of(const std::string& name, const Json& dims) {
  ModelConfig c;
  const bool gpt2 = name.starts_with("gpt2");
  c.layers = dims.find("layers")->as_int();
  c.d_model = dims.find("channels")->as_int();
  c.heads = c.kv_heads = dims.find("heads")->as_int();
  c.vocab = dims.find("vocab")->as_int();
  c.norm_eps = dims.find("norm_eps")->as_double();
  c.positions = 16;
  if (gpt2) {
    c.head_dim = c.d_model / c.heads;
    c.ffn = 4 * c.d_model;
    c.mlp = name == "gpt2_erf" ? MlpKind::gelu_erf : MlpKind::gelu_tanh;
    return c;
  }
  c.qk_norm = name == "qwen3";
  c.family = c.qk_norm ? Family::qwen3 : Family::llama;
  c.kv_heads = dims.find("kv_heads")->as_int();
  c.head_dim = dims.find("head_dim")->as_int();
  c.ffn = dims.find("ff")->as_int();
  c.norm = NormKind::rms;
  c.mlp = MlpKind::swiglu;
  c.norm_bias = c.qkv_bias = c.out_bias = c.mlp_bias = c.learned_positions = c.tied_head = c.weights_in_out = false;
  c.rope.theta = dims.find("rope_theta")->as_double();
  c.rope.interleaved = name == "llama_interleaved";
  return c;
}

// Where element (row, column) of golden tensor `name` of `layer` lives: the fixture is in llm.c's order and [out,in]
// orientation.
struct Home {
  std::string logical;
  int64_t row, column;
};

Home gpt2_home(const std::string& name, int64_t layer, int64_t row, int64_t column, int64_t d) {
  const std::string p = "transformer.h." + std::to_string(layer) + ".";
  const std::map<std::string, std::string> plain = {
      {"wte", "transformer.wte.weight"}, {"wpe", "transformer.wpe.weight"}, {"lnfw", "transformer.ln_f.weight"},
      {"lnfb", "transformer.ln_f.bias"}, {"ln1w", p + "ln_1.weight"},       {"ln1b", p + "ln_1.bias"},
      {"ln2w", p + "ln_2.weight"},       {"ln2b", p + "ln_2.bias"},         {"attprojb", p + "attn.c_proj.bias"},
      {"fcb", p + "mlp.c_fc.bias"},      {"fcprojb", p + "mlp.c_proj.bias"}};
  if (auto it = plain.find(name); it != plain.end()) return {it->second, row, column};
  const char* kPieces[] = {"#q", "#k", "#v"};
  if (name == "qkvb") return {p + "attn.c_attn.bias" + kPieces[column / d], 0, column % d};
  if (name == "qkvw") return {p + "attn.c_attn.weight" + kPieces[row / d], column, row % d};
  const std::map<std::string, std::string> matrices = {
      {"attprojw", "attn.c_proj"}, {"fcw", "mlp.c_fc"}, {"fcprojw", "mlp.c_proj"}};
  return {p + matrices.at(name) + ".weight", column, row};
}

std::string llama_home(const std::string& name) {
  if (name == "embed") return "model.embed_tokens.weight";
  if (name == "norm") return "model.norm.weight";
  if (name == "head") return "lm_head.weight";
  const size_t dot = name.find('.', 7);
  const std::string p = "model." + name.substr(0, dot + 1), part = name.substr(dot + 1);
  const std::map<std::string, std::string> parts = {
      {"norm1", "input_layernorm"},   {"norm2", "post_attention_layernorm"},
      {"q", "self_attn.q_proj"},      {"k", "self_attn.k_proj"},
      {"v", "self_attn.v_proj"},      {"o", "self_attn.o_proj"},
      {"q_norm", "self_attn.q_norm"}, {"k_norm", "self_attn.k_norm"},
      {"gate", "mlp.gate_proj"},      {"up", "mlp.up_proj"},
      {"down", "mlp.down_proj"}};
  return p + parts.at(part) + ".weight";
}

struct Run {
  std::unique_ptr<Device> device;
  std::unique_ptr<Communicator> comm;
  std::unique_ptr<TrainState> state;
  std::unique_ptr<Trainer> trainer;
  std::map<std::string, int> index;
  HostSide weights, grads;

  Run(const ModelConfig& config, std::unique_ptr<Device> on) : device(std::move(on)) {
    auto communicator = open_communicator(*device, Launch{});
    REQUIRE(communicator.ok());
    comm = communicator.take();
    auto made = TrainState::make(*device, *comm, config, Parallel{}, DType::f32, 1);
    REQUIRE(made.ok());
    state = made.take();
    auto t = Trainer::make(*device, *comm, *state, {.micro_batch = 2, .seq = 16, .windows = 2});
    REQUIRE(t.ok());
    trainer = t.take();
    for (size_t i = 0; i < state->tensors().size(); ++i) index[state->tensors()[i].name] = static_cast<int>(i);
    weights = side_of(state->weights());
    grads = side_of(state->grads(0));
  }

  HostSide side_of(const FlatView& view) {
    const TensorView all = view.all();
    auto side = HostSide::of(*device, all.data, all.elems() * static_cast<int64_t>(sizeof(float)));
    REQUIRE(side.ok());
    return side.take();
  }

  // Element (row, column) of a logical tensor in the host's side of the weights or gradients.
  float& at(const HostSide& side, const Home& home) {
    const int logical = index.at(home.logical);
    for (size_t g = 0; g < state->groups().size(); ++g)
      for (const Param& param : state->groups()[g].params)
        for (const Piece& piece : param.pieces)
          if (piece.logical == logical) {
            const int64_t width = param.shape.back();
            const int64_t row = param.shape.size() > 1 ? home.row + piece.at[0] : 0;
            float* const group = side.as<float>() + state->weights().group_offset(static_cast<int>(g));
            return group[param.offset + row * width + home.column + piece.at.back()];
          }
    FAIL("no parameter for " << home.logical);
    return *static_cast<float*>(nullptr);
  }
};

// Calls f(golden tensor name, element number from 0 over the whole stacked tensor, home) for each element.
template <class F>
void each_element(const std::string& model, const Json& tensor, int64_t d, F&& f) {
  const auto& shape = tensor.find("shape")->as_array();
  const std::string name = tensor.find("name")->as_string();
  std::vector<int64_t> dims;
  for (const Json& n : shape) dims.push_back(n.as_int());
  const bool gpt2 = model.starts_with("gpt2");
  const bool stacked = gpt2 && name != "wte" && name != "wpe" && name != "lnfw" && name != "lnfb";
  const int64_t layers = stacked ? dims[0] : 1;
  if (stacked) dims.erase(dims.begin());
  const int64_t height = dims.size() > 1 ? dims[0] : 1, width = dims.back();
  int64_t i = 0;
  for (int64_t layer = 0; layer < layers; ++layer)
    for (int64_t row = 0; row < height; ++row)
      for (int64_t column = 0; column < width; ++column, ++i)
        f(i, gpt2 ? gpt2_home(name, layer, row, column, d) : Home{llama_home(name), row, column});
}

void check_model(const std::string& name, std::unique_ptr<Device> device, double loss_bound) {
  const Json& model = *golden().find("models")->find(name);
  Run run(config_of(name, *model.find("dims")), std::move(device));
  const int64_t d = run.state->config().d_model;
  for (const Json& tensor : model.find("tensors")->as_array()) {
    const double k = static_cast<double>(tensor.find("ordinal")->as_int());
    const std::string kind = tensor.find("kind")->as_string();
    each_element(name, tensor, d, [&](int64_t i, const Home& home) {
      const double e = static_cast<double>(i + 1);
      const double s = std::sin(0.37 * e + 1.3 * (k + 1) + 0.0007 * e * (k + 1));
      run.at(run.weights, home) = static_cast<float>(kind == "gain"   ? 1 + 0.05 * s
                                                              : kind == "bias" ? 0.05 * s
                                                                               : 0.15 * s);
    });
  }
  run.weights.push(run.device->compute());
  Windows windows;
  for (int row = 0; row < 2; ++row) {
    const auto &x = golden().find("x")->as_array()[row].as_array(), &y = golden().find("y")->as_array()[row].as_array();
    const std::span<int32_t> window = windows.add(static_cast<int64_t>(x.size()) + 1);
    for (size_t i = 0; i < x.size(); ++i) window[i] = static_cast<int32_t>(x[i].as_int());
    window.back() = static_cast<int32_t>(y.back().as_int());
  }
  for (int step = 0; step < 10; ++step) {
    const auto result = run.trainer->step({windows}, 32, step + 1, 1e-3, AdamwOptions{}, {});
    REQUIRE_MESSAGE(result.ok(), result.status().message());
    CHECK(result->finite);
    CHECK(std::fabs(result->loss - model.find("loss")->as_array()[step].as_double()) < loss_bound);
    CHECK(std::fabs(result->grad_norm - model.find("grad_norm")->as_array()[step].as_double()) < 5e-3);
    if (step > 0) continue;
    run.grads.pull(run.device->compute());
    REQUIRE(run.device->compute().sync().ok());
    for (const Json& tensor : model.find("tensors")->as_array()) {
      const std::string tensor_name = tensor.find("name")->as_string();
      double squares = 0;
      each_element(name, tensor, d, [&](int64_t, const Home& home) {
        const double g = run.at(run.grads, home);
        squares += g * g;
      });
      const double expected = model.find("grad_norm_by_tensor_step0")->find(tensor_name)->as_double();
      INFO("tensor ", tensor_name);
      CHECK(std::fabs(std::sqrt(squares) - expected) < 5e-5 * expected);
    }
  }
}

}  // namespace

TEST_CASE("golden: GPT-2, tanh GELU") {
  for (auto& device : golden_devices()) check_model("gpt2", std::move(device), 2e-6);
}
TEST_CASE("golden: GPT-2, erf GELU") {
  for (auto& device : golden_devices()) check_model("gpt2_erf", std::move(device), 2e-6);
}
TEST_CASE("golden: Llama, half-split RoPE") {
  for (auto& device : golden_devices()) check_model("llama_half", std::move(device), 1e-5);
}
TEST_CASE("golden: Llama, interleaved RoPE") {
  for (auto& device : golden_devices()) check_model("llama_interleaved", std::move(device), 1e-5);
}
TEST_CASE("golden: Qwen3-like") {
  for (auto& device : golden_devices()) check_model("qwen3", std::move(device), 3e-5);
}
