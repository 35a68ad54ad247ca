// llmops train: the options, and what follows from them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cmds/command.h"
#include "data/dataset.h"
#include "train/run.h"

namespace llmops::train_command_detail {

enum class Resume : uint8_t { none, automatic };

// Values that depend on the model, the ranks or the plan are left out here; apply_plan(), resolve() and resolve_model()
// fill them, so that run.toml and the JSON echo hold what the run used.
struct Options {
  std::string model = "char";
  std::string init_from;
  std::string plan;
  std::vector<std::string> data;
  std::vector<std::string> val_data;
  DataFormat data_format = DataFormat::detect;
  std::optional<std::string> tokenizer;
  std::string text_field = "text";
  double val_fraction = 0.1;

  int64_t steps = 1000;
  std::optional<int64_t> batch, micro_batch, seq;
  int64_t seed = 1;
  std::optional<int64_t> ranks, threads, zero;
  std::string device = "auto";
  int64_t shards = 0;
  DType dtype = DType::f32;

  std::optional<double> lr, lr_min;
  std::optional<int64_t> warmup;
  LrShape lr_schedule = LrShape::cosine;
  double decay_fraction = 0.2;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, clip = 1.0;

  int64_t val_every = 0, val_windows = 0;
  std::string out;
  int64_t save_every = 0, keep = 0;
  Resume resume = Resume::none;
  std::optional<double> max_time_s;
  double deadline_s = 60;
  bool tensorboard = false;
  int64_t log_every = 1;
  bool dry_run = false;
};

void declare(Options& options, OptionTable& table);

// The values of --plan go to the options that nobody gave: flags > environment > llmops.toml > plan.toml > default.
// Returns the layout of the plan.
Result<Parallel> apply_plan(Options& options, const OptionTable& table);
// The parts of the options that need no data: defaults, cross checks, the layout for `world` ranks.
Result<TrainOptions> resolve(Options& options, const Parallel& parallel, int world);
// The model, once the vocabulary is known, and what follows from it.
Status resolve_model(Options& options, const Corpus& corpus, TrainOptions* train);
// What --data and its relatives mean. After resolve().
DataOptions data_options(const Options& options);

}  // namespace llmops::train_command_detail
