#include "train/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstring>

namespace llmops {
namespace {

Status write_all(const File& file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = real_fs().write(file.fd(), text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_status(file.path(), "write", errno);
    text.remove_prefix(static_cast<size_t>(n));
  }
  return {};
}

Result<File> open_for_append(const std::string& path) {
  const int fd = real_fs().openat(AT_FDCWD, path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return errno_status(path, "open", errno);
  return File(real_fs(), fd, path);
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}
template <class T>
void put_raw(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}
void put_bytes(std::string& out, int field, std::string_view bytes) {
  put_varint(out, static_cast<uint64_t>(field) << 3 | 2);
  put_varint(out, bytes.size());
  out.append(bytes);
}
std::string event_start(double wall_time) {
  std::string event("\x09", 1);  // field 1, 64-bit
  put_raw(event, wall_time);
  return event;
}

}  // namespace

uint32_t crc32c(std::string_view data) {
  static constexpr auto kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = c & 1 ? 0x82f63b78u ^ c >> 1 : c >> 1;
      table[i] = c;
    }
    return table;
  }();
  uint32_t crc = ~0u;
  for (char byte : data) crc = kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xff] ^ crc >> 8;
  return ~crc;
}

uint32_t masked_crc32c(std::string_view data) { return std::rotr(crc32c(data), 15) + 0xa282ead8u; }

std::string event_record(std::string_view payload) {
  std::string out;
  put_raw(out, static_cast<uint64_t>(payload.size()));
  put_raw(out, masked_crc32c(out));
  out.append(payload);
  put_raw(out, masked_crc32c(payload));
  return out;
}

Result<EventWriter> EventWriter::create(const std::string& dir, double wall_time) {
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  LLMOPS_ASSIGN(File file, open_for_append(fmt::format("{}/events.out.tfevents.{}.{}.{}", dir,
                                                       static_cast<int64_t>(wall_time), host, getpid())));
  EventWriter writer(std::move(file));
  std::string event = event_start(wall_time);
  put_bytes(event, 3, "brain.Event:2");
  LLMOPS_TRY(writer.record(event));
  return writer;
}

Status EventWriter::record(std::string_view payload) { return write_all(file_, event_record(payload)); }

Status EventWriter::scalar(std::string_view tag, int64_t step, float value, double wall_time) {
  std::string item, summary, event = event_start(wall_time);
  put_bytes(item, 1, tag);
  item.push_back(0x15);  // field 2, 32-bit
  put_raw(item, value);
  put_bytes(summary, 1, item);
  event.push_back(0x10);  // field 2, varint
  put_varint(event, static_cast<uint64_t>(step));
  put_bytes(event, 5, summary);
  return record(event);
}

Result<MetricsFile> MetricsFile::open(const std::string& path, int64_t last_step) {
  LLMOPS_ASSIGN(File file, open_for_append(path));
  const auto content = read_file(path);
  if (!content.ok()) return content.status();
  size_t keep = 0;  // whole lines up to the step that the run goes on from
  for (size_t begin = 0, end; (end = content->find('\n', begin)) != std::string::npos; begin = end + 1) {
    const auto line = json_parse(std::string_view(*content).substr(begin, end - begin));
    const Json* step = line.ok() ? line->find("step") : nullptr;
    if (!step || step->as_int() > last_step) break;
    keep = end + 1;
  }
  if (ftruncate(file.fd(), static_cast<off_t>(keep)) != 0) return errno_status(path, "truncate", errno);
  return MetricsFile(std::move(file));
}

Status MetricsFile::append(const Json& record) { return write_all(file_, record.dump() + "\n"); }

}  // namespace llmops
