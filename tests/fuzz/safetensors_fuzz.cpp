// A safetensors file as bytes: what is accepted tiles the file, and our writer says the same about it.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "ckpt/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 8) return 0;
  uint64_t length = 0;
  std::memcpy(&length, data, 8);
  if (length > size - 8) return 0;
  const std::string header(reinterpret_cast<const char*>(data) + 8, static_cast<size_t>(length));
  auto file = llmops::parse_safetensors_header(header, static_cast<int64_t>(size));
  if (!file.ok()) return 0;
  int64_t at = 8 + static_cast<int64_t>(length);
  bool ours = true;
  for (const llmops::SafeTensor& tensor : file->tensors) {
    if (tensor.begin != at || tensor.end < tensor.begin || tensor.end > static_cast<int64_t>(size)) std::abort();
    at = tensor.end;
    ours = ours && tensor.dtype.has_value();
  }
  if (at != static_cast<int64_t>(size)) std::abort();
  if (!ours) return 0;
  auto tensors = file->tensors;
  const std::string again = llmops::safetensors_header(tensors, file->metadata);
  const int64_t data_bytes = at - file->data_begin;
  const auto reread = llmops::parse_safetensors_header(std::string_view(again).substr(8),
                                                       static_cast<int64_t>(again.size()) + data_bytes);
  if (!reread.ok() || reread->tensors.size() != tensors.size()) std::abort();
  return 0;
}
