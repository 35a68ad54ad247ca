// Hugging Face directories: what transformers wrote, and every way in which such a folder can be wrong.
#include "ckpt/source.h"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>

#include "base/io.h"
#include "ckpt/safetensors.h"
#include "support/scratch.h"

using namespace llmops;
using llmops::testing::Scratch;

namespace {

const std::string kData = LLMOPS_TESTDATA;

// The formula behind testdata/ckpt: the top 24 bits of splitmix64(FNV-1a(name) + i), centred, times 2^-26; norm weights
// are 1 more.
float formula(const std::string& name, int64_t i) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (unsigned char c : name) hash = (hash ^ c) * 0x100000001B3ull;
  uint64_t z = hash + static_cast<uint64_t>(i) + 0x9E3779B97F4A7C15ull;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ z >> 27) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  const double value = (static_cast<double>(z >> 40) - 0x1p23) * 0x1p-26;
  const bool norm = (name.find("norm") != name.npos || name.find("ln_") != name.npos) && name.ends_with("weight");
  return static_cast<float>(norm ? value + 1.0 : value);
}

std::vector<float> read_all(const TensorSource& source, int logical) {
  const Shape& shape = source.tensors()[logical].shape;
  std::vector<float> values(static_cast<size_t>(elems_of(shape)));
  const Status status = source.read(StateKind::weight, logical, whole(shape), DType::f32, values.data(), shape.back());
  CHECK_MESSAGE(status.ok(), status.message());
  return values;
}

// The element of HF's tensor that element i of a logical tensor is.
int64_t index_in_hf(const HfTensor& hf, const std::vector<LogicalTensor>& tensors, int logical, int64_t i) {
  int64_t begin = 0;
  for (int piece : hf.pieces) {
    if (piece == logical) break;
    begin += tensors[piece].shape[hf.axis];
  }
  const Shape& shape = tensors[logical].shape;
  if (shape.size() == 1) return begin + i;
  const int64_t row = i / shape[1], column = i % shape[1];
  return hf.axis == 0 ? (row + begin) * hf.shape[1] + column : row * hf.shape[1] + column + begin;
}

void check_formula(const std::string& dir, DType stored) {
  auto source = open_hf(dir);
  REQUIRE_MESSAGE(source.ok(), source.status().message());
  for (const HfTensor& hf : hf_tensors((*source)->config()))
    for (int logical : hf.pieces) {
      const std::vector<float> values = read_all(**source, logical);
      int64_t wrong = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        const float exact = formula(hf.name, index_in_hf(hf, (*source)->tensors(), logical, static_cast<int64_t>(i)));
        wrong += values[i] != (stored == DType::bf16 ? to_f32(to_bf16(exact)) : exact);
      }
      CHECK_MESSAGE(wrong == 0, hf.name);
    }
}

// A directory that can be damaged: the tensors of a file, and its config.
struct Folder {
  Scratch scratch;
  std::vector<SafeTensor> tensors;
  std::vector<std::string> data;

  explicit Folder(const std::string& model) {
    scratch.put("config.json", *read_file(kData + "/models/" + model + "/config.json"));
    const std::string path = kData + "/models/" + model + "/model.safetensors";
    const auto file = File::open(path);
    const auto header = read_safetensors_header(*file);
    const std::string all = *read_file(path);
    for (const SafeTensor& t : header->tensors) add(t.name, *t.dtype, t.shape, all.substr(t.begin, t.end - t.begin));
  }
  void add(const std::string& name, DType dtype, const Shape& shape, const std::string& bytes) {
    tensors.push_back({name, dtype, shape});
    data.push_back(bytes);
  }
  size_t at(const std::string& name) const {
    for (size_t i = 0; i < tensors.size(); ++i)
      if (tensors[i].name == name) return i;
    FAIL("no tensor ", name);
    return 0;
  }
  void write(const std::string& name = "model.safetensors") {
    std::string text = safetensors_header(tensors);
    for (const std::string& part : data) text += part;
    scratch.put(name, text);
  }
  std::string error() {
    const auto source = open_hf(scratch.path());
    return source.ok() ? "" : source.status().message();
  }
  bool says(std::string_view what) {
    const std::string message = error();
    const bool found = message.find(what) != message.npos && message.starts_with(scratch.path());
    if (!found) MESSAGE("said: ", message);
    return found;
  }
};

}  // namespace

TEST_CASE("sharded directories written by transformers, f32 and bf16, element by element") {
  check_formula(kData + "/ckpt/hf-gpt2-f32-sharded", DType::f32);
  check_formula(kData + "/ckpt/hf-llama-bf16-sharded", DType::bf16);
}

TEST_CASE("both spellings of a config give the same model and the same weights") {
  for (const char* name : {"llama", "llama_rope3", "llama_tied_bias", "qwen3"}) {
    const std::string dir = kData + "/models/" + name;
    Scratch v4;
    v4.put("config.json", *read_file(dir + "/config.v4.json"));
    std::filesystem::copy_file(dir + "/model.safetensors", v4.path("model.safetensors"));
    auto a = open_hf(dir), b = open_hf(v4.path());
    REQUIRE_MESSAGE(a.ok(), a.status().message());
    REQUIRE_MESSAGE(b.ok(), b.status().message());
    CHECK((*a)->config() == (*b)->config());
    for (size_t i = 0; i < (*a)->tensors().size(); ++i)
      CHECK(read_all(**a, static_cast<int>(i)) == read_all(**b, static_cast<int>(i)));
  }
}

TEST_CASE("a box of a fused tensor, with rows apart, as bf16") {
  auto source = open_hf(kData + "/models/gpt2");
  REQUIRE(source.ok());
  int logical = 0;
  while ((*source)->tensors()[logical].name != "transformer.h.1.attn.c_attn.weight#k") ++logical;
  const std::vector<float> whole_tensor = read_all(**source, logical);
  const int64_t width = (*source)->tensors()[logical].shape[1];
  std::vector<bf16> part(3 * 10, bf16{0x1234});
  REQUIRE((*source)->read(StateKind::weight, logical, Box{{5, 7}, {3, 4}}, DType::bf16, part.data(), 10).ok());
  for (int64_t row = 0; row < 3; ++row)
    for (int64_t column = 0; column < 10; ++column) {
      const uint16_t expected = column < 4 ? to_bf16(whole_tensor[(5 + row) * width + 7 + column]).bits : 0x1234;
      CHECK(part[row * 10 + column].bits == expected);
    }
  CHECK_FALSE((*source)->has(StateKind::m));
  CHECK((*source)->read(StateKind::m, 0, Box{{0, 0}, {1, 1}}, DType::f32, part.data(), 1).code() == Code::invalid);
}

TEST_CASE("names of base models, mask buffers and a stored copy of a tied head are accepted") {
  Folder f("gpt2");
  for (SafeTensor& t : f.tensors) t.name = t.name.substr(std::strlen("transformer."));
  f.add("h.0.attn.bias", DType::u8, {1, 1, 2, 2}, std::string(4, '\1'));
  f.add("h.0.attn.masked_bias", DType::f32, {}, std::string(4, '\0'));
  const size_t table = f.at("wte.weight");
  f.add("lm_head.weight", DType::f32, f.tensors[table].shape, f.data[table]);
  f.write();
  CHECK(f.error() == "");
  f.data.back()[5] ^= 1;
  f.write();
  CHECK(f.says("lm_head.weight differs"));

  Folder l("llama");
  for (SafeTensor& t : l.tensors)
    if (t.name.starts_with("model.")) t.name = t.name.substr(6);
  l.add("layers.0.self_attn.rotary_emb.inv_freq", DType::f32, {2}, std::string(8, '\0'));
  l.write();
  CHECK(l.error() == "");
}

TEST_CASE("a snapshot in a hub cache: every file is a link to a blob") {
  const Scratch scratch;
  namespace fs = std::filesystem;
  fs::create_directories(scratch.path("models--x/blobs"));
  fs::create_directories(scratch.path("models--x/snapshots/0"));
  int blob = 0;
  for (const auto& entry : fs::directory_iterator(kData + "/models/gpt2")) {
    const std::string name = std::to_string(blob++);
    fs::copy(entry.path(), scratch.path("models--x/blobs/" + name));
    fs::create_symlink("../../blobs/" + name, scratch.path("models--x/snapshots/0/" + entry.path().filename().string()));
  }
  auto plain = open_hf(kData + "/models/gpt2"), cached = open_hf(scratch.path("models--x/snapshots/0"));
  REQUIRE_MESSAGE(cached.ok(), cached.status().message());
  for (size_t i = 0; i < (*plain)->tensors().size(); ++i)
    CHECK(read_all(**plain, static_cast<int>(i)) == read_all(**cached, static_cast<int>(i)));
}

TEST_CASE("what is missing, unexpected, misshaped, twice there or of another type is named") {
  const std::string norm = "transformer.h.0.ln_1.weight";
  {
    Folder f("gpt2");
    f.tensors[f.at(norm)].name = "transformer.h.0.ln_9.weight";
    f.write();
    CHECK(f.says("missing: " + norm));
  }
  {
    Folder f("gpt2");
    f.add("score.weight", DType::f32, {1}, "abcd");
    f.write();
    CHECK(f.says("score.weight"));
  }
  {
    Folder f("gpt2");
    f.tensors[f.at(norm)].shape = {1, 48};
    f.write();
    CHECK(f.says("shape [1,48]"));
  }
  {
    Folder f("gpt2");
    f.add(norm.substr(std::strlen("transformer.")), DType::f32, {48}, f.data[f.at(norm)]);
    f.write();
    CHECK(f.says("twice"));
  }
  {
    Folder f("gpt2");
    f.tensors[f.at(norm)].dtype = DType::i32;
    f.write();
    CHECK(f.says("I32"));
  }
  {
    Folder f("llama");  // untied: the head is a tensor of its own
    f.tensors[f.at("lm_head.weight")].name = "lm_tail.weight";
    f.write();
    CHECK(f.says("missing: lm_head.weight"));
  }
}

TEST_CASE("an index cannot lead out of the folder, nor promise what the files do not hold") {
  Folder f("gpt2");
  f.write("a.safetensors");
  const auto index = [&](const std::string& extra) {
    std::string map;
    for (const SafeTensor& t : f.tensors) map += (map.empty() ? "\"" : ",\"") + t.name + "\":\"a.safetensors\"";
    f.scratch.put("model.safetensors.index.json", "{\"weight_map\":{" + map + extra + "}}");
  };
  index("");
  CHECK(f.error() == "");
  index(",\"x\":\"a.safetensors\"");
  CHECK(f.says("missing that model.safetensors.index.json places there: x"));
  for (const char* path : {"../a.safetensors", "/etc/passwd", "sub/../../a.safetensors", "", "b.safetensors"}) {
    index(",\"x\":\"" + std::string(path) + "\"");
    CHECK(f.error() != "");
  }
  std::filesystem::create_symlink("a.safetensors", f.scratch.path("link.safetensors"));
  index(",\"x\":\"link.safetensors\"");
  CHECK(f.says("missing that model.safetensors.index.json places there: x"));
  f.scratch.put("model.safetensors.index.json", "{}");
  CHECK(f.says("weight_map"));
  std::filesystem::remove(f.scratch.path("model.safetensors.index.json"));
  CHECK(f.says("neither"));
  std::filesystem::remove(f.scratch.path("config.json"));
  CHECK(f.says("config.json"));
  const auto absent = open_hf(f.scratch.path("nowhere"));
  CHECK(absent.status().code() == Code::io);
}
