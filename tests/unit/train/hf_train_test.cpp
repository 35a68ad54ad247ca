// Twenty AdamW steps of tiny models from Hugging Face files, ragged batches, against PyTorch in float64
// (testdata/models/golden_hf_train.json). Its tensor of rules: step s takes sequences 4s .. 4s+3 mod 10; constant
// learning rate.
#include <doctest/doctest.h>

#include <cmath>

#include "base/io.h"
#include "comm/launch.h"
#include "support/golden_devices.h"
#include "train/persist.h"
#include "train/step.h"

using namespace llmops;

namespace {

void check_run(const std::string& name, Device& device) {
  const auto text = read_file(LLMOPS_TESTDATA "/models/golden_hf_train.json");
  REQUIRE(text.ok());
  const auto golden = json_parse(*text);
  REQUIRE(golden.ok());
  const Json& expected = *golden->find("runs")->find(name)->find("float64");
  const auto source = open_hf(LLMOPS_TESTDATA "/models/" + name);
  REQUIRE_MESSAGE(source.ok(), source.status().message());
  auto comm = open_communicator(device, Launch{});
  REQUIRE(comm.ok());
  auto state = TrainState::make(device, **comm, (*source)->config(), Parallel{}, DType::f32, 1);
  REQUIRE(state.ok());
  REQUIRE(restore(**state, **source, false, device).ok());
  auto trainer = Trainer::make(device, **comm, **state, {.micro_batch = 4, .seq = 32, .windows = 4});
  REQUIRE(trainer.ok());
  const auto& sequences = golden->find("tokens")->as_array();
  for (int step = 0; step < 20; ++step) {
    Windows windows;
    int64_t targets = 0;
    for (int i = 0; i < 4; ++i) {
      const auto& ids = sequences[(step * 4 + i) % sequences.size()].as_array();
      const std::span<int32_t> window = windows.add(static_cast<int64_t>(ids.size()));
      for (size_t k = 0; k < ids.size(); ++k) window[k] = static_cast<int32_t>(ids[k].as_int());
      targets += static_cast<int64_t>(ids.size()) - 1;
    }
    const auto result = (*trainer)->step({windows}, targets, step + 1, 2e-3, AdamwOptions{}, {});
    REQUIRE_MESSAGE(result.ok(), result.status().message());
    INFO(name, " step ", step);
    // f32 against f64 differs by up to 2e-6 (loss) and 5.2e-5 (norm) in PyTorch itself; another summation order gets
    // ten times that.
    CHECK(std::fabs(result->loss - expected.find("loss")->as_array()[step].as_double()) < 2e-5);
    CHECK(std::fabs(result->grad_norm - expected.find("grad_norm")->as_array()[step].as_double()) < 5e-4);
  }
}

}  // namespace

TEST_CASE("20 steps from a Hugging Face GPT-2") {
  for (const auto& device : test::golden_devices()) check_run("gpt2", *device);
}
TEST_CASE("20 steps from a Hugging Face Llama") {
  for (const auto& device : test::golden_devices()) check_run("llama", *device);
}
TEST_CASE("20 steps from a Hugging Face Llama with tied embeddings and biases") {
  for (const auto& device : test::golden_devices()) check_run("llama_tied_bias", *device);
}
TEST_CASE("20 steps from a Hugging Face Qwen3") {
  for (const auto& device : test::golden_devices()) check_run("qwen3", *device);
}
