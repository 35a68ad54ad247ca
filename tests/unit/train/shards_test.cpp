// A step has the same bits whether its virtual shards come one by one or several in a batch.
#include <doctest/doctest.h>

#include "comm/launch.h"
#include "train/step.h"

using namespace llmops;

namespace {

constexpr int kShards = 8;
constexpr int64_t kSeq = 24;

// Ragged: shards of one to three windows of 2 to kSeq tokens.
std::vector<Windows> shards_of(int64_t step, int64_t vocab, int64_t* targets) {
  std::vector<Windows> shards(kShards);
  uint32_t state = 7 + static_cast<uint32_t>(step);
  const auto next = [&](int64_t below) {
    state = state * 1664525u + 1013904223u;
    return static_cast<int64_t>(state >> 8) % below;
  };
  for (Windows& windows : shards)
    for (int64_t i = next(3); i >= 0; --i) {
      const std::span<int32_t> window = windows.add(3 + next(kSeq - 1));
      for (int32_t& token : window) token = static_cast<int32_t>(next(vocab));
      *targets += std::ssize(window) - 1;
    }
  return shards;
}

struct Outcome {
  std::vector<double> figures;  // loss and gradient norm of each step
  std::vector<char> weights, gradients;
};

Outcome two_steps(const ModelConfig& config, DType dtype, int at_once) {
  auto device = Device::open_cpu({.threads = 2});
  REQUIRE(device.ok());
  auto comm = open_communicator(**device, Launch{});
  REQUIRE(comm.ok());
  const Parallel parallel{.shards = kShards};
  auto state = TrainState::make(**device, **comm, config, parallel, dtype, kShards / at_once);
  REQUIRE(state.ok());
  REQUIRE((*state)->init_weights(3).ok());
  auto trainer = Trainer::make(**device, **comm, **state,
                               {.micro_batch = 3 * at_once, .seq = kSeq, .windows = 3 * kShards, .shards_at_once = at_once});
  REQUIRE(trainer.ok());
  Outcome outcome;
  for (int64_t step = 0; step < 2; ++step) {
    int64_t targets = 0;
    const std::vector<Windows> shards = shards_of(step, config.vocab, &targets);
    const auto result = (*trainer)->step(shards, targets, step + 1, 1e-3, AdamwOptions{}, {});
    REQUIRE_MESSAGE(result.ok(), result.status().message());
    CHECK(result->finite);
    outcome.figures.push_back(result->loss);
    outcome.figures.push_back(result->grad_norm);
  }
  const auto bytes_of = [](const TensorView& x) {
    const auto* data = static_cast<const char*>(x.data);
    return std::vector<char>(data, data + x.elems() * info(x.dtype).block_bytes);
  };
  outcome.weights = bytes_of((*state)->weights().all());
  outcome.gradients = bytes_of((*state)->grads((*state)->levels() - 1).all());
  return outcome;
}

void check(const char* descriptor, int64_t vocab) {
  const auto config = model_config_from_descriptor(descriptor, vocab);
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Outcome one_by_one = two_steps(*config, dtype, 1);
    for (const int at_once : {2, 4, 8}) {
      INFO(descriptor, " ", info(dtype).name, ", ", at_once, " at once");
      const Outcome joint = two_steps(*config, dtype, at_once);
      CHECK(joint.figures == one_by_one.figures);
      CHECK(joint.gradients == one_by_one.gradients);
      CHECK(joint.weights == one_by_one.weights);
    }
  }
}

}  // namespace

// The widest matrices are gradients in several pieces.
TEST_CASE("shards at once: GPT-2, tied head, biases") { check("gpt2:1x320", 99); }
TEST_CASE("shards at once: Llama, head of its own") { check("llama:1x256", 1100); }
TEST_CASE("shards at once: Qwen3, QK-norm") { check("qwen3:2x64", 70); }
