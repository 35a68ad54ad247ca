// Whatever byte or file of a step changes, verify() finds it and names the file.
#include "ckpt/verify.h"

#include <doctest/doctest.h>

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/run.h"
#include "ckpt/manifest.h"
#include "ckpt/safetensors.h"
#include "support/scratch.h"
#include "unit/ckpt/tiny_run.h"

using namespace llmops;
using namespace llmops::testing;

namespace {

struct Step {
  Scratch run;
  std::string path = run.path(step_name(3));
  Pool pool{1};
  Step() {
    save_ok(run.path(), tiny_config(Family::gpt2, 2, 1), 2, 3, 0,
            {{"merges.txt", "#version: 0.2\na b\n"}, {"vocab.json", "{\"a\":0,\"b\":1,\"ab\":2}"}});
  }

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path)) names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }
  std::vector<Finding> findings() {
    const auto report = verify(path, pool);
    REQUIRE_MESSAGE(report.ok(), report.status().message());
    return report->findings;
  }
  // Some finding names the file; the only file that any finding names, unless it is the manifest that cannot be read.
  bool found_in(const std::string& file) {
    const auto all = findings();
    for (const Finding& f : all)
      if (f.file != file) return false;
    return !all.empty();
  }
  std::string text(const std::string& name) const { return *read_file(path + "/" + name); }
  void put(const std::string& name, const std::string& content) const { run.put(step_name(3) + "/" + name, content); }
};

// A manifest whose own hash is right, whatever it says.
std::string sealed(std::string text) {
  const std::string key = "\"manifest_xxh3\":\"";
  const size_t at = text.find(key) + key.size();
  text.replace(at, 32, std::string(32, '0'));
  return text.replace(at, 32, to_hex(hash128(std::as_bytes(std::span(text)))));
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != text.npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("a flip of any byte of any file is found, and the file is named") {
  Step step;
  CHECK(step.findings().empty());
  int64_t flips = 0;
  for (const std::string& name : step.files()) {
    const std::string content = step.text(name);
    const int fd = ::open((step.path + "/" + name).c_str(), O_WRONLY | O_CLOEXEC);
    REQUIRE(fd >= 0);
    for (size_t i = 0; i < content.size(); ++i) {
      const char changed = static_cast<char>(content[i] ^ (i % 9 == 8 ? 0xff : 1 << i % 9));
      REQUIRE(::pwrite(fd, &changed, 1, static_cast<off_t>(i)) == 1);
      if (!step.found_in(name)) FAIL_CHECK(name << ": byte " << i);
      REQUIRE(::pwrite(fd, &content[i], 1, static_cast<off_t>(i)) == 1);
      ++flips;
    }
    ::close(fd);
  }
  CHECK(step.findings().empty());
  CHECK(flips > 10000);
  MESSAGE(flips, " flips");
}

TEST_CASE("a flipped byte of a tensor is told with its tensor and its range; the header without") {
  Step step;
  const auto file = File::open(step.path + "/shard-00001.safetensors");
  const auto header = read_safetensors_header(*file);
  REQUIRE(header.ok());
  const SafeTensor& last = header->tensors.back();
  std::string content = step.text("shard-00001.safetensors");
  content[static_cast<size_t>(last.begin)] ^= 4;
  step.put("shard-00001.safetensors", content);
  auto findings = step.findings();
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].file == "shard-00001.safetensors");
  CHECK(findings[0].tensor == last.name.substr(0, last.name.find('@')));
  CHECK(findings[0].begin == last.begin);
  CHECK(findings[0].end == last.end);
  content[static_cast<size_t>(last.begin)] ^= 4;
  content[20] ^= 1;
  step.put("shard-00001.safetensors", content);
  findings = step.findings();
  REQUIRE(findings.size() >= 2);  // by file and place
  CHECK(findings.front().begin == 0);
  CHECK(findings.front().end == header->data_begin);
}

TEST_CASE("removed, added, truncated and grown files, links and folders in their place") {
  Step step;
  namespace fs = std::filesystem;
  for (const std::string& name : step.files()) {
    CAPTURE(name);
    const std::string content = step.text(name), path = step.path + "/" + name;
    fs::remove(path);
    if (name != kManifestName)
      CHECK(step.found_in(name));
    else
      CHECK(verify(step.path, step.pool).status().code() == Code::invalid);
    for (size_t size : {size_t{0}, size_t{1}, content.size() / 2, content.size() - 1}) {
      step.put(name, content.substr(0, size));
      CHECK(step.found_in(name));
    }
    step.put(name, content + '\0');
    CHECK(step.found_in(name));
    fs::remove(path);
    step.run.put("elsewhere", content);  // the right bytes, but not here
    fs::create_symlink(step.run.path("elsewhere"), path);
    CHECK(step.found_in(name));
    fs::remove(path);
    fs::create_directory(path);
    CHECK(step.found_in(name));
    fs::remove(path);
    step.put(name, content);
    CHECK(step.findings().empty());
  }
  step.put("extra.bin", "");
  CHECK(step.found_in("extra.bin"));
  fs::remove(step.path + "/extra.bin");
  fs::create_directory(step.path + "/folder");
  CHECK(step.found_in("folder"));
}

TEST_CASE("a step under the name of another step would be resumed in its place; under any other name it is a copy") {
  const Step step;
  namespace fs = std::filesystem;
  const std::string other = step.run.path("step-00000099"), copy = step.run.path("best");
  fs::copy(step.path, other, fs::copy_options::recursive);
  fs::copy(step.path, copy, fs::copy_options::recursive);
  Pool pool(1);
  const auto renamed = verify(other, pool);
  REQUIRE(renamed.ok());
  REQUIRE(renamed->findings.size() == 1);
  CHECK(renamed->findings[0].file == kManifestName);
  CHECK(renamed->findings[0].what.find("name says 99") != std::string::npos);
  CHECK(verify(copy, pool)->findings.empty());
}

TEST_CASE("a manifest with a right hash and wrong content is refused") {
  Step step;
  const std::string good = step.text(kManifestName);
  REQUIRE(sealed(good) == good);
  REQUIRE(parse_manifest(good).ok());
  const std::pair<const char*, const char*> edits[] = {
      {"llmops-checkpoint", "other-checkpoint"},
      {"\"version\":1", "\"version\":2"},
      {"\"step\":3", "\"step\":-3"},
      {"\"step\":3", "\"step\":3.5"},
      {"shard-00001", "shard-00000"},
      {"\"name\":\"shard-00000", "\"name\":\"../shard-00000"},
      {"\"file\":1", "\"file\":9"},
      {"\"file\":1", "\"file\":0"},
      {"\"offset\":[0", "\"offset\":[1"},
      {"\"offset\":[0", "\"offset\":[-1"},
      {"\"dtype\":\"F32\"", "\"dtype\":\"F64\""},
      {"\"dtype\":\"F32\"", "\"dtype\":\"X\""},
      {"\"extent\":[", "\"extent\":[9223372036854775807,"},
      {"\"bytes\":", "\"bytes\":9"},
      {"\"begin\":", "\"begin\":1"},
      {"\"xxh3\":\"", "\"xxh3\":\"g"},
      {"\"tensors\":[{\"name\":\"", "\"tensors\":[{\"name\":\"transformer.wpe.weight\",\"x\":\""},
      {"\"files\":[", "\"files\":[1,"},
      {"\"shape\":[7,2]", "\"shape\":[7,3]"},
      {"\"shape\":[7,2]", "\"shape\":[4611686018427387904,4]"},
      {"\"shape\":[7,2]", "\"shape\":[7,2,1]"},
      {"\"shape\":[7,2]", "\"shape\":7"}};
  for (const auto& [from, to] : edits) {
    CAPTURE(to);
    const std::string text = sealed(replaced(good, from, to));
    const auto parsed = parse_manifest(text);
    CHECK(parsed.status().code() == Code::invalid);
    step.put(kManifestName, text);
    CHECK(step.found_in(kManifestName));
    CHECK_FALSE(Checkpoint::open(step.path).ok());
  }
  // Found only against the files: another digest, another model, no model.
  const size_t digest = good.find("\"digest\":\"") + 10;
  std::string other = good;
  other[digest] = other[digest] == '0' ? '1' : '0';
  for (const std::string& text :
       {other, replaced(good, "\"vocab\":7", "\"vocab\":8"), replaced(good, "\"model\":", "\"modle\":")}) {
    step.put(kManifestName, sealed(text));
    CHECK(step.found_in(kManifestName));
  }
  for (const char* text :
       {"", "{}", "[]", "{\"manifest_xxh3\":\"", "\"manifest_xxh3\":\"00000000000000000000000000000000\""})
    CHECK_FALSE(parse_manifest(text).ok());
}

TEST_CASE("chunks that overlap, leave gaps or reach out of their tensor are refused in any order") {
  const auto chunked = [](std::vector<std::pair<Box, bool>> boxes) {
    Manifest manifest;
    ManifestTensor tensor{"t", DType::u8, {4, 6}, {}, {}};
    int64_t at = 8;
    for (const auto& [box, keep] : boxes) {
      if (!keep) continue;
      tensor.chunks.push_back({0, box, at, at + elems_of(box.extent), {}});
      at = tensor.chunks.back().end;
    }
    manifest.files.push_back({"a", at, {}});
    manifest.tensors.push_back(std::move(tensor));
    return parse_manifest(to_text(manifest)).ok();
  };
  const Box a{{0, 0}, {2, 3}}, b{{0, 3}, {4, 2}}, c{{2, 0}, {2, 3}}, d{{0, 5}, {1, 1}}, e{{1, 5}, {3, 1}};
  std::vector<Box> order = {a, b, c, d, e};
  std::ranges::sort(order, {}, [](const Box& box) { return std::tie(box.offset, box.extent); });
  do {
    std::vector<std::pair<Box, bool>> boxes;
    for (const Box& box : order) boxes.emplace_back(box, true);
    CHECK(chunked(boxes));
    for (auto& [box, keep] : boxes) {
      keep = false;  // a gap
      CHECK_FALSE(chunked(boxes));
      keep = true;
    }
    boxes.back().first.offset[0] += boxes.back().first.offset[0] > 0 ? -1 : 1;  // an overlap, or outside
    CHECK_FALSE(chunked(boxes));
  } while (std::next_permutation(order.begin(), order.end(), [](const Box& x, const Box& y) {
    return std::tie(x.offset, x.extent) < std::tie(y.offset, y.extent);
  }));
}

TEST_CASE("a run folder: all its steps; what is no checkpoint; what is missing") {
  Scratch run;
  Pool pool(2);
  CHECK(verify(run.path(), pool).status().code() == Code::invalid);
  CHECK(verify(run.path("nowhere"), pool).status().code() == Code::io);
  const ModelConfig config = tiny_config(Family::llama, 4, 1);
  for (int64_t step : {1, 2, 3}) save_ok(run.path(), config, 2, step, static_cast<int>(step));
  int64_t last_done = 0, last_total = 0;
  auto report = verify(run.path(), pool, [&](int64_t done, int64_t total) {
    CHECK(done >= last_done);
    CHECK(done <= total);
    last_done = done;
    last_total = total;
  });
  REQUIRE(report.ok());
  CHECK(report->findings.empty());
  CHECK(report->steps.size() == 3);
  CHECK(report->files == 9);
  CHECK(last_total > 0);

  std::string shard = run.get("step-00000003/shard-00001.safetensors");
  shard.back() ^= 1;
  run.put("step-00000003/shard-00001.safetensors", shard);
  run.put("step-00000002/manifest.json", "{");
  run.put("step-00000009", "not a folder");
  report = verify(run.path(), pool);
  REQUIRE(report.ok());
  REQUIRE(report->findings.size() == 3);
  CHECK(report->findings[0].file == "step-00000002/manifest.json");
  CHECK(report->findings[1].file == "step-00000003/shard-00001.safetensors");
  CHECK(report->findings[2].file == "step-00000009");
  const auto newest = newest_valid(run.path(), pool);
  REQUIRE(newest.ok());
  CHECK(newest->step->step == 1);
  CHECK(newest->skipped.size() == 3);
  CHECK_MESSAGE(newest->skipped[1].find("shard-00001.safetensors") != std::string::npos, newest->skipped[1]);

  request_cancel(SIGINT);
  CHECK(verify(run.path(), pool).status().code() == Code::interrupted);
  CHECK(newest_valid(run.path(), pool).status().code() == Code::interrupted);
  request_cancel(0);
}
