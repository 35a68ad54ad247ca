#include "ckpt/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/text.h"

namespace llmops {
namespace {

constexpr int64_t kHeaderMax = 100'000'000;  // the reference reader's limit

Status wrong(const std::string& what) { return invalid_error("safetensors header: " + what); }

struct StoredType {
  std::string_view name;
  int bits;
};
// All types of the format, so that the structure of any file can be checked.
constexpr StoredType kStoredTypes[] = {
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
};

// Bytes of a dense tensor; nullopt when they are no whole number, or beyond int64.
std::optional<int64_t> stored_bytes(const StoredType& type, const Shape& shape) {
  const auto elems = checked_product(shape);
  const auto bits = elems ? checked_mul<int64_t>(*elems, type.bits) : std::nullopt;
  return bits && *bits % 8 == 0 ? std::optional(*bits / 8) : std::nullopt;
}

Result<SafeTensor> read_entry(const std::string& name, const Json& json, int64_t data_begin) {
  SafeTensor tensor;
  tensor.name = name;
  const std::string shown = escape_control(name.substr(0, 200));
  const Json *dtype = json.find("dtype"), *shape = json.find("shape"), *offsets = json.find("data_offsets");
  if (!dtype || !dtype->is_string() || !shape || !shape->is_array() || !offsets || offsets->as_array().size() != 2)
    return wrong(fmt::format("tensor {} needs dtype, shape and two data_offsets", shown));
  const auto type = std::ranges::find(kStoredTypes, std::string_view(dtype->as_string()), &StoredType::name);
  if (type == std::end(kStoredTypes))
    return wrong(
        fmt::format("tensor {} has the unknown dtype {}", shown, escape_control(dtype->as_string().substr(0, 40))));
  tensor.type_name = type->name;
  if (const auto known = dtype_from_name(type->name); known && info(*known).name == type->name) tensor.dtype = known;
  for (const Json& n : shape->as_array()) {
    if (!n.is_integer() || n.as_int(-1) < 0)
      return wrong(fmt::format("tensor {} has a shape that is no list of integers >= 0", shown));
    tensor.shape.push_back(n.as_int());
  }
  int64_t range[2];
  for (int i = 0; i < 2; ++i) {
    const Json& offset = offsets->as_array()[i];
    if (!offset.is_integer() || offset.as_int(-1) < 0)
      return wrong(fmt::format("tensor {} has data_offsets that are no integers >= 0", shown));
    const auto absolute = checked_add(offset.as_int(), data_begin);
    if (!absolute) return wrong(fmt::format("tensor {} has data_offsets that overflow", shown));
    range[i] = *absolute;
  }
  const auto bytes = stored_bytes(*type, tensor.shape);
  if (!bytes)
    return wrong(fmt::format("tensor {}: {} of shape [{}] is no whole number of bytes below 2^63", shown, type->name,
                             fmt::join(tensor.shape, ",")));
  if (range[1] < range[0] || range[1] - range[0] != *bytes)
    return wrong(
        fmt::format("tensor {} has {} bytes of data, its shape and dtype need {}", shown, range[1] - range[0], *bytes));
  tensor.begin = range[0];
  tensor.end = range[1];
  return tensor;
}

}  // namespace

const SafeTensor* SafeTensors::find(std::string_view name) const {
  const auto it = std::ranges::find(tensors, name, &SafeTensor::name);
  return it == tensors.end() ? nullptr : &*it;
}

Result<SafeTensors> parse_safetensors_header(std::string_view header, int64_t file_bytes) {
  if (header.empty() || header[0] != '{') return wrong("does not start with '{'");
  LLMOPS_ASSIGN(const Json json, json_parse(header, {.depth_max = 8, .bytes_max = kHeaderMax}));
  SafeTensors file;
  file.data_begin = 8 + static_cast<int64_t>(header.size());
  for (const auto& [name, value] : json.as_object()) {
    if (name == "__metadata__") {
      if (!value.is_object() && !value.is_null()) return wrong("__metadata__ must be an object of strings");
      for (const auto& [key, text] : value.as_object())
        if (!text.is_string()) return wrong("__metadata__ must be an object of strings");
      file.metadata = value;
      continue;
    }
    LLMOPS_ASSIGN(SafeTensor tensor, read_entry(name, value, file.data_begin));
    file.tensors.push_back(std::move(tensor));
  }
  std::ranges::stable_sort(file.tensors, [](const SafeTensor& a, const SafeTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t at = file.data_begin;
  for (const SafeTensor& tensor : file.tensors) {
    if (tensor.begin != at)
      return wrong(fmt::format("tensor {} starts at byte {}, expected {}: there is {}",
                               escape_control(tensor.name.substr(0, 200)), tensor.begin, at,
                               tensor.begin > at ? "a hole" : "an overlap"));
    at = tensor.end;
  }
  if (at != file_bytes) return wrong(fmt::format("describes {} bytes, the file has {}", at, file_bytes));
  return file;
}

Result<SafeTensors> read_safetensors_header(const File& file) {
  LLMOPS_ASSIGN(const int64_t bytes, file.size());
  uint64_t length = 0;
  if (bytes < 8)
    return invalid_error(fmt::format("{}: has {} bytes, a safetensors file has at least 8", file.path(), bytes));
  LLMOPS_TRY(file.read_at(0, std::as_writable_bytes(std::span(&length, 1))));
  if (length > static_cast<uint64_t>(std::min<int64_t>(kHeaderMax, bytes - 8)))
    return invalid_error(fmt::format("{}: header length {} is beyond the file ({} bytes) or the limit of {}",
                                     file.path(), length, bytes, kHeaderMax));
  std::string header(length, '\0');
  LLMOPS_TRY(file.read_at(8, std::as_writable_bytes(std::span(header))));
  auto parsed = parse_safetensors_header(header, bytes);
  if (!parsed.ok()) return parsed.status().in(file.path());
  return parsed;
}

std::string safetensors_header(std::vector<SafeTensor>& tensors, const Json& metadata) {
  Json json(Json::Object{});
  if (!metadata.is_null()) json["__metadata__"] = metadata;
  int64_t at = 0;
  Json::Object object = json.as_object();
  for (SafeTensor& tensor : tensors) {
    Json entry(Json::Object{}), shape(Json::Array{}), offsets(Json::Array{});
    for (int64_t n : tensor.shape) shape.push_back(n);
    tensor.begin = at;
    tensor.end = at += *bytes_of(*tensor.dtype, elems_of(tensor.shape));
    offsets.push_back(tensor.begin);
    offsets.push_back(tensor.end);
    entry["dtype"] = info(*tensor.dtype).name;
    entry["shape"] = std::move(shape);
    entry["data_offsets"] = std::move(offsets);
    object.emplace_back(tensor.name, std::move(entry));
  }
  std::string text = Json(std::move(object)).dump();
  text.resize(static_cast<size_t>(round_up(static_cast<int64_t>(text.size()), 8)), ' ');
  const uint64_t length = text.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  for (SafeTensor& tensor : tensors) {
    tensor.begin += 8 + static_cast<int64_t>(length);
    tensor.end += 8 + static_cast<int64_t>(length);
  }
  return out + text;
}

}  // namespace llmops
