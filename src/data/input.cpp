#include "data/input.h"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/io.h"
#include "base/run.h"

namespace llmops {
namespace {

enum class Packing : uint8_t { plain, gzip, zstd };
constexpr size_t kRawBytes = size_t{1} << 18;

Packing packing_of(std::string_view head) {
  if (head.starts_with("\x1f\x8b")) return Packing::gzip;
  if (head.starts_with("\x28\xb5\x2f\xfd")) return Packing::zstd;
  const bool skippable = head.size() >= 4 && (head[0] & 0xf0) == 0x50 && head.substr(1, 3) == "\x2a\x4d\x18";
  return skippable ? Packing::zstd : Packing::plain;
}

}  // namespace

struct Input::State {
  File file;
  std::string path;
  Packing packing = Packing::plain;
  std::vector<char> raw = std::vector<char>(kRawBytes);
  size_t raw_begin = 0, raw_end = 0;
  bool raw_done = false;      // the file has no more bytes
  bool in_member = false;     // within a gzip member or zstd frame
  z_stream gzip = {};
  ZSTD_DCtx* zstd = nullptr;
  std::string peeked;         // decompressed, not yet read
  size_t peeked_begin = 0;

  ~State() {
    if (packing == Packing::gzip) inflateEnd(&gzip);
    ZSTD_freeDCtx(zstd);
  }
  Status bad(std::string_view what) const { return invalid_error(fmt::format("{}: {}", path, what)); }
  Status fill();
  Status start();
  Result<size_t> pull(std::span<char> out);
  Result<size_t> inflate_some(std::span<char> out);
  Result<size_t> zstd_some(std::span<char> out);
};

// Moves what is left to the front and reads more raw bytes behind it.
Status Input::State::fill() {
  std::memmove(raw.data(), raw.data() + raw_begin, raw_end - raw_begin);
  raw_end -= raw_begin;
  raw_begin = 0;
  if (cancel_signal()) return {Code::interrupted, "stopped while reading " + path};
  LLMOPS_ASSIGN(const size_t got, file.read_some(std::as_writable_bytes(std::span(raw).subspan(raw_end))));
  raw_done = got == 0;
  raw_end += got;
  return {};
}

Status Input::State::start() {
  while (raw_end < 4 && !raw_done) LLMOPS_TRY(fill());
  packing = packing_of({raw.data(), raw_end});
  if (packing == Packing::plain && raw_end > 0) {
    if (path.ends_with(".gz")) return bad("is named .gz but does not begin as gzip data");
    if (path.ends_with(".zst")) return bad("is named .zst but does not begin as zstd data");
  }
  if (packing == Packing::gzip && inflateInit2(&gzip, 15 + 16) != Z_OK)
    return io_error(path + ": out of memory for gzip");
  if (packing == Packing::zstd && !(zstd = ZSTD_createDCtx())) return io_error(path + ": out of memory for zstd");
  return {};
}

Result<size_t> Input::State::inflate_some(std::span<char> out) {
  if (!in_member) {
    while (raw_end - raw_begin < 2 && !raw_done) LLMOPS_TRY(fill());
    if (raw_begin == raw_end) return size_t{0};
    if (packing_of({raw.data() + raw_begin, raw_end - raw_begin}) != Packing::gzip)
      return bad("foreign bytes after the end of the gzip data");
    inflateReset(&gzip);
    in_member = true;
  }
  gzip.next_in = reinterpret_cast<Bytef*>(raw.data() + raw_begin);
  gzip.avail_in = static_cast<uInt>(raw_end - raw_begin);
  gzip.next_out = reinterpret_cast<Bytef*>(out.data());
  gzip.avail_out = static_cast<uInt>(out.size());
  const int code = inflate(&gzip, Z_NO_FLUSH);
  raw_begin = raw_end - gzip.avail_in;
  if (code == Z_STREAM_END) in_member = false;
  if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
    return bad(fmt::format("damaged gzip data: {}", gzip.msg ? gzip.msg : zError(code)));
  return out.size() - gzip.avail_out;
}

Result<size_t> Input::State::zstd_some(std::span<char> out) {
  if (!in_member && raw_begin == raw_end && raw_done) return size_t{0};
  ZSTD_inBuffer in = {raw.data() + raw_begin, raw_end - raw_begin, 0};
  ZSTD_outBuffer to = {out.data(), out.size(), 0};
  const size_t code = ZSTD_decompressStream(zstd, &to, &in);
  raw_begin += in.pos;
  if (ZSTD_isError(code)) return bad(fmt::format("damaged zstd data: {}", ZSTD_getErrorName(code)));
  in_member = code != 0;
  return to.pos;
}

// 0 only at the end.
Result<size_t> Input::State::pull(std::span<char> out) {
  if (out.empty()) return size_t{0};
  out = out.first(std::min(out.size(), size_t{1} << 30));  // zlib counts in 32 bits
  for (;;) {
    if (raw_begin == raw_end && !raw_done) LLMOPS_TRY(fill());
    const bool had_input = raw_begin < raw_end;
    if (packing == Packing::plain) {
      const size_t bytes = std::min(out.size(), raw_end - raw_begin);
      std::memcpy(out.data(), raw.data() + raw_begin, bytes);
      raw_begin += bytes;
      return bytes;
    }
    LLMOPS_ASSIGN(const size_t got, packing == Packing::gzip ? inflate_some(out) : zstd_some(out));
    if (got > 0) return got;
    if (raw_begin == raw_end && raw_done && !had_input) {
      if (in_member) return bad(fmt::format("truncated: the {} data stops in the middle",
                                            packing == Packing::gzip ? "gzip" : "zstd"));
      return size_t{0};
    }
  }
}

Input::Input(std::unique_ptr<State> state) : state_(std::move(state)) {}
Input::Input(Input&&) noexcept = default;
Input& Input::operator=(Input&&) noexcept = default;
Input::~Input() = default;

Result<Input> Input::open(const std::string& path) {
  auto state = std::make_unique<State>();
  LLMOPS_ASSIGN(state->file, File::open(path));
  state->path = path == "-" ? "stdin" : path;
  LLMOPS_TRY(state->start());
  return Input(std::move(state));
}

const std::string& Input::path() const { return state_->path; }
bool Input::compressed() const { return state_->packing != Packing::plain; }

Result<size_t> Input::read(std::span<char> out) {
  const size_t held = state_->peeked.size() - state_->peeked_begin;
  if (held == 0) return state_->pull(out);
  const size_t bytes = std::min(held, out.size());
  std::memcpy(out.data(), state_->peeked.data() + state_->peeked_begin, bytes);
  state_->peeked_begin += bytes;
  return bytes;
}

Result<std::string_view> Input::peek(size_t bytes) {
  std::string& peeked = state_->peeked;
  peeked.erase(0, state_->peeked_begin);
  state_->peeked_begin = 0;
  size_t held = peeked.size();
  peeked.resize(std::max(held, bytes));
  while (held < bytes) {
    auto got = state_->pull(std::span(peeked).subspan(held));
    if (!got.ok() || *got == 0) {
      peeked.resize(held);
      if (!got.ok()) return got.status();
      break;
    }
    held += *got;
  }
  return std::string_view(peeked).substr(0, bytes);
}

Result<std::string> read_all(const std::string& path, int64_t bytes_max) {
  LLMOPS_ASSIGN(Input input, Input::open(path));
  std::string content;
  for (size_t chunk = size_t{1} << 16;; chunk = std::min(chunk * 2, size_t{1} << 24)) {
    const size_t held = content.size();
    content.resize(held + chunk);
    LLMOPS_ASSIGN(const size_t got, input.read(std::span(content).subspan(held)));
    content.resize(held + got);
    if (got == 0) return content;
    if (static_cast<int64_t>(content.size()) > bytes_max)
      return invalid_error(fmt::format("{}: longer than {} bytes", input.path(), bytes_max));
  }
}

}  // namespace llmops
