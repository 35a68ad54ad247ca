#include "base/rng.h"

#include <doctest/doctest.h>

using namespace llmops;

namespace {
bool equal(const Philox& a, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  return a.v[0] == x && a.v[1] == y && a.v[2] == z && a.v[3] == w;
}
}  // namespace

// The known answers of philox4x32-10 from the Random123 distribution (kat_vectors).
TEST_CASE("Philox4x32-10 gives the published answers") {
  CHECK(equal(philox4x32(0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  CHECK(equal(philox4x32(UINT64_MAX, UINT64_MAX, UINT64_MAX), 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  CHECK(equal(philox4x32(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e), 0xd16cfe09, 0x94fdcceb, 0x5001e420,
              0x24126ea1));
}

TEST_CASE("uniform draws stay inside their interval at both ends") {
  CHECK(uniform_f32(0) == 0.0f);
  CHECK(uniform_f32(UINT32_MAX) == 1.0f - 0x1p-24f);
  CHECK(uniform_f64(0, 0) == 0x1p-53);
  CHECK(uniform_f64(UINT32_MAX, UINT32_MAX) == 1.0 - 0x1p-53);
}

TEST_CASE("the mean and the spread of many draws are those of a uniform variable") {
  constexpr int kDraws = 40000;
  double sum = 0, squares = 0;
  for (uint64_t i = 0; i < kDraws / 4; ++i) {
    const Philox draw = philox4x32(42, i, 7);
    for (uint32_t bits : draw.v) {
      const double x = uniform_f32(bits);
      sum += x;
      squares += x * x;
    }
  }
  // Standard error of the mean 0.289 / 200 = 0.0014, of the mean square 0.298 / 200 = 0.0015: four of them.
  CHECK(sum / kDraws == doctest::Approx(0.5).epsilon(0.0116));
  CHECK(squares / kDraws == doctest::Approx(1.0 / 3).epsilon(0.018));
}
