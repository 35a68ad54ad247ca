// Learning rates, initial weights, TensorBoard records, metrics files.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <numeric>

#include "support/scratch.h"
#include "train/init.h"
#include "train/lr.h"
#include "train/metrics.h"

using namespace llmops;

namespace {

std::string hex(std::string_view bytes) {
  std::string out;
  for (unsigned char byte : bytes) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

}  // namespace

TEST_CASE("CRC-32C and TensorBoard records have the bytes that TensorFlow writes") {
  CHECK(crc32c("123456789") == 0xe3069283u);
  CHECK(masked_crc32c("123456789") == 0xc78ab0e5u);
  // wall_time 1700000000, file_version "brain.Event:2"
  const std::string version =
      std::string("\x09", 1) + std::string("\x00\x00\x00\x40\xfc\x54\xd9\x41", 8) + "\x1a\x0d" + "brain.Event:2";
  CHECK(hex(event_record(version)) ==
        "1800000000000000a37f4b220900000040fc54d9411a0d627261696e2e4576656e743a32eced8f9d");
  // wall_time 1700000001, step 1, loss 0.5, through the writer
  testing::Scratch scratch;
  auto writer = EventWriter::create(scratch.path(), 1700000000.0);
  REQUIRE(writer.ok());
  REQUIRE(writer->scalar("loss", 1, 0.5f, 1700000001.0).ok());
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(scratch.path())) {
    ++files;
    CHECK(entry.path().filename().string().starts_with("events.out.tfevents.1700000000."));
    const auto content = read_file(entry.path().string());
    REQUIRE(content.ok());
    CHECK(hex(*content) ==
          "1800000000000000a37f4b220900000040fc54d9411a0d627261696e2e4576656e743a32eced8f9d"
          "1a00000000000000129bd82d0900004040fc54d94110012a0d0a0b0a046c6f7373150000003f97d67404");
  }
  CHECK(files == 1);
}

TEST_CASE("learning rates at the corners") {
  const LrSchedule cosine = {.shape = LrShape::cosine, .lr = 1.0, .lr_min = 0.1, .warmup_steps = 10, .steps = 110};
  CHECK(learning_rate(cosine, 0) == doctest::Approx(0.1));
  CHECK(learning_rate(cosine, 9) == doctest::Approx(1.0));
  CHECK(learning_rate(cosine, 10) == doctest::Approx(1.0));
  CHECK(learning_rate(cosine, 60) == doctest::Approx(0.55));
  CHECK(learning_rate(cosine, 110) == doctest::Approx(0.1));
  CHECK(learning_rate(cosine, 500) == doctest::Approx(0.1));
  LrSchedule s = cosine;
  s.shape = LrShape::linear;
  CHECK(learning_rate(s, 60) == doctest::Approx(0.55));
  s.shape = LrShape::constant;
  CHECK(learning_rate(s, 109) == 1.0);
  s = {.shape = LrShape::wsd, .lr = 1.0, .lr_min = 0, .warmup_steps = 0, .steps = 100, .decay_fraction = 0.2};
  CHECK(learning_rate(s, 0) == 1.0);
  CHECK(learning_rate(s, 80) == 1.0);
  CHECK(learning_rate(s, 85) == doctest::Approx(0.5));
  CHECK(learning_rate(s, 100) == doctest::Approx(0.0));
  for (LrShape shape : {LrShape::constant, LrShape::linear, LrShape::cosine, LrShape::wsd})  // W = 0, W >= N, N = 1
    for (int64_t warmup : {0, 1, 5})
      CHECK(
          std::isfinite(learning_rate({.shape = shape, .lr = 1, .lr_min = 0, .warmup_steps = warmup, .steps = 1}, 0)));
}

TEST_CASE("the normal quantile inverts the distribution") {
  for (double p : {1e-300, 1e-12, 1e-6, 0.01, 0.074, 0.076, 0.3, 0.5, 0.7, 0.925, 0.99, 1 - 1e-9}) {
    const double x = normal_quantile(p);
    CHECK(0.5 * std::erfc(-x / std::sqrt(2.0)) == doctest::Approx(p).epsilon(1e-12));
  }
  CHECK(normal_quantile(0.5) == 0);
  CHECK(normal_quantile(0.975) == doctest::Approx(1.959963984540054).epsilon(1e-15));
}

TEST_CASE("initial values depend on seed, name and element alone, and are normal") {
  const LogicalTensor a{"model.a", {100, 1000}, Init::normal, 0.02, true},
      b{"model.b", {100, 1000}, Init::normal, 0.02, true};
  std::vector<float> whole(100000), part(333), other(100000);
  initial_values(a, 7, 0, 100000, whole.data());
  for (int64_t begin : {0, 1, 12345, 99667}) {
    initial_values(a, 7, begin, 333, part.data());
    for (int64_t i = 0; i < 333; ++i) CHECK(part[i] == whole[begin + i]);
  }
  initial_values(b, 7, 0, 100000, other.data());
  int64_t equal = 0;
  for (size_t i = 0; i < whole.size(); ++i) equal += whole[i] == other[i];
  CHECK(equal < 10);
  initial_values(a, 8, 0, 100000, other.data());
  equal = 0;
  for (size_t i = 0; i < whole.size(); ++i) equal += whole[i] == other[i];
  CHECK(equal < 10);
  double sum = 0, squares = 0, fourth = 0;
  for (float x : whole) {
    const double z = x / 0.02;
    sum += z;
    squares += z * z;
    fourth += z * z * z * z;
  }
  // Five standard errors of the mean, the variance (2/n) and the fourth moment (96/n).
  CHECK(std::fabs(sum / 1e5) < 5 / std::sqrt(1e5));
  CHECK(std::fabs(squares / 1e5 - 1) < 5 * std::sqrt(2 / 1e5));
  CHECK(std::fabs(fourth / 1e5 - 3) < 5 * std::sqrt(96 / 1e5));
}

TEST_CASE("metrics after the step that a run resumes from are cut off, a torn line too") {
  testing::Scratch scratch;
  const std::string path = scratch.path("metrics.jsonl");
  {
    auto file = MetricsFile::open(path, 0);
    REQUIRE(file.ok());
    for (int step = 1; step <= 5; ++step) {
      Json record(Json::Object{});
      record["step"] = step;
      REQUIRE(file->append(record).ok());
    }
  }
  { REQUIRE(MetricsFile::open(path, 3).ok()); }
  CHECK(*read_file(path) == "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
  REQUIRE(write_file_durable(path, "{\"step\":1}\n{\"step\":2}\n{\"st").ok());
  { REQUIRE(MetricsFile::open(path, 9).ok()); }
  CHECK(*read_file(path) == "{\"step\":1}\n{\"step\":2}\n");
}
