// Between a rank's flat state and checkpoints.
#pragma once

#include "ckpt/save.h"
#include "train/state.h"

namespace llmops {

// Weights (f32 master), m and v of the elements that this rank writes; pointers into `state`.
std::vector<Chunk> chunks_of(const TrainState& state);
// For saves from this device: pinned memory on one that has memory of its own.
std::unique_ptr<Staging> staging_of(Device& device);
// Fills my slices: weights always, moments when `with_moments`. All ranks call it, then barrier.
Status restore(TrainState& state, const TensorSource& source, bool with_moments, Device& device);

}  // namespace llmops
