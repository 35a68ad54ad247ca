#include "base/checked.h"

#include <doctest/doctest.h>

#include <vector>

#include "base/bytes.h"
#include "base/status.h"

using namespace llmops;

TEST_CASE("checked arithmetic says when it would wrap") {
  CHECK(checked_add<int64_t>(INT64_MAX - 1, 1) == INT64_MAX);
  CHECK_FALSE(checked_add<int64_t>(INT64_MAX, 1));
  CHECK(checked_mul<uint64_t>(1ull << 32, (1ull << 32) - 1) == 0xffffffff00000000ull);
  CHECK_FALSE(checked_mul<uint64_t>(1ull << 32, 1ull << 32));
  CHECK(checked_round_up(0, 32) == 0);
  CHECK(checked_round_up(33, 32) == 64);
  CHECK_FALSE(checked_round_up(UINT64_MAX, 32));
}

TEST_CASE("a product of dimensions: rank 0 is 1, a zero is 0, negative and wrapping are refused") {
  const auto product = [](std::vector<int64_t> dims) { return checked_product(dims); };
  CHECK(product({}) == 1);
  CHECK(product({3, 0, 5}) == 0);
  CHECK(product({INT64_MAX, 1}) == INT64_MAX);
  CHECK_FALSE(product({INT64_MAX, 2, 1, 1}));
  CHECK_FALSE(product({2, -1}));
}

TEST_CASE("exit codes are the table of the manual") {
  CHECK(exit_code(Code::ok) == 0);
  CHECK(exit_code(Code::finding) == 1);
  CHECK(exit_code(Code::usage) == 2);
  CHECK(exit_code(Code::invalid) == 3);
  CHECK(exit_code(Code::io) == 4);
  CHECK(exit_code(Code::peer) == 5);
  CHECK(exit_code(Code::interrupted) == 75);
}

TEST_CASE("a failure carries its object; success stays success") {
  CHECK(invalid_error("bad").in("a.json").message() == "a.json: bad");
  CHECK(invalid_error("bad").in("a.json").code() == Code::invalid);
  CHECK(Status().in("a.json").ok());
  CHECK_FALSE(Result<int>(Status()).ok());  // an ok Status holds no value

  const auto half = [](int x) -> Result<int> {
    if (x % 2 != 0) return invalid_error("odd");
    return x / 2;
  };
  const auto quarter = [&](int x) -> Result<int> {
    LLMOPS_ASSIGN(const int h, half(x));
    return half(h);
  };
  CHECK(*quarter(12) == 3);
  CHECK(quarter(6).status().message() == "odd");
}

TEST_CASE("the byte reader never leaves its data") {
  const uint8_t raw[] = {1, 0, 0, 0, 2, 0, 3};
  ByteReader reader(std::as_bytes(std::span(raw)));
  CHECK(*reader.read<uint32_t>() == 1);
  CHECK(reader.position() == 4);
  CHECK_FALSE(reader.read<uint32_t>().ok());
  CHECK(reader.position() == 4);  // a failed read does not move
  CHECK(*reader.read<uint16_t>() == 2);
  CHECK_FALSE(reader.take(UINT64_MAX).ok());
  CHECK(reader.take(2).status().code() == Code::invalid);
  CHECK(reader.take(2).status().message() == "truncated: 2 bytes expected at offset 6, 1 are left");
  CHECK(reader.take(1)->size() == 1);
  CHECK(reader.take(0)->empty());
  CHECK_FALSE(reader.read<uint8_t>().ok());
}

TEST_CASE("a count of entries is bounded by the bytes that could hold them") {
  const std::vector<std::byte> data(100);
  ByteReader reader{std::span<const std::byte>(data)};
  CHECK(*reader.bounded_count(10, 10) == 10);
  CHECK_FALSE(reader.bounded_count(11, 10).ok());
  CHECK_FALSE(reader.bounded_count(UINT64_MAX, 8).ok());  // count * size would wrap
  CHECK(*reader.bounded_count(100, 0) == 100);
  CHECK_FALSE(reader.bounded_count(101, 0).ok());
}
