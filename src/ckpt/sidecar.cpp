#include "ckpt/sidecar.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

namespace llmops {
namespace {

constexpr const char* kMalformed = "a rank's description of its shard is malformed";

Hash128 both(const DigestSum& sum) { return {sum.hi, sum.lo}; }

// A field that every entry has; null when it is absent, which no conversion below accepts.
const Json& at(const Json& object, const char* key) {
  static const Json null;
  const Json* value = object.find(key);
  return value ? *value : null;
}

Result<ShardChunk> parse_chunk(const Json& item) {
  ShardChunk chunk;
  chunk.name = at(item, "name").as_string();
  const auto dtype = dtype_from_name(at(item, "dtype").as_string());
  if (chunk.name.empty() || !dtype) return invalid_error(kMalformed);
  chunk.dtype = *dtype;
  LLMOPS_ASSIGN(chunk.shape, shape_from(item.find("shape"), "shape"));
  LLMOPS_ASSIGN(chunk.place.box.offset, shape_from(item.find("offset"), "offset"));
  LLMOPS_ASSIGN(chunk.place.box.extent, shape_from(item.find("extent"), "extent"));
  chunk.place.begin = at(item, "begin").as_int(-1);
  chunk.place.end = at(item, "end").as_int(-1);
  LLMOPS_ASSIGN(chunk.place.hash, hash_from_hex(at(item, "xxh3").as_string()));
  LLMOPS_ASSIGN(const Hash128 digest, hash_from_hex(at(item, "digest").as_string()));
  chunk.digest = {digest.lo, digest.hi};
  return chunk;
}

}  // namespace

std::string to_text(const Sidecar& sidecar) {
  Json file(Json::Object{}), chunks(Json::Array{}), json(Json::Object{});
  file["name"] = sidecar.file.name;
  file["bytes"] = sidecar.file.bytes;
  file["xxh3"] = to_hex(sidecar.file.hash);
  for (const ShardChunk& chunk : sidecar.chunks) {
    Json item(Json::Object{});
    item["name"] = chunk.name;
    item["dtype"] = info(chunk.dtype).name;
    item["shape"] = shape_json(chunk.shape);
    item["offset"] = shape_json(chunk.place.box.offset);
    item["extent"] = shape_json(chunk.place.box.extent);
    item["begin"] = chunk.place.begin;
    item["end"] = chunk.place.end;
    item["xxh3"] = to_hex(chunk.place.hash);
    item["digest"] = to_hex(both(chunk.digest));
    chunks.push_back(std::move(item));
  }
  json["file"] = std::move(file);
  json["chunks"] = std::move(chunks);
  return json.dump();
}

Result<Sidecar> parse_sidecar(std::string_view text) {
  LLMOPS_ASSIGN(const Json json, json_parse(text));
  const Json& file = at(json, "file");
  Sidecar sidecar;
  sidecar.file.name = at(file, "name").as_string();
  sidecar.file.bytes = at(file, "bytes").as_int(-1);
  if (sidecar.file.name.empty() || sidecar.file.bytes < 0) return invalid_error(kMalformed);
  LLMOPS_ASSIGN(sidecar.file.hash, hash_from_hex(at(file, "xxh3").as_string()));
  for (const Json& item : at(json, "chunks").as_array()) {
    LLMOPS_ASSIGN(ShardChunk chunk, parse_chunk(item));
    sidecar.chunks.push_back(std::move(chunk));
  }
  return sidecar;
}

void ManifestMerger::add(const Sidecar& sidecar) {
  const int file = static_cast<int>(manifest_.files.size());
  manifest_.files.push_back(sidecar.file);
  for (const ShardChunk& chunk : sidecar.chunks) {
    const auto [it, is_new] = index_.try_emplace(chunk.name, manifest_.tensors.size());
    if (is_new) {
      manifest_.tensors.push_back({chunk.name, chunk.dtype, chunk.shape, {}, {}});
      sums_.push_back({});
    }
    ManifestChunk place = chunk.place;
    place.file = file;
    manifest_.tensors[it->second].chunks.push_back(std::move(place));
    sums_[it->second].add(chunk.digest);
  }
}

namespace {

// Weights, m, v, each in the order of the model, whatever rank holds their first chunk; others by name behind them.
void sort_as_model(std::vector<ManifestTensor>& tensors, const Json& meta) {
  std::unordered_map<std::string, int64_t> rank;
  const Json* model = meta.find("model");
  const auto config = model ? model_config_from_json(*model) : Result<ModelConfig>(invalid_error("no model"));
  for (StateKind kind : {StateKind::weight, StateKind::m, StateKind::v})
    for (const LogicalTensor& tensor : config.ok() ? logical_tensors(*config) : std::vector<LogicalTensor>())
      rank.emplace(state_name(kind, tensor.name), static_cast<int64_t>(rank.size()));
  const auto place = [&](const ManifestTensor& tensor) {
    const auto it = rank.find(tensor.name);
    return it == rank.end() ? static_cast<int64_t>(rank.size()) : it->second;
  };
  std::ranges::sort(tensors, [&](const ManifestTensor& a, const ManifestTensor& b) {
    return std::pair(place(a), std::string_view(a.name)) < std::pair(place(b), std::string_view(b.name));
  });
}

}  // namespace

Manifest ManifestMerger::finish(int64_t step, const Json& meta, const std::vector<StoredFile>& files) {
  for (size_t i = 0; i < manifest_.tensors.size(); ++i)
    manifest_.tensors[i].digest = finish_digest(sums_[i], manifest_.tensors[i].dtype, manifest_.tensors[i].shape);
  sort_as_model(manifest_.tensors, meta);
  for (const StoredFile& file : files)
    manifest_.files.push_back(
        {file.name, static_cast<int64_t>(file.content.size()), hash128(std::as_bytes(std::span(file.content)))});
  manifest_.step = step;
  manifest_.meta = meta;
  return std::move(manifest_);
}

}  // namespace llmops
