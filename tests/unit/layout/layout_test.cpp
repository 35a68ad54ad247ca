// Configs, logical tensors, flat groups, boxes, schedules, FLOPs, plan files.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/io.h"
#include "layout/activations.h"
#include "layout/flops.h"
#include "layout/params.h"
#include "layout/plan.h"
#include "layout/schedule.h"

using namespace llmops;

namespace {

ModelConfig descriptor(const char* text, int64_t vocab = 0) {
  auto config = model_config_from_descriptor(text, vocab);
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  return *config;
}

Json config_file(const std::string& name) {
  const auto text = read_file(LLMOPS_TESTDATA "/models/" + name);
  REQUIRE(text.ok());
  auto json = json_parse(*text);
  REQUIRE(json.ok());
  return json.take();
}

}  // namespace

TEST_CASE("GPT-2 124M has the published parameter count") {
  CHECK(parameter_count(descriptor("gpt2")) == 124439808);
  CHECK(parameter_count(descriptor("gpt2:d12")) == 124439808);
  // nanoGPT's character model: 4 blocks of 12 d^2 + 2 d, two tables, a final norm; no biases.
  CHECK(parameter_count(descriptor("char", 65)) == 4 * (12 * 128 * 128 + 2 * 128) + (65 + 64) * 128 + 128);
}

TEST_CASE("FLOPs by the named conventions, at the numbers their sources give") {
  // nanoGPT: 6 N + 12 l d t without the position table; its N also leaves out biases in this figure, which ours does
  // not.
  const ModelConfig gpt2 = descriptor("gpt2");
  CHECK(train_flops_per_token_nanogpt(gpt2, 1024) == 6.0 * (124439808 - 1024 * 768) + 12.0 * 12 * 768 * 1024);
  // llm.c: 6 N + 6 l d t, with N of the unpadded vocabulary here.
  CHECK(train_flops_per_token_llmc(gpt2, 1024) == 6.0 * 124439808 + 6.0 * 12 * 768 * 1024);
  // Ours, by hand: 3 x 2 x (l (4 d^2 + 8 d^2 + d (t+1)) + v d).
  const double block = 12.0 * 768 * 768 + 768.0 * (64 + 1);
  CHECK(train_flops_per_token(gpt2, 64) == 6 * (12 * block + 50257.0 * 768));
}

TEST_CASE("both spellings of config.json give the same model, and writing it reads back") {
  for (const char* name : {"llama", "llama_rope3", "llama_tied_bias", "qwen3"}) {
    INFO(name);
    const auto v5 = model_config_from_hf(config_file(std::string(name) + "/config.json"));
    const auto v4 = model_config_from_hf(config_file(std::string(name) + "/config.v4.json"));
    REQUIRE_MESSAGE(v5.ok(), v5.status().message());
    REQUIRE_MESSAGE(v4.ok(), v4.status().message());
    CHECK(*v5 == *v4);
    const auto again = model_config_from_hf(model_config_to_hf(*v5, DType::f32));
    REQUIRE_MESSAGE(again.ok(), again.status().message());
    CHECK(*again == *v5);
    const auto ours = model_config_from_json(to_json(*v5));
    REQUIRE(ours.ok());
    CHECK(*ours == *v5);
  }
  const auto rope3 = model_config_from_hf(config_file("llama_rope3/config.json"));
  CHECK(rope3->rope.scaling == RopeScaling::llama3);
  CHECK(rope3->rope.factor == 8.0);
  CHECK(rope3->head_dim == 16);
}

TEST_CASE("a field that would change the mathematics is a named error") {
  struct Case {
    const char* field;
    Json value;
  };
  for (const Case& c : {Case{"hidden_act", "gelu"}, Case{"sliding_window", 8}, Case{"partial_rotary_factor", 0.5},
                        Case{"logit_scale", 2.0}, Case{"model_type", "mamba"}, Case{"num_key_value_heads", 3},
                        Case{"attention_multiplier", 0.5}, Case{"head_dim", "12"}}) {
    Json config = config_file("llama/config.json");
    config[c.field] = c.value;
    const auto read = model_config_from_hf(config);
    INFO(c.field);
    REQUIRE(!read.ok());
    CHECK(read.status().code() == Code::invalid);
    CHECK((read.status().message().find(c.field) != std::string::npos ||
           read.status().message().find("kv heads") != std::string::npos));
  }
  Json yarn = config_file("llama/config.json");
  yarn["rope_parameters"]["rope_type"] = "yarn";
  const auto read = model_config_from_hf(yarn);
  REQUIRE(!read.ok());
  CHECK(read.status().message().find("yarn") != std::string::npos);
}

TEST_CASE("descriptors that do not exist are refused with what does") {
  for (const char* text :
       {"", "gpt", "gpt2:", "gpt2:d13", "gpt2:0x32", "llama", "llama:4", "llama:4x", "llama:4x-1", "char"}) {
    INFO(text);
    CHECK(!model_config_from_descriptor(text, 0).ok());
  }
}

TEST_CASE("groups hold every element of every tensor exactly once, matrices first, padded for the ranks") {
  for (const ModelConfig& config : {descriptor("gpt2:2x48", 61), descriptor("llama:2x64", 67),
                                    descriptor("qwen3:3x32", 50), descriptor("char", 65)}) {
    const auto tensors = logical_tensors(config);
    for (int dp : {1, 2, 3, 4}) {
      const auto groups = param_groups(config, {.dp = dp}, 0);
      CHECK(groups.size() == static_cast<size_t>(config.layers) + 2);
      std::vector<int64_t> seen(tensors.size(), 0);
      for (const Group& group : groups) {
        CHECK(group.elems % (kGroupBlock * dp) == 0);
        int64_t end = 0;
        for (const Param& param : group.params) {
          CHECK(param.offset >= end);
          CHECK(param.offset % 16 == 0);
          end = param.offset + elems_of(param.shape);
          CHECK(param.decay == (param.offset < group.decay_elems));
        }
        CHECK(end <= group.elems);
        // The slices of the ranks cover each tensor's elements once.
        for (int rank = 0; rank < dp; ++rank)
          for (const StoredBox& stored : stored_boxes(group, group.elems / dp * rank, group.elems / dp * (rank + 1)))
            seen[stored.logical] += elems_of(stored.box.extent);
      }
      for (size_t i = 0; i < tensors.size(); ++i) CHECK(seen[i] == elems_of(tensors[i].shape));
    }
  }
}

TEST_CASE("a stored box says where its elements lie") {
  // Number the elements of each tensor, lay them out by the boxes of the whole group, and read them back by those of
  // odd slices.
  const ModelConfig config = descriptor("gpt2:1x32", 11);
  const auto tensors = logical_tensors(config);
  const auto groups = param_groups(config, {}, 0);
  for (const Group& group : groups) {
    std::vector<int64_t> flat(static_cast<size_t>(group.elems), -1);
    const auto each = [&](const StoredBox& stored, auto&& f) {
      const Shape& shape = tensors[stored.logical].shape;
      const int64_t width = stored.box.extent.back(), row_count = elems_of(stored.box.extent) / width;
      for (int64_t row = 0; row < row_count; ++row)
        for (int64_t column = 0; column < width; ++column) {
          const int64_t at_row = shape.size() > 1 ? stored.box.offset[0] + row : 0;
          f(stored.offset + row * stored.row_stride + column,
            stored.logical * 1'000'000 + at_row * shape.back() + stored.box.offset.back() + column);
        }
    };
    for (const StoredBox& stored : stored_boxes(group, 0, group.elems))
      each(stored, [&](int64_t at, int64_t value) { flat[at] = value; });
    for (int64_t begin = 0; begin < group.elems; begin += 977)
      for (const StoredBox& stored : stored_boxes(group, begin, std::min(group.elems, begin + 977)))
        each(stored, [&](int64_t at, int64_t value) {
          CHECK(at >= begin);
          CHECK(at < begin + 977);
          CHECK(flat[at] == value);
        });
  }
}

TEST_CASE("boxes of a range tile it in order") {
  const Shape shape = {3, 4, 5};
  for (int64_t begin = 0; begin <= 60; ++begin)
    for (int64_t end = begin; end <= 60; ++end) {
      int64_t at = begin;
      const auto boxes = boxes_of_range(shape, begin, end);
      CHECK(boxes.size() <= 5);
      for (const Box& box : boxes) {
        const int64_t first = (box.offset[0] * 4 + box.offset[1]) * 5 + box.offset[2];
        CHECK(first == at);
        at += elems_of(box.extent);
      }
      CHECK(at == end);
    }
}

TEST_CASE("splits and schedules") {
  int64_t at = 0;
  for (int64_t part = 0; part < 5; ++part) {
    const Range range = split_range(12, 5, part);
    CHECK(range.begin == at);
    CHECK(range.size() == (part < 2 ? 3 : 2));
    at = range.end;
  }
  CHECK(at == 12);
  const auto actions = schedule_single_chunk(2);
  REQUIRE(actions.size() == 4);
  CHECK(actions[0].kind == Action::Kind::forward);
  CHECK(actions[1].kind == Action::Kind::backward);
  CHECK(actions[3].micro_batch == 1);
}

TEST_CASE("layouts that this release cannot run are refused by name") {
  CHECK(check(Parallel{.dp = 2}, 2).ok());
  CHECK(check(Parallel{.dp = 2, .shards = 4}, 2).ok());
  CHECK(!check(Parallel{.dp = 2}, 3).ok());
  CHECK(!check(Parallel{.dp = 3, .shards = 4}, 3).ok());
  CHECK(!check(Parallel{.dp = 2, .shards = 6}, 2).ok());
  CHECK(!check(Parallel{.dp = 1, .tp = 2}, 1).ok());
  CHECK(!check(Parallel{.dp = 1, .zero = 3}, 1).ok());
}

TEST_CASE("plan.toml: values, and unknown keys with place and nearest name") {
  const auto plan =
      plan_from_toml("plan.toml",
                     "[model]\ndescriptor = \"gpt2:d12\"\n[parallel]\ndp = 4\nzero = 1\nshards = "
                     "8\n[train]\nglobal_batch = 64\nseq = 1024\n"
                     "dtype = \"bf16\"\n[checkpoint]\nsave_every = 100\n[cost]\nprice_per_device_hour = 2.5\n");
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  CHECK(plan->model == "gpt2:d12");
  CHECK(plan->parallel.dp == 4);
  CHECK(plan->parallel.shards == 8);
  CHECK(plan->global_batch == 64);
  CHECK(plan->price_per_device_hour == 2.5);
  const auto typo = plan_from_toml("plan.toml", "[train]\nglobal_bach = 64\n");
  REQUIRE(!typo.ok());
  CHECK(typo.status().code() == Code::usage);
  CHECK(typo.status().message().find("plan.toml:2:1") != std::string::npos);
  CHECK(typo.status().message().find("train.global_batch") != std::string::npos);
  CHECK(!plan_from_toml("plan.toml", "[parallel]\ndp = 0\n").ok());
  CHECK(!plan_from_toml("plan.toml", "[parallel]\ndp = \"4\"\n").ok());
  CHECK(!plan_from_toml("plan.toml", "[tran]\nseq = 4\n").ok());
}

TEST_CASE("the activation table counts what a block keeps") {
  const ModelConfig config = descriptor("gpt2");
  const int64_t n = 256;
  // residual, norm1, qkv (3d), attention, mid, norm2: 8 d; two MLP tensors of 4 d; f32 statistics 4, logsumexp h.
  CHECK(bytes_of_rows(block_activations(config, n), DType::f32) == n * (16 * 768 + 4 + 12) * 4);
  CHECK(bytes_of_rows(block_activations(config, n), DType::bf16) == n * (16 * 768 * 2 + (4 + 12) * 4));
}
