// exp, tanh, erf and log of kernels/math.h: errors against libm's double, special values, and equal bits on every
// instruction set.
#include "kernels/math_lanes.h"

#include <cmath>
#include <limits>

#include "support/kernel_case.h"

namespace llmops::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kTiny = std::numeric_limits<float>::min();           // the smallest normal number
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();

using Function = void (*)(const float*, float*, int64_t);

std::vector<float> results(Function f, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  f(x.data(), y.data(), int64_t(x.size()));
  return y;
}
float one(Function f, float x) { return results(f, {x})[0]; }

// `count` numbers from low to high; evenly spaced, or evenly in the logarithm.
std::vector<float> spaced(double low, double high, int count, bool logarithmic = false) {
  std::vector<float> x;
  for (int i = 0; i < count; ++i) {
    const double t = double(i) / (count - 1);
    x.push_back(float(logarithmic ? low * std::pow(high / low, t) : low + (high - low) * t));
  }
  return x;
}

// The distance between floats at |x|.
double ulp(double x) { return std::ldexp(1.0, std::max(std::ilogb(x), -126) - 23); }

enum class Measure { ulps, absolute };
double worst(Function f, double (*exact)(double), const std::vector<float>& x, Measure measure) {
  const std::vector<float> y = results(f, x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = exact(double(x[i])), off = std::abs(double(y[i]) - want);
    worst = std::fmax(worst, measure == Measure::ulps && want != 0 ? off / ulp(want) : off);
    if (std::isnan(off)) return kInf;
  }
  return worst;
}

constexpr int kCount = 100'000;

TEST_CASE("math: exp within 1.1 ulp, denormal results within one unit of the smallest") {
  CHECK(worst(baseline::exp_all, std::exp, spaced(-87.3, 88.72, kCount), Measure::ulps) < 1.1);
  CHECK(worst(baseline::exp_all, std::exp, spaced(-1e-3, 1e-3, kCount), Measure::ulps) < 1.1);
  CHECK(worst(baseline::exp_all, std::exp, spaced(-103.9, -87.3, kCount), Measure::absolute) <=
        1.5 * double(kDenormal));
}

TEST_CASE("math: tanh within 2 ulp and odd") {
  CHECK(worst(baseline::tanh_all, std::tanh, spaced(-10, 10, kCount), Measure::ulps) < 2);
  CHECK(worst(baseline::tanh_all, std::tanh, spaced(1e-30, 1, kCount, true), Measure::ulps) < 2);
  for (float x : spaced(1e-6, 12, 1000)) CHECK(one(baseline::tanh_all, -x) == -one(baseline::tanh_all, x));
}

TEST_CASE("math: erf within 2e-7 and odd") {
  CHECK(worst(baseline::erf_all, std::erf, spaced(-6, 6, kCount), Measure::absolute) < 2e-7);
  CHECK(worst(baseline::erf_all, std::erf, spaced(1e-30, 1, kCount, true), Measure::absolute) < 2e-7);
  for (float x : spaced(1e-6, 6, 1000)) CHECK(one(baseline::erf_all, -x) == -one(baseline::erf_all, x));
}

TEST_CASE("math: log within 1 ulp away from 1, and near 1 within 1e-7 absolute") {
  CHECK(worst(baseline::log_all, std::log, spaced(double(kTiny), 0.5, kCount, true), Measure::ulps) < 1);
  CHECK(worst(baseline::log_all, std::log, spaced(2, 3.4e38, kCount, true), Measure::ulps) < 1);
  CHECK(worst(baseline::log_all, std::log, spaced(0.5, 2, kCount), Measure::absolute) < 1e-7);
}

TEST_CASE("math: special values") {
  CHECK(one(baseline::exp_all, 0.0f) == 1.0f);
  CHECK(one(baseline::exp_all, -0.0f) == 1.0f);
  CHECK(one(baseline::exp_all, -104.0f) == 0.0f);
  CHECK(one(baseline::exp_all, -kInf) == 0.0f);
  CHECK(one(baseline::exp_all, 88.8f) == kInf);
  CHECK(one(baseline::exp_all, kInf) == kInf);
  CHECK(std::isnan(one(baseline::exp_all, kNan)));
  CHECK(one(baseline::tanh_all, 0.0f) == 0.0f);
  CHECK(one(baseline::tanh_all, kInf) == 1.0f);
  CHECK(one(baseline::tanh_all, -kInf) == -1.0f);
  CHECK(std::isnan(one(baseline::tanh_all, kNan)));
  CHECK(one(baseline::erf_all, 0.0f) == 0.0f);
  CHECK(one(baseline::erf_all, kInf) == 1.0f);
  CHECK(one(baseline::erf_all, -kInf) == -1.0f);
  CHECK(std::isnan(one(baseline::erf_all, kNan)));
  CHECK(one(baseline::log_all, 1.0f) == 0.0f);
  CHECK(one(baseline::log_all, 0.0f) == -kInf);
  CHECK(one(baseline::log_all, kInf) == kInf);
  CHECK(std::isnan(one(baseline::log_all, -1.0f)));
  CHECK(std::isnan(one(baseline::log_all, kNan)));
}

TEST_CASE("math: equal bits on every instruction set") {
  std::vector<float> x = {0.0f, -0.0f, kInf, -kInf, kNan, kTiny, kDenormal, -kDenormal, 1e38f, -1e38f};
  for (const auto& part : {spaced(-110, 95, 30'000), spaced(-5, 5, 30'000), spaced(1e-40, 3e38, 30'000, true)})
    x.insert(x.end(), part.begin(), part.end());
  const auto bits_differ = [&](Function f, Function g) {
    const std::vector<float> a = results(f, x), b = results(g, x);
    for (size_t i = 0; i < x.size(); ++i)  // NaNs may differ in their sign and payload
      if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]) && !(std::isnan(a[i]) && std::isnan(b[i])))
        return fmt::format("x = {:.9g}: {:.9g} against {:.9g}", x[i], a[i], b[i]);
    return std::string();
  };
#define X(f)                                                                                   \
  if (isa_runs(Isa::avx2)) CHECK(bits_differ(baseline::f##_all, avx2::f##_all) == "");         \
  if (isa_runs(Isa::avx512)) CHECK(bits_differ(baseline::f##_all, avx512::f##_all) == "");
  LLMOPS_MATH_FUNCTIONS(X)
#undef X
}

}  // namespace
}  // namespace llmops::test

#define LLMOPS_ISA baseline
#include "kernels/math_entries.h"
