// shard-%05d.json: what each rank tells rank 0 about its shard, to be merged into the manifest and then removed.
#pragma once

#include <unordered_map>

#include "ckpt/manifest.h"
#include "ckpt/save.h"

namespace llmops {

struct ShardChunk {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;          // of the whole tensor
  ManifestChunk place;  // `file` is not used
  DigestSum digest;     // the chunk's part of the tensor's
};

struct Sidecar {
  ManifestFile file;
  std::vector<ShardChunk> chunks;
};

std::string to_text(const Sidecar& sidecar);
Result<Sidecar> parse_sidecar(std::string_view text);

// Collects sidecars in rank order.
class ManifestMerger {
 public:
  void add(const Sidecar& sidecar);
  Manifest finish(int64_t step, const Json& meta, const std::vector<StoredFile>& files);

 private:
  Manifest manifest_;
  std::vector<DigestSum> sums_;  // of each tensor
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace llmops
