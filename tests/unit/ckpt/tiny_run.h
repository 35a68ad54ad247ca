// A tiny model with known values, saved as training saves it: by any number of ranks, each a slice of every group.
#pragma once

#include <doctest/doctest.h>

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "base/checked.h"
#include "base/io.h"
#include "ckpt/checkpoint.h"
#include "ckpt/save.h"
#include "ckpt/steps.h"
#include "layout/params.h"

namespace llmops::testing {

constexpr StateKind kKinds[] = {StateKind::weight, StateKind::m, StateKind::v};

inline ModelConfig tiny_config(Family family, int64_t d_model, int64_t layers) {
  ModelConfig c;
  c.family = family;
  c.layers = layers;
  c.d_model = d_model;
  c.heads = 2;
  c.head_dim = d_model / 2;
  c.ffn = 2 * d_model;
  c.vocab = 7;
  c.positions = 5;
  c.kv_heads = family == Family::gpt2 ? 2 : 1;
  if (family == Family::gpt2) return c;
  c.norm = NormKind::rms;
  c.mlp = MlpKind::swiglu;
  c.norm_bias = c.qkv_bias = c.out_bias = c.mlp_bias = c.learned_positions = c.tied_head = c.weights_in_out = false;
  c.qk_norm = family == Family::qwen3;
  return c;
}

// Differs for every element of every tensor, and between versions.
inline float value_of(const std::string& state, int64_t flat, int version) {
  uint32_t x = static_cast<uint32_t>(std::hash<std::string>{}(state)) + static_cast<uint32_t>(flat) * 2654435761u +
               static_cast<uint32_t>(version) * 40503u;
  x ^= x >> 15;
  x *= 0x2c1b3c6du;
  x ^= x >> 12;
  return static_cast<float>(static_cast<int32_t>(x)) * 0x1p-31f;
}

// One rank's state: whole groups are filled, its slices are saved.
class RankState {
 public:
  RankState(const ModelConfig& config, int rank, int world, int version)
      : config_(config), rank_(rank), world_(world), version_(version) {
    groups_ = param_groups(config, {.dp = world}, rank);
    const auto tensors = logical_tensors(config);
    for (StateKind kind : kKinds)
      for (const Group& group : groups_) {
        std::vector<float> flat(static_cast<size_t>(group.elems), -77.0f);  // padding is never saved
        for (const StoredBox& stored : stored_boxes(group, 0, group.elems))
          fill(flat, stored, tensors[stored.logical], kind);
        flat_.push_back(std::move(flat));
      }
  }

  SaveRequest request(int64_t step, std::vector<StoredFile> files = {}) const {
    SaveRequest r{.step = step, .rank = rank_, .world = world_, .chunks = {}, .meta = {}, .files = {}};
    const auto tensors = logical_tensors(config_);
    for (size_t k = 0; k < std::size(kKinds); ++k)
      for (size_t g = 0; g < groups_.size(); ++g) {
        // Without the padding that training has, so that tiny groups are cut too, anywhere.
        const Param& last = groups_[g].params.back();
        const int64_t share = ceil_div(last.offset + elems_of(last.shape), world_), begin = share * rank_;
        for (StoredBox& stored : stored_boxes(groups_[g], begin, begin + share)) {
          const LogicalTensor& tensor = tensors[stored.logical];
          r.chunks.push_back({state_name(kKinds[k], tensor.name), tensor.shape, std::move(stored.box), DType::f32,
                              flat_[k * groups_.size() + g].data() + stored.offset, stored.row_stride});
        }
      }
    if (rank_ != 0) return r;
    r.meta["model"] = to_json(config_);
    r.files = std::move(files);
    return r;
  }

  void overwrite(float value) {
    for (auto& flat : flat_) std::fill(flat.begin(), flat.end(), value);
  }

 private:
  void fill(std::vector<float>& flat, const StoredBox& stored, const LogicalTensor& tensor, StateKind kind) const {
    const bool matrix = tensor.shape.size() == 2;
    const int64_t columns = stored.box.extent.back(), rows = elems_of(stored.box.extent) / columns;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) {
        const int64_t at =
            matrix ? (stored.box.offset[0] + i) * tensor.shape[1] + stored.box.offset[1] + j : stored.box.offset[0] + j;
        flat[static_cast<size_t>(stored.offset + i * stored.row_stride + j)] =
            value_of(state_name(kind, tensor.name), at, version_);
      }
  }

  ModelConfig config_;
  int rank_, world_, version_;
  std::vector<Group> groups_;
  std::vector<std::vector<float>> flat_;  // by kind, then group
};

// All ranks save at once. The reports, by rank.
inline std::vector<SaveReport> save_all(const std::string& dir, const ModelConfig& config, int world, int64_t step,
                                        int version = 0, std::vector<StoredFile> files = {}, Fs& fs = real_fs()) {
  std::vector<std::unique_ptr<ShardSaver>> savers;
  for (int rank = 0; rank < world; ++rank) {
    RankState state(config, rank, world, version);
    savers.push_back(std::make_unique<ShardSaver>(dir, fs, 20));
    const Status started = savers.back()->start(state.request(step, files));
    CHECK_MESSAGE(started.ok(), started.message());
    state.overwrite(0.5f);  // the copy was made before start() returned
  }
  std::vector<SaveReport> reports;
  for (auto& saver : savers) {
    auto report = saver->wait();
    REQUIRE(report.has_value());
    CHECK(report->step == step);
    reports.push_back(std::move(*report));
  }
  return reports;
}

inline void save_ok(const std::string& dir, const ModelConfig& config, int world, int64_t step, int version = 0,
                    std::vector<StoredFile> files = {}) {
  for (const SaveReport& report : save_all(dir, config, world, step, version, std::move(files)))
    REQUIRE_MESSAGE(report.status.ok(), report.status.message());
}

// Elements of a checkpoint that are not those of the version.
inline int64_t wrong_elements(const Checkpoint& checkpoint, int version) {
  int64_t wrong = 0;
  for (StateKind kind : kKinds)
    for (size_t t = 0; t < checkpoint.tensors().size(); ++t) {
      const LogicalTensor& tensor = checkpoint.tensors()[t];
      std::vector<float> values(static_cast<size_t>(elems_of(tensor.shape)), 99.0f);
      const Status status = checkpoint.read(kind, static_cast<int>(t), whole(tensor.shape), DType::f32, values.data(),
                                            tensor.shape.back());
      CHECK_MESSAGE(status.ok(), status.message());
      for (size_t i = 0; i < values.size(); ++i)
        wrong += values[i] != value_of(state_name(kind, tensor.name), static_cast<int64_t>(i), version);
    }
  return wrong;
}

}  // namespace llmops::testing
