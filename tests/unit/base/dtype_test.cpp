#include "base/dtype.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

using namespace llmops;

TEST_CASE("the table: names both ways, bytes checked") {
  for (int i = 0; i < static_cast<int>(DType::kCount); ++i) {
    const DType dtype = static_cast<DType>(i);
    CHECK(dtype_from_name(info(dtype).name) == dtype);
    CHECK(dtype_from_name(info(dtype).name_config) == dtype);
    CHECK(bytes_of(dtype, 3) == 3 * info(dtype).block_bytes);
  }
  CHECK_FALSE(dtype_from_name("f32"));
  CHECK_FALSE(dtype_from_name(""));
  CHECK_FALSE(bytes_of(DType::f32, -1));
  CHECK_FALSE(bytes_of(DType::f64, INT64_MAX / 4));
}

namespace {

float next_up(float x) { return std::nextafter(x, std::numeric_limits<float>::infinity()); }
float next_down(float x) { return std::nextafter(x, -std::numeric_limits<float>::infinity()); }

// For neighbours a < b of a 16-bit type: the midpoint goes to the even one, and one float to either side to the near one.
template <class Half, class Round>
int wrong_halfway_cases(uint16_t bits_last, Round&& round) {
  int wrong = 0;
  for (uint16_t bits = 0; bits < bits_last; ++bits) {
    const Half a{bits}, b{static_cast<uint16_t>(bits + 1)};
    const double middle = (double{to_f32(a)} + double{to_f32(b)}) / 2;
    const float m = static_cast<float>(middle);
    if (m != middle) continue;  // between float subnormals there is no midpoint
    const uint16_t even = bits % 2 == 0 ? a.bits : b.bits;
    wrong += round(m).bits != even;
    wrong += round(next_down(m)).bits != a.bits;
    wrong += round(next_up(m)).bits != b.bits;
    wrong += round(-m).bits != (even | 0x8000);
  }
  return wrong;
}

}  // namespace

TEST_CASE("bf16: all 65536 values survive the round trip, halfway cases go to even") {
  int wrong = 0;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const bf16 x{static_cast<uint16_t>(bits)};
    const bf16 back = to_bf16(to_f32(x));
    wrong += std::isnan(to_f32(x)) ? !std::isnan(to_f32(back)) : back.bits != x.bits;
  }
  CHECK(wrong == 0);
  CHECK(wrong_halfway_cases<bf16>(0x7f7f, [](float x) { return to_bf16(x); }) == 0);
  CHECK(to_bf16(std::numeric_limits<float>::max()).bits == 0x7f80);  // rounds up to infinity
  CHECK(to_bf16(std::bit_cast<float>(0x7f800001u)).bits == 0x7fc0);   // NaN with a small payload is not infinity
  CHECK(to_bf16(-0.0f).bits == 0x8000);
}

TEST_CASE("f16: all 65536 values survive the round trip, halfway cases go to even") {
  int wrong = 0;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const f16 x{static_cast<uint16_t>(bits)};
    const f16 back = to_f16(to_f32(x));
    wrong += std::isnan(to_f32(x)) ? !std::isnan(to_f32(back)) : back.bits != x.bits;
  }
  CHECK(wrong == 0);
  CHECK(wrong_halfway_cases<f16>(0x7bff, [](float x) { return to_f16(x); }) == 0);
}

TEST_CASE("f16: known values and the edges of its range") {
  CHECK(to_f32(f16{0x3c00}) == 1.0f);
  CHECK(to_f32(f16{0x3555}) == 0.333251953125f);
  CHECK(to_f32(f16{0x0001}) == 0x1p-24f);
  CHECK(to_f32(f16{0x03ff}) == 1023 * 0x1p-24f);
  CHECK(to_f32(f16{0x7bff}) == 65504.0f);
  CHECK(std::isinf(to_f32(f16{0xfc00})));
  CHECK(std::signbit(to_f32(f16{0x8000})));
  CHECK(to_f16(65519.996f).bits == 0x7bff);
  CHECK(to_f16(65520.0f).bits == 0x7c00);  // halfway to 65536: even is infinity
  CHECK(to_f16(1e30f).bits == 0x7c00);
  CHECK(to_f16(-1e30f).bits == 0xfc00);
  CHECK(to_f16(0x1p-25f).bits == 0);       // halfway to the smallest: even is zero
  CHECK(to_f16(next_up(0x1p-25f)).bits == 1);
  CHECK(to_f16(1e-45f).bits == 0);
  CHECK(to_f16(-1e-45f).bits == 0x8000);
  CHECK(to_f16(std::bit_cast<float>(0x7f800001u)).bits == 0x7e00);
}
