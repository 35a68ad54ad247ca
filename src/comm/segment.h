// The memory file that the ranks of one launch share: a header, group blocks and allocations, all at file offsets.
//
// Nothing in it is a lock: ranks write only words of their own (or words with one writer at a time) and wait on one
// "bell" word, so a rank that dies at any instruction blocks nobody beyond the deadline. Ranks that are threads share
// one Segment object, so that tsan sees the same addresses.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/comm.h"

namespace llmops {

struct SegmentHeader {
  static constexpr uint64_t kMagic = 0x31706d6f63706f6c;
  uint64_t magic;
  int32_t world;
  std::atomic<uint64_t> bytes_used;  // end of the file's allocated part
  alignas(64) std::atomic<uint32_t> bell;  // futex; moves when any rank has made progress
  std::atomic<uint32_t> sleepers;          // a rank that died asleep leaves it too high, which costs only a system call
  alignas(64) std::atomic<uint32_t> abort_state;  // 0 no, 1 the reason is being written, 2 aborted
  char abort_reason[1000];
  std::atomic<int32_t> pid[kRanksMax];  // 0: not there yet
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

class Segment {
 public:
  static constexpr uint64_t kPage = 4096;
  static constexpr uint64_t kHeaderBytes = kPage;
  static_assert(sizeof(SegmentHeader) <= kHeaderBytes);

  static Result<std::shared_ptr<Segment>> create(int world);
  static Result<std::shared_ptr<Segment>> attach(int fd);  // owns fd from then on if it succeeds
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int fd() const { return fd_; }
  int world() const { return header_->world; }
  SegmentHeader& header() const { return *header_; }

  // Reserves zero-filled room at the end of the file; the offset is a multiple of kPage.
  Result<uint64_t> extend(uint64_t bytes);
  // The address of file bytes [offset, offset + bytes), mapped once and kept.
  Result<char*> at(uint64_t offset, uint64_t bytes);
  // Where in the file `data` is, when it lies within one of our mappings.
  std::optional<uint64_t> offset_of(const void* data, uint64_t bytes);

  // Says that something which peers may be waiting for has changed.
  void ring();
  enum class WaitEnd : uint8_t { done, aborted, lost, late };
  // Spins for at most 20 us, then sleeps until done(). lost() is asked now and then: has a rank died that we wait for?
  WaitEnd wait(const std::function<bool()>& done, const std::function<bool()>& lost, double deadline_s);

  void abort(const std::string& reason);
  Status aborted() const;
  bool alive(int rank) const;               // false once its process is gone
  std::string name_of(int rank) const;      // "rank 1 (pid 123)"

 private:
  explicit Segment(int fd) : fd_(fd) {}
  struct Mapping {
    uint64_t offset, bytes;
    char* address;
  };
  int fd_;
  SegmentHeader* header_ = nullptr;
  std::mutex mutex_;  // of this process only
  std::vector<Mapping> mappings_;
};

}  // namespace llmops
