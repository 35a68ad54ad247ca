// What a run writes beside its checkpoints: metrics.jsonl and TensorBoard events.
#pragma once

#include <string>

#include "base/io.h"
#include "base/json.h"

namespace llmops {

// TensorBoard's event file, without protobuf: records of (length, masked crc32c of the length, payload, masked crc32c
// of the payload), the payload an Event message {1 wall_time, 2 step, 3 file_version | 5 summary {1 {1 tag, 2
// simple_value}}} (tensorflow's tfrecord and event.proto). Flushed on record boundaries.
class EventWriter {
 public:
  // DIR/events.out.tfevents.<unix time>.<host>.<pid>
  static Result<EventWriter> create(const std::string& dir, double wall_time);
  Status scalar(std::string_view tag, int64_t step, float value, double wall_time);

 private:
  explicit EventWriter(File file) : file_(std::move(file)) {}
  Status record(std::string_view payload);
  File file_;
};

// For tests and for record(): CRC-32C, and TensorBoard's masking of it.
uint32_t crc32c(std::string_view data);
uint32_t masked_crc32c(std::string_view data);
std::string event_record(std::string_view payload);

// Appends one JSON object a line. On resume the records after `last_step` (of an interrupted run) are cut off first.
class MetricsFile {
 public:
  static Result<MetricsFile> open(const std::string& path, int64_t last_step);
  Status append(const Json& record);

 private:
  explicit MetricsFile(File file) : file_(std::move(file)) {}
  File file_;
};

}  // namespace llmops
