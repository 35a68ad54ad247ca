// Saving: each rank writes its chunks to a shard in the background; the last act is rank 0's manifest and a rename.
//
// In DIR/.step-%08d.tmp each rank writes shard-%05d.safetensors, then (but rank 0) a sidecar shard-%05d.json with the
// hashes of its chunks and its part of the logical digests. Rank 0 waits for all sidecars, merges them into
// manifest.json, syncs, renames to DIR/step-%08d, syncs DIR, then rewrites DIR/latest. A rank that cannot write renames
// the folder to DIR/.step-%08d.failed, and rank 0 gives up and removes it. No file of a step depends on time, host,
// path or rank count beyond the chunks themselves.
#pragma once

#include <memory>
#include <optional>

#include "base/io.h"
#include "ckpt/checkpoint.h"

namespace llmops {

struct Chunk {
  std::string name;  // state_name() of a logical tensor
  Shape shape;       // of the whole tensor
  Box box;           // the region that is here
  DType dtype = DType::f32;
  const void* data = nullptr;
  int64_t row_stride = 0;  // elements between rows of the box
};

// The memory that a save writes from, and how the rows of chunks come there: here plain memory and memcpy. Data of a
// device needs other ways (train/persist.h).
class Staging {
 public:
  virtual ~Staging() = default;
  virtual Result<char*> reserve(int64_t bytes);  // kept for the next save; its content stays until then
  virtual void copy_rows(char* to, const void* from, int64_t from_pitch, int64_t row_bytes, int64_t rows);
  virtual Status finish() { return {}; }  // all copies are done
  virtual int64_t bytes() const { return static_cast<int64_t>(memory_.capacity()); }

 private:
  std::vector<char> memory_;
};

struct SaveRequest {
  int64_t step = 0;
  int rank = 0, world = 1;
  std::vector<Chunk> chunks;
  Json meta;                      // rank 0: {"model": ..., "tokenizer": ..., "train": ...}
  std::vector<StoredFile> files;  // rank 0
};

struct SaveReport {
  Status status;
  bool follows = false;  // it failed because another rank did, which says why
  int64_t step = 0;
  int64_t bytes = 0;   // of this rank's shard
  double stall_s = 0;  // the training thread was held: waiting for the previous save, copying
  double drain_s = 0;  // from the copy to the commit, beside training
};

class ShardSaver {
 public:
  explicit ShardSaver(std::string run_dir, Fs& fs = real_fs(), double deadline_s = 600,
                      std::unique_ptr<Staging> staging = std::make_unique<Staging>());
  ~ShardSaver();  // cancels
  // Copies the chunks (staging memory is kept for the next save), then returns. Code::usage while a save is in progress
  // or its result was not taken: wait() first.
  Status start(const SaveRequest& request);
  bool busy() const;
  std::optional<SaveReport> poll();  // each finished save once; never blocks
  std::optional<SaveReport> wait();  // the same, waiting for one in progress
  void cancel();                     // gives up the save in progress: another rank failed
  int64_t staging_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace llmops
