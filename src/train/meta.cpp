#include "train/meta.h"

#include <fmt/format.h>

#include "base/run.h"
#include "base/text.h"

namespace llmops {
namespace {

Json lr_json(const LrSchedule& schedule) {
  Json lr(Json::Object{});
  lr["shape"] = name_of(schedule.shape);
  lr["lr"] = schedule.lr;
  lr["lr_min"] = schedule.lr_min;
  lr["warmup_steps"] = schedule.warmup_steps;
  lr["steps"] = schedule.steps;
  lr["decay_fraction"] = schedule.decay_fraction;
  return lr;
}

std::string shown(const Json* value) { return value ? escape_control(value->dump()) : "not saved"; }

void tell_change(const std::string& what, const Json* was, const Json* now) {
  if (shown(was) != shown(now)) warn(fmt::format("train: {} was {}, is now {}", what, shown(was), shown(now)));
}

}  // namespace

Json checkpoint_meta(const TrainOptions& o, const Corpus& corpus, int shards, int64_t step) {
  Json train(Json::Object{});
  train["step"] = step;
  train["samples_seen"] = step * o.batch;
  train["tokens_seen"] = step * o.batch * o.seq;
  train["batch"] = o.batch;
  train["seq"] = o.seq;
  train["seed"] = static_cast<uint64_t>(o.seed);
  train["rng"] = "philox4x32-10, keyed by seed; stateless";
  train["data_fingerprint"] = to_hex(corpus.fingerprint());
  train["dtype"] = info(o.dtype).name;
  train["dp"] = o.parallel.dp;
  train["zero"] = o.parallel.zero;
  train["shards"] = shards;
  train["lr_schedule"] = lr_json(o.lr);
  Json json(Json::Object{});
  json["model"] = to_json(o.model);
  json["tokenizer"] = corpus.tokenizer() ? corpus.tokenizer()->to_json() : Json();
  json["train"] = std::move(train);
  return json;
}

Status check_resume(const Checkpoint& checkpoint, const TrainOptions& o, const Corpus& corpus, int shards, bool tell) {
  const Json* was = checkpoint.meta().find("train");
  if (!was) return invalid_error(fmt::format("{}: its manifest has no training state", o.resume_from));
  if (!(checkpoint.config() == o.model))
    return usage_error(fmt::format(
        "{}: was saved by another model or vocabulary; give the --model and --tokenizer of that run, or another --out",
        o.resume_from));
  const Json meta = checkpoint_meta(o, corpus, shards, checkpoint.step());
  const Json& now = *meta.find("train");
  if (shown(was->find("data_fingerprint")) != shown(now.find("data_fingerprint")))
    return usage_error(
        fmt::format("{}: the data changed since it was saved (or --val-fraction, --tokenizer); a resumed "
                    "run keeps its data",
                    o.resume_from));
  for (const char* key : {"batch", "seq", "seed"})
    if (shown(was->find(key)) != shown(now.find(key)))
      return usage_error(fmt::format("{}: {} was {}, is now {}; a resumed run keeps it", o.resume_from, key,
                                     shown(was->find(key)), shown(now.find(key))));
  if (!tell) return {};
  for (const char* key : {"dtype", "shards"}) tell_change(key, was->find(key), now.find(key));
  const Json* before = was->find("lr_schedule");
  for (const auto& [key, value] : now.find("lr_schedule")->as_object())
    tell_change("lr_schedule." + key, before ? before->find(key) : nullptr, &value);
  return {};
}

}  // namespace llmops
