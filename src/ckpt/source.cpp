#include "ckpt/source.h"

#include "base/io.h"
#include "ckpt/checkpoint.h"

namespace llmops {

Result<std::unique_ptr<TensorSource>> open_weights(const std::string& path) {
  LLMOPS_ASSIGN(const Dir dir, Dir::open(path));
  if (!dir.exists("manifest.json")) return open_hf(path);
  LLMOPS_ASSIGN(std::unique_ptr<Checkpoint> step, Checkpoint::open(path));
  return std::unique_ptr<TensorSource>(std::move(step));
}

}  // namespace llmops
