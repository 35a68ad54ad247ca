// manifest.json: the names, hashes and places of everything in a step folder. Written last.
//
//   {"format": "llmops-checkpoint", "version": 1, "manifest_xxh3": H, "step": n, "meta": {...},
//    "files": [{"name", "bytes", "xxh3"}],
//    "tensors": [{"name", "dtype", "shape", "digest", "chunks": [{"file", "offset", "extent", "begin", "end",
//    "xxh3"}]}]}
//
// H is the hash of the text with its own 32 digits replaced by zeros. begin and end are byte offsets within the file; a
// chunk is a tensor of that safetensors file, named chunk_key(). Rank 0 to 2.
#pragma once

#include "base/hash.h"
#include "base/json.h"
#include "ckpt/digest.h"

namespace llmops {

struct ManifestFile {
  std::string name;
  int64_t bytes = 0;
  Hash128 hash;
};
struct ManifestChunk {
  int file = 0;  // index into files
  Box box;
  int64_t begin = 0, end = 0;
  Hash128 hash;
};
struct ManifestTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  Hash128 digest;
  std::vector<ManifestChunk> chunks;
};
struct Manifest {
  int64_t step = 0;
  Json meta;
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;
};

constexpr const char* kManifestName = "manifest.json";
constexpr int64_t kManifestBytesMax = int64_t{1} << 30;
std::string chunk_key(const std::string& tensor, const Box& box);  // "transformer.wte.weight@0,0"
std::string to_text(const Manifest& manifest);
// Checks the hash, the structure, and that boxes lie within shapes, files and each other's gaps: every tensor is
// covered exactly once.
Result<Manifest> parse_manifest(std::string_view text);

// Shared with the sidecars of save.
Json shape_json(const Shape& shape);
Result<Shape> shape_from(const Json* json, const char* what);

}  // namespace llmops
