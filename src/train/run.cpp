#include "train/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/run.h"
#include "base/text.h"
#include "layout/schedule.h"
#include "train/meta.h"
#include "train/metrics.h"
#include "train/peak.h"
#include "train/persist.h"

namespace llmops {

namespace {

constexpr double kSaveDeadline_s = 600;  // for the slowest rank's shard

class Run {
 public:
  Run(Device& device, Communicator& comm, const Corpus& corpus, const TrainOptions& options, TrainObserver& observer,
      TrainSummary* summary)
      : device_(device),
        comm_(comm),
        corpus_(corpus),
        o_(options),
        observer_(observer),
        summary_(*summary),
        plan_(plan_of(options, comm.world())) {}

  Status go() {
    const Status status = set_up_and_run();
    return status.code() == Code::peer ? with_last_checkpoint(status) : status;
  }

 private:
  bool root() const { return comm_.rank() == 0; }
  int shards() const { return std::max(o_.parallel.shards, comm_.world()); }

  Status set_up_and_run() {
    LLMOPS_TRY(set_up());
    LLMOPS_TRY(resume_or_init());
    if (root()) LLMOPS_TRY(observer_.on_plan(plan_));
    summary_.started = true;
    const double start_s = monotonic_s();
    Status status = plan_.finished ? save_untrained() : loop();
    if (status.ok() || status.code() == Code::interrupted) {
      if (Status saved = finish_save(); !saved.ok()) status = saved;
    }
    // Where the records go has failed, and the run was saved for that.
    if (status.ok() && !report_status_.ok()) status = with_last_checkpoint(report_status_);
    summary_.wall_s = monotonic_s() - start_s;
    summarize();
    if (status.ok() || agreed_) leave_together();
    return status;
  }

  Status set_up() {
    const int passes = shards() / comm_.world() / plan_.shards_at_once;
    LLMOPS_ASSIGN(state_, TrainState::make(device_, comm_, o_.model, o_.parallel, o_.dtype, passes));
    LLMOPS_ASSIGN(trainer_, Trainer::make(device_, comm_, *state_, {.micro_batch = plan_.micro_batch,
                                                                     .seq = o_.seq,
                                                                     .windows = plan_.windows,
                                                                     .shards_at_once = plan_.shards_at_once}));
    plan_.train_tokens = corpus_.tokens(Split::train);
    plan_.val_tokens = corpus_.tokens(Split::val);
    LLMOPS_ASSIGN(order_, SampleOrder::create(plan_.train_tokens, o_.seq, o_.seed));
    plan_.windows_per_epoch = order_.windows_per_epoch();
    const double peak = device_.kind() == DeviceKind::cpu ? measure_matmul_flops_per_s(device_)
                                                          : gpu_peak_flops_per_s(device_.name(), o_.dtype);
    plan_.peak_flops_per_s = peak * comm_.world();
    LLMOPS_ASSIGN(vote_, device_.alloc(sizeof(double), Category::transient));
    LLMOPS_ASSIGN(host_vote_, HostSide::of(device_, vote_));
    if (!o_.out.empty()) saver_ = std::make_unique<ShardSaver>(o_.out, real_fs(), kSaveDeadline_s, staging_of(device_));
    return {};
  }

  Status resume_or_init() {
    if (!o_.resume_from.empty()) {
      LLMOPS_ASSIGN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(o_.resume_from));
      LLMOPS_TRY(check_resume(*checkpoint, o_, corpus_, shards(), root()));
      LLMOPS_TRY(restore(*state_, *checkpoint, true, device_));
      step_ = saved_step_ = checkpoint->step();
      summary_.last_checkpoint = o_.resume_from;
    } else if (!o_.init_from.empty()) {
      LLMOPS_ASSIGN(const std::unique_ptr<TensorSource> source, open_weights(o_.init_from));
      LLMOPS_TRY(restore(*state_, *source, false, device_));
    } else {
      LLMOPS_TRY(state_->init_weights(o_.seed));
    }
    plan_.start_step = step_;
    plan_.finished = step_ >= o_.steps;
    samples_ = step_ * o_.batch;
    if (root() && !o_.out.empty()) LLMOPS_TRY(open_logs());
    LLMOPS_TRY(trainer_->gather_weights());
    LLMOPS_TRY(comm_.barrier(device_.compute()));
    return device_.compute().sync();
  }

  // The first rank to end would abort the others in whatever they still finish.
  void leave_together() {
    if (!comm_.barrier(device_.compute()).ok() || !device_.compute().sync().ok())
      log(LogLevel::debug, "train: the group was gone at the end");
  }

  Status open_logs() {
    LLMOPS_ASSIGN(metrics_, MetricsFile::open(o_.out + "/metrics.jsonl", step_));
    if (o_.tensorboard) {
      LLMOPS_ASSIGN(events_, EventWriter::create(o_.out, wall_time_s()));
    }
    return {};
  }
  static double wall_time_s() { return static_cast<double>(unix_time_ms()) * 1e-3; }

  // The windows of my virtual shards: sample i of the run is the same whatever the layout.
  Result<std::vector<Windows>> my_windows() const {
    const int local = shards() / comm_.world();
    std::vector<Windows> windows(static_cast<size_t>(local));
    for (int i = 0; i < local; ++i) {
      const Range range = split_range(o_.batch, shards(), comm_.rank() * local + i);
      for (int64_t k = range.begin; k < range.end; ++k)
        LLMOPS_TRY(corpus_.read(Split::train, order_.offset(samples_ + k), windows[i].add(o_.seq + 1)));
    }
    return windows;
  }

  Flags flags() {
    Flags flags{};
    flags[static_cast<size_t>(Flag::cancel_signal)] = cancel_signal();
    flags[static_cast<size_t>(Flag::time_up)] = o_.max_time_s > 0 && monotonic_s() - o_.start_s > o_.max_time_s;
    flags[static_cast<size_t>(Flag::save_failed)] = !save_status_.ok();
    flags[static_cast<size_t>(Flag::report_failed)] = !report_status_.ok();
    return flags;
  }

  Status loop() {
    while (step_ < o_.steps) {
      collect_save();
      const double start_s = monotonic_s();
      LLMOPS_ASSIGN(const auto windows, my_windows());
      const double data_s = monotonic_s() - start_s, lr = learning_rate(o_.lr, step_);
      LLMOPS_ASSIGN(const StepResult result,
                    trainer_->step(windows, plan_.tokens_per_step, step_ + 1, lr, o_.adamw, flags()));
      if (!result.finite) return not_finite(result);
      ++step_;
      samples_ += o_.batch;
      StepRecord record = record_of(result, lr, monotonic_s() - start_s, data_s);
      const bool stop = result.flags[static_cast<size_t>(Flag::cancel_signal)] > 0 ||
                        result.flags[static_cast<size_t>(Flag::time_up)] > 0 ||
                        result.flags[static_cast<size_t>(Flag::report_failed)] > 0;
      const bool failed = result.flags[static_cast<size_t>(Flag::save_failed)] > 0;
      const bool last = step_ == o_.steps;
      if (!failed && ((o_.val_every > 0 && step_ % o_.val_every == 0) || last)) LLMOPS_TRY(validate(&record));
      if (!failed && !o_.out.empty() && (last || stop || (o_.save_every > 0 && step_ % o_.save_every == 0)))
        LLMOPS_TRY(save(&record));
      if (root() && report_status_.ok()) report_status_ = report(record);
      if (failed) return save_failure();
      if (stop && !last) return stopped(result);
    }
    return {};
  }

  StepRecord record_of(const StepResult& result, double lr, double step_s, double data_s) {
    step_ms_.push_back(step_s * 1e3);
    summary_.final_loss = result.loss;
    StepRecord r;
    r.step = step_;
    r.loss = result.loss;
    r.grad_norm = result.grad_norm;
    r.lr = lr;
    r.step_ms = step_s * 1e3;
    r.data_ms = data_s * 1e3;
    r.comm_ms = result.comm_s * 1e3;
    r.tokens_per_s = static_cast<double>(plan_.tokens_per_step) / step_s;
    r.flops_per_s = plan_.flops_per_step / step_s;
    // A rate above the peak says that the peak was measured beside other work: no MFU then.
    r.mfu = r.flops_per_s < plan_.peak_flops_per_s ? r.flops_per_s / plan_.peak_flops_per_s : 0;
    r.tokens = step_ * plan_.tokens_per_step;
    r.eta_s = static_cast<double>(o_.steps - step_) * recent_step_ms() * 1e-3;
    return r;
  }

  // Median of the last few steps: the first one of a run is slow.
  double recent_step_ms() const {
    constexpr size_t kRecent = 20;
    const size_t count = std::min(kRecent, step_ms_.size());
    return statistics({step_ms_.end() - static_cast<std::ptrdiff_t>(count), step_ms_.end()}).median;
  }

  Status validate(StepRecord* record) {
    const int64_t held = validation_windows(plan_.val_tokens, o_.seq);
    const int64_t count = std::min(held, o_.val_windows > 0 ? o_.val_windows : kValWindows);
    if (count == 0) return {};
    const Range mine = split_range(count, comm_.world(), comm_.rank());
    Windows windows;
    for (int64_t i = mine.begin; i < mine.end; ++i)
      LLMOPS_TRY(corpus_.read(Split::val, i * o_.seq, windows.add(o_.seq + 1)));
    LLMOPS_ASSIGN(const double sum, trainer_->loss_sum(windows));
    record->val_loss = summary_.val_loss = sum / static_cast<double>(count * o_.seq);
    return {};
  }

  Status report(const StepRecord& record) {
    if (metrics_) LLMOPS_TRY(metrics_->append(to_json(record)));
    if (events_) {
      const double now = wall_time_s();
      LLMOPS_TRY(events_->scalar("train/loss", record.step, static_cast<float>(record.loss), now));
      LLMOPS_TRY(events_->scalar("train/grad_norm", record.step, static_cast<float>(record.grad_norm), now));
      LLMOPS_TRY(events_->scalar("train/lr", record.step, static_cast<float>(record.lr), now));
      LLMOPS_TRY(events_->scalar("train/tokens_per_s", record.step, static_cast<float>(record.tokens_per_s), now));
      if (record.val_loss)
        LLMOPS_TRY(events_->scalar("val/loss", record.step, static_cast<float>(*record.val_loss), now));
    }
    return observer_.on_step(record);
  }

  // A run of no steps leaves its initial weights.
  Status save_untrained() {
    StepRecord record;
    return saver_ && o_.resume_from.empty() ? save(&record) : Status();
  }

  Status save(StepRecord* record) {
    const double start_s = monotonic_s();
    LLMOPS_ASSIGN(const bool drained, drain_saves());  // a save that is slower than save-every holds training here
    if (!drained) return save_failure();
    SaveRequest request{.step = step_,
                        .rank = comm_.rank(),
                        .world = comm_.world(),
                        .chunks = chunks_of(*state_),
                        .meta = {},
                        .files = {}};
    if (root()) {
      request.meta = checkpoint_meta(o_, corpus_, shards(), step_);
      if (corpus_.tokenizer())
        for (const NamedFile& file : corpus_.tokenizer()->files()) request.files.push_back({file.name, file.content});
    }
    const Status status = saver_->start(request);
    if (!status.ok() && save_status_.ok()) save_status_ = status;
    record->stall_ms = (monotonic_s() - start_s) * 1e3;
    return {};
  }

  // Takes the result of a finished save.
  void collect_save() {
    if (saver_)
      while (auto done = saver_->poll()) take(*done);
  }
  void take(const SaveReport& done) {
    if (!done.status.ok()) {
      if (save_status_.ok()) save_status_ = done.follows ? io_error("") : done.status;
      return;
    }
    saved_step_ = done.step;
    summary_.last_checkpoint = fmt::format("{}/step-{:08}", o_.out, done.step);
    summary_.save_stall_s += done.stall_s;
    summary_.save_drain_s += done.drain_s;
    if (!root()) return;
    if (o_.keep > 0)
      if (auto dir = Dir::open(o_.out); dir.ok())
        if (Status pruned = prune_steps(*dir, done.step, o_.keep); !pruned.ok()) warn(pruned.message());
    observer_.on_save(done);
  }

  // Waits until no rank has a save in progress: true; or until one has failed: false. Collective.
  Result<bool> drain_saves() {
    constexpr auto kPause = std::chrono::milliseconds(2);
    while (true) {
      collect_save();
      LLMOPS_ASSIGN(const double state, highest(!save_status_.ok() ? 2 : saver_->busy() ? 1 : 0));
      if (state == 2) return false;
      if (state == 0) return true;
      std::this_thread::sleep_for(kPause);
    }
  }

  // The highest value of any rank. Collective.
  Result<double> highest(double mine) {
    Stream& stream = device_.compute();
    *host_vote_.as<double>() = mine;
    host_vote_.push(stream);
    LLMOPS_TRY(comm_.all_reduce(stream, vote_.view(DType::f64, {1}), ReduceOp::max));
    host_vote_.pull(stream);
    LLMOPS_TRY(stream.sync());
    return *host_vote_.as<double>();
  }

  Status finish_save() {
    if (!saver_) return {};
    LLMOPS_ASSIGN(const bool saved, drain_saves());
    return saved ? Status() : save_failure();
  }

  // A device or a peer is gone, and with it what was done since.
  Status with_last_checkpoint(const Status& status) {
    if (!root() || o_.out.empty()) return status;
    end_save();
    return {status.code(), status.message() + "; " + last_good_step()};
  }
  // A save in progress is given up, unless it is being committed.
  void end_save() {
    if (!saver_) return;
    saver_->cancel();
    while (auto done = saver_->wait()) take(*done);
  }
  // Not what lies in the folder: that may be damaged, as the resume that went back behind it has said.
  std::string last_good_step() const {
    return summary_.last_checkpoint.empty() ? "no step was saved before"
                                            : "the last good step is " + summary_.last_checkpoint;
  }

  // All ranks come here together; of those whose shard failed, the first says why.
  Status save_failure() {
    agreed_ = true;
    const Status mine = save_status_;
    end_save();
    const bool failed = !mine.ok() && !mine.message().empty();
    LLMOPS_ASSIGN(const double speaks, highest(failed ? -comm_.rank() : -comm_.world()));  // nobody writes any more
    if (root())
      if (auto dir = Dir::open(o_.out); dir.ok())
        if (Status removed = remove_leftovers(*dir); !removed.ok()) warn(removed.message());
    if (speaks != -comm_.rank()) return io_error("");
    return io_error(fmt::format("{}; {}", mine.message(), last_good_step()));
  }

  Status not_finite(const StepResult& result) {
    LLMOPS_ASSIGN(int rank, trainer_->rank_of_bad_gradient());
    agreed_ = true;
    if (result.bad_shard >= 0) rank = result.bad_shard / (shards() / comm_.world());
    const std::string what =
        result.bad_block >= 0 ? "gradient of " + trainer_->tensor_of_block(result.bad_block) : "loss";
    return {Code::finding,
            fmt::format("step {}: the {} is not finite{}{}; nothing was updated{}", step_ + 1,
                        result.bad_shard >= 0 && result.bad_block >= 0 ? "loss and the " + what : what,
                        rank >= 0 ? fmt::format(" on rank {}", rank) : "",
                        result.bad_shard >= 0 ? fmt::format(" (loss {})", result.loss) : "",
                        summary_.last_checkpoint.empty() ? "" : ", last checkpoint " + summary_.last_checkpoint)};
  }

  Status stopped(const StepResult& result) {
    agreed_ = true;
    if (result.flags[static_cast<size_t>(Flag::report_failed)] > 0) return {};  // rank 0 says it when the step is saved
    const int signal = static_cast<int>(result.flags[static_cast<size_t>(Flag::cancel_signal)]);
    const std::string why = signal ? fmt::format("signal {}", signal) : "the time limit";
    if (o_.out.empty())
      return {Code::interrupted,
              fmt::format("stopped by {} after step {}; nothing was saved, as there is no --out", why, step_)};
    return {
        Code::interrupted,
        fmt::format("stopped by {} after step {}, which is saved; run again with --resume auto to go on", why, step_)};
  }

  void summarize() {
    const SampleStats stats = statistics(step_ms_);
    summary_.steps = static_cast<int64_t>(step_ms_.size());
    summary_.tokens = summary_.steps * plan_.tokens_per_step;
    summary_.step_ms_median = stats.median;
    summary_.step_ms_p95 = stats.p95;
    summary_.finished = step_ >= o_.steps;
    for (int i = 0; i < static_cast<int>(Category::kCount); ++i) {
      const auto category = static_cast<Category>(i);
      if (device_.bytes_peak(category) > 0)
        summary_.memory_peak_bytes.push_back({std::string(name_of(category)), device_.bytes_peak(category)});
    }
  }

  Device& device_;
  Communicator& comm_;
  const Corpus& corpus_;
  const TrainOptions& o_;
  TrainObserver& observer_;
  TrainSummary& summary_;
  TrainPlan plan_;
  std::unique_ptr<TrainState> state_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<ShardSaver> saver_;
  Buffer vote_;
  HostSide host_vote_;
  Status save_status_;   // of my shard: the first failure
  Status report_status_;  // rank 0: of stdout and of what is written beside the steps
  bool agreed_ = false;  // the run ends early and every rank knows it
  SampleOrder order_;
  std::optional<MetricsFile> metrics_;
  std::optional<EventWriter> events_;
  std::vector<double> step_ms_;
  int64_t step_ = 0, samples_ = 0, saved_step_ = 0;
};

}  // namespace

Status train_run(Device& device, Communicator& comm, const Corpus& corpus, const TrainOptions& options,
                 TrainObserver& observer, TrainSummary* summary) {
  return Run(device, comm, corpus, options, observer, summary).go();
}

}  // namespace llmops
