#include "data/input.h"

#include <doctest/doctest.h>

#include <random>

#include "data/records.h"
#include "pack.h"
#include "support/scratch.h"

using namespace llmops;
using namespace llmops::testing;

namespace {

std::string noise(size_t bytes) {
  std::mt19937 random(3);
  std::string out(bytes, '\0');
  for (char& c : out) c = static_cast<char>('a' + random() % 20);
  return out;
}

Status read_status(const std::string& path) { return read_all(path, 1 << 30).status(); }
bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("plain, gzip and zstd give the same bytes, members one after another too") {
  Scratch scratch;
  const std::string text = noise(1000003);
  CHECK(*read_all(scratch.put("a.txt", text), 1 << 30) == text);
  CHECK(*read_all(scratch.put("a.gz", gzip(text)), 1 << 30) == text);
  CHECK(*read_all(scratch.put("a.zst", zstd(text)), 1 << 30) == text);
  CHECK(*read_all(scratch.put("b.gz", gzip(text) + gzip("") + gzip("more")), 1 << 30) == text + "more");
  CHECK(*read_all(scratch.put("b.zst", zstd(text) + zstd("") + zstd("more")), 1 << 30) == text + "more");
  CHECK(*read_all(scratch.put("named.txt", gzip(text)), 1 << 30) == text);
  CHECK(read_all(scratch.path("a.gz"), 1000).status().code() == Code::invalid);
  CHECK(read_all(scratch.path("absent"), 1000).status().code() == Code::io);
  CHECK(read_all(scratch.put("empty.gz", ""), 1000)->empty());
}

TEST_CASE("peek does not consume") {
  Scratch scratch;
  auto input = Input::open(scratch.put("a.zst", zstd("hello world")));
  REQUIRE(input.ok());
  CHECK(*input->peek(5) == "hello");
  CHECK(*input->peek(100) == "hello world");
  char out[7];
  CHECK(*input->read(out) == 7);
  CHECK(*input->peek(2) == "or");
  CHECK(input->compressed());
}

TEST_CASE("damaged streams are invalid at every cut and with any byte flipped in check data") {
  Scratch scratch;
  const std::string text = noise(3000), gz = gzip(text), zst = zstd(text);
  for (size_t cut = 4; cut < gz.size(); cut += 97)
    CHECK(read_status(scratch.put("cut.gz", gz.substr(0, cut))).code() == Code::invalid);
  for (size_t cut = 5; cut < zst.size(); cut += 97)
    CHECK(read_status(scratch.put("cut.zst", zst.substr(0, cut))).code() == Code::invalid);
  CHECK(contains(read_status(scratch.put("cut.gz", gz.substr(0, gz.size() - 1))).message(), "truncated"));
  CHECK(contains(read_status(scratch.put("cut.zst", zst.substr(0, zst.size() - 1))).message(), "truncated"));
  for (size_t back = 1; back <= 4; ++back) {
    std::string bad_gz = gz, bad_zst = zst;
    bad_gz[gz.size() - 4 - back] ^= 1;  // CRC-32, before the 4 bytes of length
    bad_zst[zst.size() - back] ^= 1;    // XXH64, low 32 bits
    CHECK(contains(read_status(scratch.put("bad.gz", bad_gz)).message(), "incorrect data check"));
    CHECK(contains(read_status(scratch.put("bad.zst", bad_zst)).message(), "checksum"));
  }
  CHECK(contains(read_status(scratch.put("tail.gz", gz + "x")).message(), "foreign bytes"));
  CHECK(read_status(scratch.put("tail.zst", zst + "xxxx")).code() == Code::invalid);
  CHECK(contains(read_status(scratch.put("wrong.gz", "text")).message(), "is named .gz"));
  CHECK(contains(read_status(scratch.put("wrong.zst", "text")).message(), "is named .zst"));
}

TEST_CASE("records: lines of all kinds, numbers of lines, malformed ones counted") {
  Scratch scratch;
  const std::string path = scratch.put("a.jsonl", "{\"a\":1}\r\n\n  \n{\"a\":\n[1]\n{\"a\":1,\"a\":2}\n{\"a\":4}");
  auto reader = RecordReader::open(path, {.keep_going = true});
  REQUIRE(reader.ok());
  std::vector<std::pair<int64_t, bool>> seen;
  std::vector<std::string> messages;
  for (;;) {
    auto record = reader->next();
    REQUIRE(record.ok());
    if (!*record) break;
    seen.emplace_back((*record)->line, (*record)->status.ok());
    messages.push_back((*record)->status.message());
  }
  CHECK(seen == std::vector<std::pair<int64_t, bool>>{{1, true}, {4, false}, {5, false}, {6, false}, {7, true}});
  CHECK(reader->records() == 2);
  CHECK(reader->malformed() == 3);
  CHECK(messages[1].starts_with(path + ":4: column "));
  CHECK(messages[2] == path + ":5: found [1], expected a JSON object");
  CHECK(contains(messages[3], "duplicate key \"a\""));

  auto strict = RecordReader::open(path);
  CHECK(strict->next().ok());
  CHECK(strict->next().status().code() == Code::invalid);
}

TEST_CASE("records: a line of 3 MB is read, one beyond the limit is skipped whole") {
  Scratch scratch;
  const std::string big = "{\"t\":\"" + noise(3 << 20) + "\"}";
  const std::string path = scratch.put("a.jsonl.gz", gzip(big + "\n{\"t\":\"x\"}\n"));
  auto all = RecordReader::open(path);
  CHECK((*all->next())->json.find("t")->as_string().size() == 3 << 20);
  CHECK((*all->next())->json.find("t")->as_string() == "x");
  CHECK_FALSE((*all->next()).has_value());
  auto bounded = RecordReader::open(path, {.line_bytes_max = 1000, .keep_going = true});
  CHECK(contains((*bounded->next())->status.message(), ":1: longer than 1000 bytes"));
  CHECK((*bounded->next())->json.find("t")->as_string() == "x");
}

TEST_CASE("line lengths about the limit") {
  Scratch scratch;
  for (size_t length = 8; length <= 12; ++length) {
    auto input = Input::open(scratch.put("lines", std::string(length, 'x') + "\nend"));
    LineReader lines(std::move(*input), 10);
    std::string_view line;
    bool too_long = false;
    CHECK(*lines.next(&line, &too_long));
    CHECK(too_long == (length > 10));
    CHECK(line.size() == std::min<size_t>(length, 10));
    CHECK(*lines.next(&line, &too_long));
    CHECK(line == "end");
    CHECK(lines.line_number() == 2);
    CHECK_FALSE(*lines.next(&line, &too_long));
  }
}

TEST_CASE("records: nesting is bounded") {
  RecordOptions options;
  const auto nested = [](int depth) {
    return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  CHECK(parse_record(nested(60), options).ok());
  CHECK(parse_record(nested(70), options).status().code() == Code::invalid);
  CHECK(parse_record(nested(1000000), options).status().code() == Code::invalid);
}
