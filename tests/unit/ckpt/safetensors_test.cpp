// The safetensors container: golden bytes of the reference writer, its own files, and a table of files by hand
// (reference/tensor.rs and README of github.com/huggingface/safetensors say what each must be).
#include "ckpt/safetensors.h"

#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "support/scratch.h"

using namespace llmops;
using llmops::testing::Scratch;

namespace {

std::string with_length(const std::string& header) {
  const uint64_t length = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + header;
}

Status read(const std::string& bytes) {
  Scratch scratch;
  const auto file = File::open(scratch.put("a.safetensors", bytes));
  REQUIRE(file.ok());
  return read_safetensors_header(*file).status();
}

struct Case {
  const char* what;
  std::string header;
  int64_t data_bytes;
};

const std::string kOne = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

std::string entry(const char* name, const char* dtype, const char* shape, int64_t begin, int64_t end) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, dtype, shape, begin, end);
}

}  // namespace

TEST_CASE("golden bytes of the reference writer") {
  std::vector<SafeTensor> none;
  CHECK(safetensors_header(none) == with_length("{}      "));
  Json metadata;
  metadata["framework"] = "pt";
  CHECK(safetensors_header(none, metadata).size() == 8 + 40);
  std::vector<SafeTensor> one = {{"attn.0", DType::f32, {1, 2, 3}}};
  const std::string header = safetensors_header(one);
  CHECK(header == with_length(R"({"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}})"));
  CHECK(one[0].begin == 8 + 64);
  CHECK(one[0].end == 8 + 64 + 24);
  one = {{"attn0", DType::f32, {1, 1, 2, 3}}};
  CHECK(safetensors_header(one) ==
        with_length(R"({"attn0":{"dtype":"F32","shape":[1,1,2,3],"data_offsets":[0,24]}})" + std::string(7, ' ')));
}

TEST_CASE("a file of the reference writer with 20 types, unaligned starts, odd names and shapes") {
  const auto file = File::open(std::string(LLMOPS_TESTDATA) + "/ckpt/dtypes.safetensors");
  REQUIRE(file.ok());
  const auto header = read_safetensors_header(*file);
  REQUIRE_MESSAGE(header.ok(), header.status().message());
  std::vector<std::string_view> types;
  int64_t unknown = 0;
  for (const SafeTensor& tensor : header->tensors) {
    unknown += !tensor.dtype;
    if (std::ranges::find(types, tensor.type_name) == types.end()) types.push_back(tensor.type_name);
    if (tensor.dtype) CHECK(info(*tensor.dtype).name == tensor.type_name);
  }
  CHECK(types.size() == 20);
  CHECK(unknown > 0);
}

TEST_CASE("what must be accepted") {
  const Case cases[] = {
      {"no tensor", "{}", 0},
      {"one", kOne, 8},
      {"trailing white space", kOne + " \n\t ", 8},
      {"empty metadata", R"({"__metadata__":{},)" + kOne.substr(1), 8},
      {"null metadata", R"({"__metadata__":null,)" + kOne.substr(1), 8},
      {"an unknown extra field", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", 8},
      {"an empty name", "{" + entry("", "U8", "[1]", 0, 1) + "}", 1},
      {"a NUL in a name", "{" + entry("\\u0000", "U8", "[1]", 0, 1) + "}", 1},
      {"rank 0", "{" + entry("a", "F32", "[]", 0, 4) + "}", 4},
      {"rank 9", "{" + entry("a", "U8", "[1,1,1,1,1,1,1,1,1]", 0, 1) + "}", 1},
      {"two empty tensors at one place",
       "{" + entry("a", "F32", "[0]", 0, 0) + "," + entry("b", "F32", "[3,0]", 0, 0) + "}", 0},
      {"a misaligned start", "{" + entry("a", "U8", "[1]", 0, 1) + "," + entry("b", "F32", "[1]", 1, 5) + "}", 5},
      {"the order of data is not that of names",
       "{" + entry("a", "U8", "[1]", 1, 2) + "," + entry("b", "U8", "[1]", 0, 1) + "}", 2},
      {"F4, an even count", "{" + entry("a", "F4", "[2]", 0, 1) + "}", 1},
      {"F6, a multiple of four", "{" + entry("a", "F6_E3M2", "[4]", 0, 3) + "}", 3},
  };
  for (const Case& c : cases) {
    const Status status = read(with_length(c.header) + std::string(static_cast<size_t>(c.data_bytes), '\1'));
    CHECK_MESSAGE(status.ok(), c.what << ": " << status.message());
  }
}

TEST_CASE("what must be refused") {
  const std::string big = "4611686018427387904";  // 2^62
  const Case cases[] = {
      {"one byte short", kOne, 7},
      {"one byte more", kOne, 9},
      {"a leading space", " " + kOne, 8},
      {"a byte order mark", "\xEF\xBB\xBF" + kOne, 8},
      {"NUL padding", kOne + std::string(3, '\0'), 8},
      {"no header", "", 0},
      {"an array", "[]", 0},
      {"a number", "1", 0},
      {"cut JSON", kOne.substr(0, kOne.size() - 1), 8},
      {"a key twice", "{" + entry("a", "U8", "[1]", 0, 1) + "," + entry("a", "U8", "[1]", 0, 1) + "}", 1},
      {"a key twice, other ranges", "{" + entry("a", "U8", "[1]", 0, 1) + "," + entry("a", "U8", "[1]", 1, 2) + "}", 2},
      {"metadata twice", R"({"__metadata__":{},"__metadata__":{},)" + kOne.substr(1), 8},
      {"metadata that is no object", R"({"__metadata__":1,)" + kOne.substr(1), 8},
      {"metadata with a number", R"({"__metadata__":{"a":1},)" + kOne.substr(1), 8},
      {"a hole", "{" + entry("a", "U8", "[1]", 0, 1) + "," + entry("b", "U8", "[1]", 2, 3) + "}", 3},
      {"a hole at the start", "{" + entry("a", "U8", "[1]", 1, 2) + "}", 2},
      {"an overlap", "{" + entry("a", "U8", "[2]", 0, 2) + "," + entry("b", "U8", "[2]", 1, 3) + "}", 3},
      {"two names on one range", "{" + entry("a", "U8", "[2]", 0, 2) + "," + entry("b", "U8", "[2]", 0, 2) + "}", 2},
      {"a size that the shape does not have", "{" + entry("a", "F32", "[2]", 0, 4) + "}", 4},
      {"reversed offsets", "{" + entry("a", "U8", "[1]", 1, 0) + "}", 1},
      {"three offsets", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]}})", 1},
      {"one offset", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1},
      {"negative offset", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}})", 1},
      {"a float offset", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1.0]}})", 1},
      {"offsets beyond 64 bits",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551615,18446744073709551616]}})", 1},
      {"offsets that wrap",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[9223372036854775806,9223372036854775807]}})", 1},
      {"a negative shape", R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1},
      {"a float shape", R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1},
      {"a shape product that wraps to 0", "{" + entry("a", "U8", ("[" + big + ",4]").c_str(), 0, 0) + "}", 0},
      {"a size in bits that wraps", "{" + entry("a", "F32", ("[" + big + "]").c_str(), 0, 0) + "}", 0},
      {"no dtype", R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1},
      {"no shape", R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1},
      {"no offsets", R"({"a":{"dtype":"U8","shape":[1]}})", 1},
      {"an entry that is no object", R"({"a":[]})", 0},
      {"an unknown dtype", "{" + entry("a", "F128", "[1]", 0, 16) + "}", 16},
      {"a lower-case dtype", "{" + entry("a", "f32", "[2]", 0, 8) + "}", 8},
      {"a config's dtype", "{" + entry("a", "float32", "[2]", 0, 8) + "}", 8},
      {"F4, an odd count", "{" + entry("a", "F4", "[3]", 0, 1) + "}", 1},
      {"invalid UTF-8", "{" + entry("\xff", "U8", "[1]", 0, 1) + "}", 1},
      {"half a surrogate pair", "{" + entry("\\ud800", "U8", "[1]", 0, 1) + "}", 1},
      {"deep nesting", R"({"a":)" + std::string(5000, '[') + std::string(5000, ']') + "}", 0},
  };
  for (const Case& c : cases) {
    const Status status = read(with_length(c.header) + std::string(static_cast<size_t>(c.data_bytes), '\1'));
    CHECK_MESSAGE(status.code() == Code::invalid, c.what);
  }
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{7}}) CHECK(read(std::string(bytes, '\0')).code() == Code::invalid);
  CHECK(read(std::string(8, '\0')).code() == Code::invalid);
  CHECK(read(std::string(8, '\xff') + "{}").code() == Code::invalid);   // a length beyond any file
  CHECK(read(with_length("{}").substr(0, 9)).code() == Code::invalid);  // and beyond this one
}
