// What a checkpoint says about the run that made it, and what a run that goes on from it must keep.
#pragma once

#include "train/run.h"

namespace llmops {

// {"model": ..., "tokenizer": ..., "train": {...}}: nothing that depends on time, host, path or rank count but dp
// itself.
Json checkpoint_meta(const TrainOptions& options, const Corpus& corpus, int shards, int64_t step);

// Code::usage when model, data, batch, seq or seed differ. With `tell`, a change that is allowed but gives other bits
// (dtype, shards, learning-rate schedule) is said on stderr.
Status check_resume(const Checkpoint& checkpoint, const TrainOptions& options, const Corpus& corpus, int shards,
                    bool tell);

}  // namespace llmops
