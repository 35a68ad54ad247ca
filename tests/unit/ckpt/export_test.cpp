// A step exported as a Hugging Face directory reads back bit for bit; what cannot be exported says so.
#include "ckpt/export.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "ckpt/safetensors.h"
#include "support/scratch.h"
#include "unit/ckpt/tiny_run.h"

using namespace llmops;
using namespace llmops::testing;

namespace {

struct Saved {
  Scratch run;
  std::unique_ptr<Checkpoint> checkpoint;
  explicit Saved(const ModelConfig& config, std::vector<StoredFile> files = {}) {
    save_ok(run.path(), config, 3, 1, 0, std::move(files));
    auto opened = Checkpoint::open(run.path(step_name(1)));
    REQUIRE_MESSAGE(opened.ok(), opened.status().message());
    checkpoint = opened.take();
  }
};

// Elements of the exported weights that are not the saved ones, rounded to dtype; biases that were added must be 0.
int64_t wrong_weights(const TensorSource& source, const TensorSource& saved, DType dtype) {
  int64_t wrong = 0;
  for (size_t t = 0; t < source.tensors().size(); ++t) {
    const LogicalTensor& tensor = source.tensors()[t];
    const bool was_saved =
        std::ranges::find(saved.tensors(), tensor.name, &LogicalTensor::name) != saved.tensors().end();
    std::vector<float> values(static_cast<size_t>(elems_of(tensor.shape)), 99.0f);
    REQUIRE(source
                .read(StateKind::weight, static_cast<int>(t), whole(tensor.shape), DType::f32, values.data(),
                      tensor.shape.back())
                .ok());
    for (size_t i = 0; i < values.size(); ++i) {
      const float exact = was_saved ? value_of(tensor.name, static_cast<int64_t>(i), 0) : 0.0f;
      wrong += values[i] != (dtype == DType::bf16 ? to_f32(to_bf16(exact)) : exact);
    }
  }
  return wrong;
}

ModelConfig exported_form(ModelConfig config) {
  if (config.family == Family::gpt2) config.norm_bias = config.qkv_bias = config.out_bias = config.mlp_bias = true;
  return config;
}

}  // namespace

TEST_CASE("export, then open_hf: the same config, the same bits; f32 and bf16, one file and several") {
  ModelConfig scaled = tiny_config(Family::llama, 8, 2);
  scaled.rope.scaling = RopeScaling::llama3;
  scaled.rope.theta = 500000;
  scaled.rope.factor = 8;
  scaled.rope.original_positions = 16;
  scaled.eos_ids = {2, 3};
  scaled.bos_id = 1;
  ModelConfig char_like = tiny_config(Family::gpt2, 8, 2);
  char_like.norm_bias = char_like.qkv_bias = char_like.out_bias = char_like.mlp_bias = false;
  ModelConfig untied = tiny_config(Family::gpt2, 8, 1);
  untied.tied_head = false;
  untied.mlp = MlpKind::gelu_erf;
  for (const ModelConfig& config : {tiny_config(Family::gpt2, 8, 2), char_like, untied,
                                    tiny_config(Family::llama, 8, 2), scaled, tiny_config(Family::qwen3, 8, 2)}) {
    const Saved saved(config);
    for (DType dtype : {DType::f32, DType::bf16})
      for (int64_t shard_bytes_max : {kHfShardBytesMax, int64_t{1000}}) {
        const std::string out = saved.run.path(fmt::format("hf-{}-{}", info(dtype).name, shard_bytes_max));
        int64_t last = 0;
        const auto report = export_hf(
            *saved.checkpoint, out, dtype, [&](int64_t done, int64_t) { last = done; }, shard_bytes_max);
        REQUIRE_MESSAGE(report.ok(), report.status().message());
        CHECK(report->tensors == static_cast<int64_t>(hf_tensors(exported_form(config)).size()));
        CHECK(report->bytes == last);
        CHECK_FALSE(report->has_tokenizer);
        const bool is_sharded = std::filesystem::exists(out + "/model.safetensors.index.json");
        CHECK(is_sharded == (shard_bytes_max == 1000));
        const auto source = open_hf(out);
        REQUIRE_MESSAGE(source.ok(), source.status().message());
        CHECK((*source)->config() == exported_form(config));
        CHECK(wrong_weights(**source, *saved.checkpoint, dtype) == 0);
        for (const auto& file : std::filesystem::directory_iterator(out)) {
          if (file.path().extension() != ".safetensors") continue;
          const auto opened = File::open(file.path());
          const auto header = read_safetensors_header(*opened);
          REQUIRE(header.ok());
          CHECK(header->metadata.dump() == R"({"format":"pt"})");
          CHECK((header->tensors.size() == 1 || header->tensors.back().end - header->data_begin <= shard_bytes_max));
        }
      }
  }
}

TEST_CASE("the files of a GPT-2 tokenizer go along, other files do not") {
  const std::string vocab = "{\"a\":0}", merges = "#version: 0.2\n";
  const Saved saved(tiny_config(Family::llama, 4, 1),
                    {{"vocab.json", vocab}, {"merges.txt", merges}, {"config.json.bak", "x"}});
  const std::string out = saved.run.path("hf");
  const auto report = export_hf(*saved.checkpoint, out, DType::f32);
  REQUIRE(report.ok());
  CHECK(report->has_tokenizer);
  CHECK(*read_file(out + "/vocab.json") == vocab);
  CHECK(*read_file(out + "/merges.txt") == merges);
  CHECK(read_file(out + "/tokenizer_config.json")->find("GPT2Tokenizer") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(out + "/config.json.bak"));
  int64_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(out)) ++files;
  CHECK(report->files == files);
}

TEST_CASE("a folder in use, a type that is not for weights, a model that Hugging Face cannot say") {
  const Saved saved(tiny_config(Family::gpt2, 4, 1));
  saved.run.put("used/file", "");
  CHECK(export_hf(*saved.checkpoint, saved.run.path("used"), DType::f32).status().code() == Code::usage);
  CHECK(export_hf(*saved.checkpoint, saved.run.path("used/file"), DType::f32).status().code() == Code::io);
  CHECK(export_hf(*saved.checkpoint, saved.run.path("new"), DType::i32).status().code() == Code::usage);
  CHECK_FALSE(std::filesystem::exists(saved.run.path("new")));

  ModelConfig interleaved = tiny_config(Family::llama, 4, 1);
  interleaved.rope.interleaved = true;
  const Saved odd(interleaved);
  const Status status = export_hf(*odd.checkpoint, odd.run.path("hf"), DType::f32).status();
  CHECK(status.code() == Code::invalid);
  CHECK_MESSAGE(status.message().find("no Hugging Face form") != std::string::npos, status.message());
  CHECK(std::filesystem::is_empty(odd.run.path("hf")));

  // A shard that got lost: what was written before is removed.
  const Saved broken(tiny_config(Family::llama, 8, 1));
  const std::string path = broken.run.path("step-00000001/shard-00001.safetensors");
  std::filesystem::resize_file(path, 500);
  CHECK_FALSE(export_hf(*broken.checkpoint, broken.run.path("hf"), DType::f32, {}, 200).ok());
  CHECK(std::filesystem::is_empty(broken.run.path("hf")));
}
