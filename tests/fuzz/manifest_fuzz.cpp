// A manifest.json as bytes, its own hash put right so that the rest is reached: what is accepted reads back the same
// after writing.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "ckpt/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  const std::string key = "\"manifest_xxh3\":\"";
  const size_t at = text.find(key);
  if (at != text.npos && at + key.size() + 32 <= text.size()) {
    text.replace(at + key.size(), 32, 32, '0');
    text.replace(at + key.size(), 32, llmops::to_hex(llmops::hash128(std::as_bytes(std::span(text)))));
  }
  const auto manifest = llmops::parse_manifest(text);
  if (!manifest.ok()) return 0;
  const std::string written = llmops::to_text(*manifest);
  const auto again = llmops::parse_manifest(written);
  if (!again.ok() || llmops::to_text(*again) != written) std::abort();
  for (const llmops::ManifestTensor& tensor : manifest->tensors)
    for (const llmops::ManifestChunk& chunk : tensor.chunks)
      if (chunk.end > manifest->files[chunk.file].bytes) std::abort();
  return 0;
}
