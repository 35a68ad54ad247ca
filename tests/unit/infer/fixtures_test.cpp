// Logits and greedy text of tiny models written by transformers (testdata/models), in one pass, in pieces, batched, and
// on any number of threads.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <string>

#include "base/io.h"
#include "base/text.h"
#include "infer/generate.h"

using namespace llmops;

namespace {

struct Fixture {
  std::unique_ptr<TensorSource> source;
  Json expected;

  explicit Fixture(const std::string& name) {
    auto opened = open_hf(LLMOPS_TESTDATA "/models/" + name);
    REQUIRE_MESSAGE(opened.ok(), opened.status().message());
    source = opened.take();
    const auto text = read_file(LLMOPS_TESTDATA "/models/" + name + ".expected.json");
    REQUIRE(text.ok());
    auto json = json_parse(*text);
    REQUIRE(json.ok());
    expected = json.take();
  }
  const Json::Array& sequences() const { return expected.find("sequences")->as_array(); }
};

std::vector<int32_t> ids_of(const Json& list) {
  std::vector<int32_t> ids;
  for (const Json& id : list.as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
  return ids;
}

struct Loaded {
  std::unique_ptr<Device> device;
  std::unique_ptr<InferModel> model;
  Loaded(const Fixture& fixture, int threads, bool reference = false) {
    auto opened = Device::open_cpu({.threads = threads, .reference = reference});
    REQUIRE(opened.ok());
    device = opened.take();
    auto loaded = InferModel::load(*device, *fixture.source, DType::f32);
    REQUIRE_MESSAGE(loaded.ok(), loaded.status().message());
    model = loaded.take();
  }
};

void check_logits(const std::string& name, bool reference) {
  const Fixture fixture(name);
  Loaded loaded(fixture, 2, reference);
  REQUIRE(loaded.model->reserve(2, 64, 128).ok());
  REQUIRE(!fixture.sequences().empty());
  for (const Json& sequence : fixture.sequences()) {
    const std::vector<int32_t> ids = ids_of(*sequence.find("ids"));
    REQUIRE(!sequence.find("logits")->as_object().empty());
    for (const auto& [position, values] : sequence.find("logits")->as_object()) {
      const auto count = parse_int(position, 0, 1000);
      REQUIRE(count.ok());
      const SequenceRows rows{0, 0, std::span(ids).first(static_cast<size_t>(*count) + 1), true};
      const auto logits = loaded.model->forward(std::span(&rows, 1));
      REQUIRE_MESSAGE(logits.ok(), logits.status().message());
      const auto* found = static_cast<const float*>(logits->data);
      double worst = 0;
      for (size_t v = 0; v < values.as_array().size(); ++v) {
        const auto value = parse_double(values.as_array()[v].as_string(), -1e9, 1e9);
        REQUIRE(value.ok());
        worst = std::max(worst, std::fabs(found[v] - *value));
        CHECK(std::isfinite(found[v]));
      }
      INFO(name, " position ", position);
      CHECK(worst < 1e-4);
    }
  }
}

std::vector<Prompt> greedy_prompts(const Fixture& fixture) {
  std::vector<Prompt> prompts;
  for (const Json& sequence : fixture.sequences()) {
    Prompt prompt{ids_of(*sequence.find("ids")), {}};
    prompt.sampling.max_tokens = static_cast<int64_t>(sequence.find("greedy")->as_array().size());
    prompt.sampling.ignore_eos = true;
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

const char* const kModels[] = {"gpt2", "llama", "llama_rope3", "llama_tied_bias", "qwen3"};

}  // namespace

TEST_CASE("logits are those of transformers in float64, within 1e-4") {
  for (const char* name : kModels)
    for (bool reference : {false, true}) check_logits(name, reference);
}

TEST_CASE("greedy continuations are those of transformers, alone and in one batch, at any thread count") {
  for (const char* name : kModels) {
    INFO(name);
    const Fixture fixture(name);
    const std::vector<Prompt> prompts = greedy_prompts(fixture);
    for (int threads : {1, 3}) {
      Loaded loaded(fixture, threads);
      const auto batched = generate(*loaded.model, nullptr, prompts);
      REQUIRE_MESSAGE(batched.ok(), batched.status().message());
      for (size_t i = 0; i < prompts.size(); ++i) {
        CHECK((*batched)[i].ids == ids_of(*fixture.sequences()[i].find("greedy")));
        const auto alone = generate(*loaded.model, nullptr, std::span(&prompts[i], 1));
        REQUIRE(alone.ok());
        CHECK((*alone)[0].ids == (*batched)[i].ids);
      }
    }
  }
}

TEST_CASE("a prompt prefilled in pieces gives the same bits as in one pass") {
  const Fixture fixture("llama");
  Loaded loaded(fixture, 2);
  REQUIRE(loaded.model->reserve(2, 64, 128).ok());
  const std::vector<int32_t> ids = ids_of(*fixture.sequences()[0].find("ids"));
  const SequenceRows whole{0, 0, ids, true};
  const auto logits = loaded.model->forward(std::span(&whole, 1));
  REQUIRE(logits.ok());
  const auto* data = static_cast<const float*>(logits->data);
  const std::vector<float> expected(data, data + fixture.source->config().vocab);
  for (int64_t at = 0; at < static_cast<int64_t>(ids.size());) {
    const int64_t count = std::min<int64_t>(at == 0 ? 5 : 7, static_cast<int64_t>(ids.size()) - at);
    const SequenceRows piece{1, at, std::span(ids).subspan(static_cast<size_t>(at), static_cast<size_t>(count)), true};
    const auto part = loaded.model->forward(std::span(&piece, 1));
    REQUIRE(part.ok());
    at += count;
  }
  for (size_t v = 0; v < expected.size(); ++v)
    CHECK(std::bit_cast<uint32_t>(data[v]) == std::bit_cast<uint32_t>(expected[v]));
}
