#include "cmds/train_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/run.h"
#include "ckpt/source.h"
#include "cmds/device_option.h"
#include "layout/plan.h"

namespace llmops::train_command_detail {
namespace {

// Defaults of the recipe that goes with a model: nanoGPT's CPU recipe for `char`, a small batch for the rest.
struct Recipe {
  int64_t batch, seq;
  double lr;
};
constexpr int64_t kWarmupSteps = 100;

Recipe recipe_of(const std::string& model) {
  if (model == "char") return {12, 64, 1e-3};
  return {8, 256, 3e-4};
}

bool is_descriptor(const std::string& model) {
  return model.find('/') == std::string::npos && !model.ends_with(".json");
}

Result<ModelConfig> config_from_file(const std::string& path) {
  LLMOPS_ASSIGN(const std::string text, read_file(path, 1 << 20));
  auto json = json_parse(text);
  if (!json.ok()) return json.status().in(path);
  auto config = model_config_from_hf(*json);
  if (!config.ok()) return config.status().in(path);
  return config;
}

Status check_plan(const Plan& plan) {
  if (!plan.recompute.empty() && plan.recompute != "none")
    return usage_error(fmt::format("train.recompute is \"{}\", this release has none", plan.recompute));
  if (!plan.schedule.empty() && plan.schedule != "none")
    return usage_error(fmt::format("train.schedule is \"{}\", this release has none (no pipeline)", plan.schedule));
  if (!plan.dtype.empty() && plan.dtype != "f32" && plan.dtype != "bf16")
    return usage_error(fmt::format("train.dtype is \"{}\", expected f32 or bf16", plan.dtype));
  return {};
}

// Options that were left out get the value that goes with the model and the ranks.
void fill_defaults(Options& o, int world) {
  const auto fill = [](auto& field, auto value) { field = field.value_or(value); };
  const Recipe recipe = recipe_of(o.model);
  fill(o.batch, recipe.batch);
  fill(o.seq, recipe.seq);
  fill(o.lr, recipe.lr);
  fill(o.lr_min, *o.lr / 10);
  fill(o.warmup, std::min(kWarmupSteps, o.steps / 10));
  fill(o.tokenizer, o.model == "char" ? "char" : "byte");
  fill(o.zero, 1);
  fill(o.threads, std::max(1, usable_cores() / world));
  o.ranks = world;
}

}  // namespace

void declare(Options& o, OptionTable& t) {
  t.section("Model");
  t.text("model", &o.model,
         "built-in descriptor (char, gpt2:d12, gpt2:LxD, llama:LxD, qwen3:LxD) or path of a Hugging Face config.json");
  t.path("init-from", &o.init_from,
         "start with the weights of a Hugging Face directory, a step folder or a run folder (newest valid step)")
      .meta("DIR");
  t.path("plan", &o.plan, "plan.toml with model, layout and sizes; flags, environment and llmops.toml override it")
      .meta("FILE");
  t.section("Data");
  t.list("data", &o.data,
         "text (.gz, .zst, - for stdin), jsonl, llm.c .bin, nanoGPT u16, Megatron .idx; files, folders, globs")
      .meta("PATH");
  t.list("val-data", &o.val_data, "validation data; else the end of the training data").meta("PATH");
  t.choice("data-format", &o.data_format,
           {{"detect", DataFormat::detect},
            {"text", DataFormat::text},
            {"jsonl", DataFormat::jsonl},
            {"llmc", DataFormat::llmc},
            {"u16", DataFormat::u16},
            {"megatron", DataFormat::megatron}},
           "format of the data");
  t.text("tokenizer", &o.tokenizer,
         "byte, char, or the path of a GPT-2 tokenizer (tokenizer.json, vocab.json, or their folder)")
      .otherwise("char for --model char, else byte");
  t.text("text-field", &o.text_field, "field of a jsonl record that holds the text").meta("NAME");
  t.real("val-fraction", &o.val_fraction, 0, 0.9, "part of the data, at its end, that validates");
  t.section("Steps");
  t.integer("steps", &o.steps, 0, int64_t{1} << 40, "optimizer steps");
  t.integer("batch", &o.batch, 1, 1 << 30, "windows per step, all ranks together").otherwise("12 for char, else 8");
  t.integer("micro-batch", &o.micro_batch, 1, 1 << 30, "windows per forward and backward; the rest is accumulated")
      .otherwise("as many as fit 8192 tokens");
  t.integer("seq", &o.seq, 1, 1 << 24, "tokens of a window").otherwise("64 for char, else 256");
  t.integer("seed", &o.seed, 0, int64_t{1} << 62, "seed of weights and sample order");
  t.choice("dtype", &o.dtype, {{"f32", DType::f32}, {"bf16", DType::bf16}},
           "weights and activations; bf16 keeps f32 master weights");
  t.section("Parallel layout");
  declare_device(&o.device, t);
  t.integer("ranks", &o.ranks, 1, kRanksMax, "processes on this machine that share the batch").otherwise("1");
  t.integer("threads", &o.threads, 1, 1024, "threads per rank").otherwise("usable cores / ranks");
  t.integer("shards", &o.shards, 0, 1 << 20,
            "virtual shards of a batch's gradient, a power of two that the ranks divide: bits then do not "
            "depend on the ranks")
      .otherwise("as many as ranks");
  t.integer("zero", &o.zero, 0, 1, "ZeRO stage: 1 shards the optimizer over the ranks, 0 replicates it").otherwise("1");
  t.duration("deadline", &o.deadline_s, "longest wait for a rank in one collective, or for a CUDA device that comes no further");
  t.section("Optimizer");
  t.real("lr", &o.lr, 0, 1e3, "peak learning rate").otherwise("1e-3 for char, else 3e-4");
  t.real("lr-min", &o.lr_min, 0, 1e3, "learning rate at the end").otherwise("lr / 10");
  t.integer("warmup", &o.warmup, 0, int64_t{1} << 40, "steps of linear warm-up")
      .otherwise("100, at most a tenth of the steps");
  t.choice("lr-schedule", &o.lr_schedule,
           {{"constant", LrShape::constant},
            {"linear", LrShape::linear},
            {"cosine", LrShape::cosine},
            {"wsd", LrShape::wsd}},
           "shape after warm-up");
  t.real("decay-fraction", &o.decay_fraction, 0, 1, "wsd: the last part of the steps, in which the rate falls");
  t.real("beta1", &o.beta1, 0, 0.999999, "AdamW: decay of the first moment");
  t.real("beta2", &o.beta2, 0, 0.999999999, "AdamW: decay of the second moment");
  t.real("eps", &o.eps, 1e-30, 1, "AdamW: epsilon");
  t.real("weight-decay", &o.weight_decay, 0, 100, "AdamW: decay of matrices");
  t.real("clip", &o.clip, 0, 1e9, "largest gradient norm; 0 does not clip");
  t.section("Validation and checkpoints");
  t.integer("val-every", &o.val_every, 0, int64_t{1} << 40, "steps between validations; 0: at the end only");
  t.integer("val-windows", &o.val_windows, 0, int64_t{1} << 40, "windows of a validation; 0: up to 256");
  t.path("out", &o.out, "run folder: checkpoints, metrics.jsonl, run.toml").meta("DIR");
  t.integer("save-every", &o.save_every, 0, int64_t{1} << 40, "steps between checkpoints; 0: the last step only");
  t.integer("keep", &o.keep, 0, 1 << 20, "newest checkpoints that stay; 0: all");
  t.choice("resume", &o.resume, {{"none", Resume::none}, {"auto", Resume::automatic}},
           "auto: go on from the newest valid step of --out");
  t.duration("max-time", &o.max_time_s, "save and stop with exit code 75 after this long");
  t.flag("tensorboard", &o.tensorboard, "write TensorBoard events to --out");
  t.section("Output");
  t.integer("log-every", &o.log_every, 1, int64_t{1} << 40, "steps between lines on a table; machines get every step");
  t.flag("dry-run", &o.dry_run, "say what the run would need and do nothing");
}

DataOptions data_options(const Options& o) {
  return {.paths = o.data,
          .val_paths = o.val_data,
          .val_fraction = o.val_fraction,
          .format = o.data_format,
          .tokenizer = *o.tokenizer,
          .text_field = o.text_field,
          .vocab_size = 0};
}

Result<Parallel> apply_plan(Options& o, const OptionTable& table) {
  if (o.plan.empty()) return Parallel();
  LLMOPS_ASSIGN(const Plan plan, plan_from_file(o.plan));
  LLMOPS_TRY(check_plan(plan).in(o.plan));
  const auto take = [&](std::string_view option, const auto& value, auto* field) {
    if (value != std::decay_t<decltype(value)>() && !table.given(option)) *field = value;
  };
  take("model", plan.model, &o.model);
  take("seq", plan.seq, &o.seq);
  take("batch", plan.global_batch, &o.batch);
  take("micro-batch", plan.micro_batch, &o.micro_batch);
  take("save-every", plan.save_every, &o.save_every);
  take("keep", plan.keep, &o.keep);
  take("out", plan.checkpoint_dir, &o.out);
  take("shards", plan.parallel.shards, &o.shards);
  if (plan.parallel.dp > 1) take("ranks", plan.parallel.dp, &o.ranks);
  if (!table.given("zero")) o.zero = plan.parallel.zero;
  if (!plan.dtype.empty() && !table.given("dtype")) o.dtype = plan.dtype == "bf16" ? DType::bf16 : DType::f32;
  o.plan.clear();  // all it says is in the options now: run.toml repeats the run without the plan
  return plan.parallel;
}

Result<TrainOptions> resolve(Options& o, const Parallel& parallel, int world) {
  if (std::ranges::find(o.data, "") != o.data.end()) return usage_error("--data is an empty name");
  if (o.data.empty()) return usage_error("--data is missing; expected a file, a folder or - for stdin");
  if (o.deadline_s == 0) return usage_error("--deadline is 0, expected a time to wait");
  fill_defaults(o, world);
  TrainOptions t;
  t.init_from = o.init_from;
  t.steps = o.steps;
  t.batch = *o.batch;
  t.micro_batch = o.micro_batch.value_or(0);
  t.seq = *o.seq;
  t.seed = static_cast<uint64_t>(o.seed);
  t.parallel = parallel;
  t.parallel.dp = world;
  t.parallel.zero = static_cast<int>(*o.zero);
  t.parallel.shards = static_cast<int>(o.shards);
  LLMOPS_TRY(check(t.parallel, world));
  const int64_t shards = std::max(t.parallel.shards, world);
  if (t.batch < shards)
    return usage_error(fmt::format("--batch is {}, expected at least one window for each of {} {}", t.batch, shards,
                                   shards > world ? "shards" : "ranks"));
  t.dtype = o.dtype;
  t.lr = {.shape = o.lr_schedule,
          .lr = *o.lr,
          .lr_min = *o.lr_min,
          .warmup_steps = *o.warmup,
          .steps = o.steps,
          .decay_fraction = o.decay_fraction};
  if (*o.lr_min > *o.lr) return usage_error(fmt::format("--lr-min is {}, expected at most --lr, {}", *o.lr_min, *o.lr));
  t.adamw = {.beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps, .weight_decay = o.weight_decay, .clip = o.clip};
  t.val_every = o.val_every;
  t.val_windows = o.val_windows;
  t.out = o.out;
  t.save_every = o.save_every;
  t.keep = o.keep;
  t.max_time_s = o.max_time_s.value_or(0);
  t.tensorboard = o.tensorboard;
  if (o.out.empty()) {
    if (o.resume == Resume::automatic) return usage_error("--resume needs --out: the folder that holds the steps");
    if (o.save_every > 0) return usage_error("--save-every needs --out: a folder to save to");
    if (o.max_time_s) return usage_error("--max-time needs --out: a folder to save to");
    if (o.tensorboard) return usage_error("--tensorboard needs --out: a folder to write to");
  }
  return t;
}

Status resolve_model(Options& o, const Corpus& corpus, TrainOptions* t) {
  const int64_t vocab = corpus.vocab_size();
  if (!o.init_from.empty()) {
    LLMOPS_ASSIGN(const std::unique_ptr<TensorSource> source, open_weights(o.init_from));
    t->model = source->config();
  } else if (is_descriptor(o.model)) {
    const bool own_vocab = corpus.tokenizer().has_value() || o.model == "char";
    LLMOPS_ASSIGN(t->model, model_config_from_descriptor(o.model, own_vocab ? vocab : 0));
  } else {
    LLMOPS_ASSIGN(t->model, config_from_file(o.model));
  }
  if (vocab > t->model.vocab)
    return invalid_error(
        fmt::format("data: token ids reach {}, the model's vocabulary is {}", vocab - 1, t->model.vocab));
  if (t->seq > t->model.positions) {
    if (t->model.learned_positions && o.model != "char")
      return usage_error(fmt::format("--seq is {}, the model has {} positions", t->seq, t->model.positions));
    t->model.positions = t->seq;
  }
  if (corpus.tokenizer() && corpus.tokenizer()->eos() && t->model.eos_ids.empty())
    t->model.eos_ids = {*corpus.tokenizer()->eos()};
  o.micro_batch = t->micro_batch = plan_of(*t, t->parallel.dp).micro_batch;
  return {};
}

}  // namespace llmops::train_command_detail
