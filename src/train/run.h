// A training run: data, steps, validation, checkpoints, and how it ends.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/save.h"
#include "ckpt/steps.h"
#include "data/dataset.h"
#include "train/lr.h"
#include "train/step.h"

namespace llmops {

struct TrainOptions {
  ModelConfig model;
  std::string init_from;  // HF directory or step folder whose weights the run starts with; "": from the seed
  int64_t steps = 1000;
  int64_t batch = 12;       // windows of all ranks together
  int64_t micro_batch = 0;  // windows per forward; 0: as many as fit kMicroTokens, at least 1
  int64_t seq = 64;         // tokens of a window
  uint64_t seed = 1;
  Parallel parallel;
  bool joins_shards = false;  // small shards share a forward and a backward: where a row's bits do not depend on others
  DType dtype = DType::f32;
  LrSchedule lr;
  AdamwOptions adamw;
  int64_t val_every = 0;    // steps; 0: only at the end
  int64_t val_windows = 0;  // 0: kValWindows, or all there are
  std::string out;          // run folder; "": nothing is kept
  int64_t save_every = 0;   // steps; 0: only the last
  int64_t keep = 0;         // newest steps that stay; 0: all
  std::string resume_from;  // step folder to go on from, as prepare_run() found it; "": from the start
  double max_time_s = 0;    // save and stop after this long; 0: no limit
  double start_s = 0;       // monotonic_s() at the start of the process, for max_time_s
  bool tensorboard = false;
};

constexpr int64_t kMicroTokens = 8192;
constexpr int64_t kValWindows = 256;

// One step as people and machines see it.
struct StepRecord {
  int64_t step = 0;  // steps done
  double loss = 0, grad_norm = 0, lr = 0;
  double step_ms = 0, data_ms = 0, comm_ms = 0, stall_ms = 0;  // stall: held by a checkpoint
  double tokens_per_s = 0, flops_per_s = 0, mfu = 0;
  double eta_s = 0;
  int64_t tokens = 0;  // seen in all
  std::optional<double> val_loss;
};
Json to_json(const StepRecord& record);

// What a run will be, before its first step.
struct TrainPlan {
  int64_t params = 0, tokens_per_step = 0, start_step = 0, micro_batch = 0;
  int64_t windows = 0;     // of a rank in a step, of the one with the most
  int shards_at_once = 1;  // in a micro-batch
  int64_t train_tokens = 0, val_tokens = 0, windows_per_epoch = 0;
  double flops_per_step = 0;
  double peak_flops_per_s = 0;  // MFU's denominator (train/peak.h), all ranks; 0: none is known
  int64_t checkpoint_bytes = 0;
  std::vector<std::pair<std::string, int64_t>> memory_bytes;  // per rank, by category
  bool finished = false;                                      // the step resumed from is the last one
};

struct TrainSummary {
  bool started = false;                 // set-up worked: the rest says something
  int64_t steps = 0, tokens = 0;  // done by this process
  double wall_s = 0, step_ms_median = 0, step_ms_p95 = 0;
  double final_loss = 0;
  std::optional<double> val_loss;
  std::string last_checkpoint;  // "" when none was saved
  double save_stall_s = 0, save_drain_s = 0;
  bool finished = false;  // all steps are done
  std::vector<std::pair<std::string, int64_t>> memory_peak_bytes;
};

// Told of events on rank 0, in the thread that trains.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual Status on_plan(const TrainPlan& plan) = 0;
  virtual Status on_step(const StepRecord& record) = 0;
  virtual void on_save(const SaveReport& report) = 0;
};

// Before the ranks start, once per run: takes the lock of `out` (held as long as the result lives), removes leftovers
// of unfinished saves, and finds the step to go on from. With resume false a folder that holds steps is Code::usage.
// Notes say what was skipped.
struct PreparedRun {
  std::optional<RunLock> lock;
  std::string resume_from;
  std::vector<std::string> notes;
};
Result<PreparedRun> prepare_run(const std::string& out, bool resume, Pool& pool);

// Collective over the ranks of comm. Code::interrupted: stopped by a signal or the time limit after saving.
// Code::finding: the loss or a gradient was not finite; weights are those of the last good step. Code::io: a checkpoint
// could not be written. `summary` is filled however the run ends.
Status train_run(Device& device, Communicator& comm, const Corpus& corpus, const TrainOptions& options,
                 TrainObserver& observer, TrainSummary* summary);

// The parameters, memory, FLOPs and checkpoint size of a run, from layout alone.
TrainPlan plan_of(const TrainOptions& options, int world);

}  // namespace llmops
