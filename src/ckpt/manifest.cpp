#include "ckpt/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/checked.h"
#include "base/text.h"

namespace llmops {
namespace {

constexpr std::string_view kFormat = "llmops-checkpoint";
constexpr std::string_view kHashKey = "\"manifest_xxh3\":\"";
constexpr size_t kHexDigits = 32;

Hash128 hash_of(std::string_view text) { return hash128(std::as_bytes(std::span(text))); }

Status wrong(const std::string& what) { return invalid_error("manifest: " + what); }

Result<int64_t> count_from(const Json& object, const char* key) {
  const Json* value = object.find(key);
  if (!value || !value->is_integer() || value->as_int(-1) < 0)
    return wrong(fmt::format("{} must be an integer >= 0", key));
  return value->as_int();
}

Result<Hash128> digest_from(const Json& object, const char* key) {
  const Json* value = object.find(key);
  auto hash = hash_from_hex(value ? value->as_string() : "");
  if (!hash.ok()) return wrong(fmt::format("{} must be 32 hex digits", key));
  return hash;
}

struct Rect {
  int64_t row, row_end, column, column_end;
};

Rect rect_of(const Box& box) {
  Rect rect{0, 1, 0, 1};
  if (box.offset.size() == 2) rect.row = box.offset[0], rect.row_end = rect.row + box.extent[0];
  if (!box.offset.empty()) rect.column = box.offset.back(), rect.column_end = rect.column + box.extent.back();
  return rect;
}

// Goes down the rows; `open` holds, by their first column, the rectangles that the current row may still meet.
bool any_overlap(std::vector<Rect> rects) {
  std::ranges::sort(rects, {}, &Rect::row);
  std::map<int64_t, Rect> open;
  for (const Rect& rect : rects) {
    auto it = open.upper_bound(rect.column);
    if (it != open.begin() && std::prev(it)->second.column_end > rect.column) --it;
    while (it != open.end() && it->second.column < rect.column_end) {
      if (it->second.row_end > rect.row) return true;
      it = open.erase(it);  // it ended above, and no later rectangle starts above
    }
    open[rect.column] = rect;
  }
  return false;
}

// Chunks tile the tensor: each lies within it, no two share an element, and they have as many elements as it has.
Status check_cover(const ManifestTensor& tensor) {
  int64_t covered = 0;
  std::vector<Rect> rects;
  for (const ManifestChunk& chunk : tensor.chunks) {
    const Box& box = chunk.box;
    for (size_t axis = 0; axis < tensor.shape.size(); ++axis)
      if (box.extent[axis] < 1 || box.offset[axis] > tensor.shape[axis] - box.extent[axis])
        return wrong(fmt::format("tensor {}: a chunk lies outside its shape", escape_control(tensor.name)));
    covered += std::min(elems_of(box.extent), INT64_MAX - covered);
    rects.push_back(rect_of(box));
  }
  if (any_overlap(std::move(rects)))
    return wrong(fmt::format("tensor {}: chunks overlap", escape_control(tensor.name)));
  if (covered != elems_of(tensor.shape))
    return wrong(fmt::format("tensor {}: chunks cover {} of {} elements", escape_control(tensor.name), covered,
                             elems_of(tensor.shape)));
  return {};
}

// The chunks of a file follow each other up to its end; what is before them is its header.
Status check_files(const Manifest& manifest) {
  std::vector<std::vector<std::pair<int64_t, int64_t>>> ranges(manifest.files.size());
  for (const ManifestTensor& tensor : manifest.tensors)
    for (const ManifestChunk& chunk : tensor.chunks) ranges[chunk.file].emplace_back(chunk.begin, chunk.end);
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i].empty()) continue;
    std::ranges::sort(ranges[i]);
    for (size_t k = 0; k < ranges[i].size(); ++k) {
      const int64_t end = k + 1 < ranges[i].size() ? ranges[i][k + 1].first : manifest.files[i].bytes;
      if (ranges[i][k].second != end)
        return wrong(fmt::format("file {}: chunks overlap or leave a gap", escape_control(manifest.files[i].name)));
    }
  }
  return {};
}

Result<ManifestChunk> read_chunk(const Json& json, const ManifestTensor& tensor,
                                 const std::vector<ManifestFile>& files) {
  ManifestChunk chunk;
  LLMOPS_ASSIGN(const int64_t file, count_from(json, "file"));
  if (file >= static_cast<int64_t>(files.size())) return wrong("a chunk names a file that is not listed");
  chunk.file = static_cast<int>(file);
  LLMOPS_ASSIGN(chunk.box.offset, shape_from(json.find("offset"), "offset"));
  LLMOPS_ASSIGN(chunk.box.extent, shape_from(json.find("extent"), "extent"));
  if (chunk.box.offset.size() != tensor.shape.size() || chunk.box.extent.size() != tensor.shape.size())
    return wrong("a chunk has another rank than its tensor");
  LLMOPS_ASSIGN(chunk.begin, count_from(json, "begin"));
  LLMOPS_ASSIGN(chunk.end, count_from(json, "end"));
  LLMOPS_ASSIGN(chunk.hash, digest_from(json, "xxh3"));
  const auto elems = checked_product(chunk.box.extent);
  const auto bytes = elems ? bytes_of(tensor.dtype, *elems) : std::nullopt;
  if (!bytes || chunk.end > files[chunk.file].bytes || chunk.begin > chunk.end || chunk.end - chunk.begin != *bytes)
    return wrong(
        fmt::format("tensor {}: the bytes of a chunk do not fit its size or its file", escape_control(tensor.name)));
  return chunk;
}

Result<ManifestTensor> read_tensor(const Json& json, const std::vector<ManifestFile>& files) {
  ManifestTensor tensor;
  tensor.name = json.find("name") ? json.find("name")->as_string() : "";
  const Json* dtype = json.find("dtype");
  const auto found = dtype_from_name(dtype ? dtype->as_string() : "");
  if (tensor.name.empty() || !found) return wrong("a tensor has no name or an unknown dtype");
  tensor.dtype = *found;
  LLMOPS_ASSIGN(tensor.shape, shape_from(json.find("shape"), "shape"));
  if (tensor.shape.size() > 2 || !checked_product(tensor.shape))
    return wrong(fmt::format("tensor {}: bad shape", escape_control(tensor.name)));
  LLMOPS_ASSIGN(tensor.digest, digest_from(json, "digest"));
  const Json* chunks = json.find("chunks");
  for (const Json& item : chunks ? chunks->as_array() : Json::Array{}) {
    LLMOPS_ASSIGN(ManifestChunk chunk, read_chunk(item, tensor, files));
    tensor.chunks.push_back(std::move(chunk));
  }
  LLMOPS_TRY(check_cover(tensor));
  return tensor;
}

Status check_hash(std::string_view text) {
  const size_t key = text.find(kHashKey);
  if (key == std::string_view::npos || text.size() < key + kHashKey.size() + kHexDigits)
    return wrong("manifest_xxh3 is missing");
  const size_t at = key + kHashKey.size();
  std::string zeroed(text);
  zeroed.replace(at, kHexDigits, kHexDigits, '0');
  if (to_hex(hash_of(zeroed)) != text.substr(at, kHexDigits))
    return wrong("its hash does not match: the file was changed");
  return {};
}

}  // namespace

std::string chunk_key(const std::string& tensor, const Box& box) {
  return fmt::format("{}@{}", tensor, fmt::join(box.offset, ","));
}

Json shape_json(const Shape& shape) {
  Json json(Json::Array{});
  for (int64_t n : shape) json.push_back(n);
  return json;
}

Result<Shape> shape_from(const Json* json, const char* what) {
  if (!json || !json->is_array()) return wrong(fmt::format("{} must be a list of integers", what));
  Shape shape;
  for (const Json& n : json->as_array()) {
    if (!n.is_integer() || n.as_int(-1) < 0) return wrong(fmt::format("{} must be a list of integers >= 0", what));
    shape.push_back(n.as_int());
  }
  return shape;
}

std::string to_text(const Manifest& manifest) {
  Json json(Json::Object{});
  json["format"] = kFormat;
  json["version"] = 1;
  json["manifest_xxh3"] = std::string(kHexDigits, '0');
  json["step"] = manifest.step;
  json["meta"] = manifest.meta;
  Json files(Json::Array{}), tensors(Json::Array{});
  for (const ManifestFile& file : manifest.files) {
    Json item(Json::Object{});
    item["name"] = file.name;
    item["bytes"] = file.bytes;
    item["xxh3"] = to_hex(file.hash);
    files.push_back(std::move(item));
  }
  for (const ManifestTensor& tensor : manifest.tensors) {
    Json item(Json::Object{}), chunks(Json::Array{});
    item["name"] = tensor.name;
    item["dtype"] = info(tensor.dtype).name;
    item["shape"] = shape_json(tensor.shape);
    item["digest"] = to_hex(tensor.digest);
    for (const ManifestChunk& chunk : tensor.chunks) {
      Json part(Json::Object{});
      part["file"] = chunk.file;
      part["offset"] = shape_json(chunk.box.offset);
      part["extent"] = shape_json(chunk.box.extent);
      part["begin"] = chunk.begin;
      part["end"] = chunk.end;
      part["xxh3"] = to_hex(chunk.hash);
      chunks.push_back(std::move(part));
    }
    item["chunks"] = std::move(chunks);
    tensors.push_back(std::move(item));
  }
  json["files"] = std::move(files);
  json["tensors"] = std::move(tensors);
  std::string text = json.dump() + "\n";
  text.replace(text.find(kHashKey) + kHashKey.size(), kHexDigits, to_hex(hash_of(text)));
  return text;
}

Result<Manifest> parse_manifest(std::string_view text) {
  LLMOPS_TRY(check_hash(text));
  LLMOPS_ASSIGN(const Json json, json_parse(text));
  const Json* format = json.find("format");
  const Json* version = json.find("version");
  if (!format || format->as_string() != kFormat) return wrong("format is not llmops-checkpoint");
  if (!version || version->as_int() != 1) return wrong("version is not 1, which is all that this release reads");
  Manifest manifest;
  LLMOPS_ASSIGN(manifest.step, count_from(json, "step"));
  if (const Json* meta = json.find("meta")) manifest.meta = *meta;
  std::set<std::string> names;
  const Json* files = json.find("files");
  for (const Json& item : files ? files->as_array() : Json::Array{}) {
    ManifestFile file;
    file.name = item.find("name") ? item.find("name")->as_string() : "";
    LLMOPS_ASSIGN(file.bytes, count_from(item, "bytes"));
    LLMOPS_ASSIGN(file.hash, digest_from(item, "xxh3"));
    if (file.name.empty() || file.name.find('/') != std::string::npos || file.name == kManifestName ||
        !names.insert(file.name).second)
      return wrong(fmt::format("file name \"{}\" is empty, a path, or listed twice", escape_control(file.name)));
    manifest.files.push_back(std::move(file));
  }
  names.clear();
  const Json* tensors = json.find("tensors");
  for (const Json& item : tensors ? tensors->as_array() : Json::Array{}) {
    LLMOPS_ASSIGN(ManifestTensor tensor, read_tensor(item, manifest.files));
    if (!names.insert(tensor.name).second)
      return wrong(fmt::format("tensor {} is listed twice", escape_control(tensor.name)));
    manifest.tensors.push_back(std::move(tensor));
  }
  LLMOPS_TRY(check_files(manifest));
  return manifest;
}

}  // namespace llmops
