#include "train/init.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/hash.h"
#include "base/rng.h"

namespace llmops {
namespace {

// ln(x) for normal x > 0: exponent * ln 2 + 2 atanh((m-1)/(m+1)), m in [sqrt(1/2), sqrt(2)); error below 1e-15.
double natural_log(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int64_t exponent = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1) / (m + 1), z = s * s;
  double sum = 0;
  for (int k = 21; k >= 1; k -= 2) sum = sum * z + 1.0 / k;
  return static_cast<double>(exponent) * 0.6931471805599453 + 2 * s * sum;
}

template <size_t n>
double polynomial(const double (&c)[n], double x) {
  double y = c[n - 1];
  for (size_t i = n - 1; i-- > 0;) y = y * x + c[i];
  return y;
}

}  // namespace

double normal_quantile(double p) {
  // Coefficients of PPND16, Applied Statistics 37 (1988), 477-484.
  static constexpr double a[] = {3.3871328727963666080e0,  1.3314166789178437745e+2, 1.9715909503065514427e+3,
                                 1.3731693765509461125e+4, 4.5921953931549871457e+4, 6.7265770927008700853e+4,
                                 3.3430575583588128105e+4, 2.5090809287301226727e+3};
  static constexpr double b[] = {1.0,
                                 4.2313330701600911252e+1,
                                 6.8718700749205790830e+2,
                                 5.3941960214247511077e+3,
                                 2.1213794301586595867e+4,
                                 3.9307895800092710610e+4,
                                 2.8729085735721942674e+4,
                                 5.2264952788528545610e+3};
  static constexpr double c[] = {1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
                                 3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
                                 2.27238449892691845833e-2, 7.74545014278341407640e-4};
  static constexpr double d[] = {1.0,
                                 2.05319162663775882187e0,
                                 1.67638483018380384940e0,
                                 6.89767334985100004550e-1,
                                 1.48103976427480074590e-1,
                                 1.51986665636164571966e-2,
                                 5.47593808499534494600e-4,
                                 1.05075007164441684324e-9};
  static constexpr double e[] = {6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,
                                 2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                 2.71155556874348757815e-5, 2.01033439929228813265e-7};
  static constexpr double f[] = {1.0,
                                 5.99832206555887937690e-1,
                                 1.36929880922735805310e-1,
                                 1.48753612908506148525e-2,
                                 7.86869131145613259100e-4,
                                 1.84631831751005468180e-5,
                                 1.42151175831644588870e-7,
                                 2.04426310338993978564e-15};
  const double q = p - 0.5;
  if (std::fabs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * polynomial(a, r) / polynomial(b, r);
  }
  double r = std::sqrt(-natural_log(q < 0 ? p : 1 - p));
  const double x =
      r <= 5 ? polynomial(c, r - 1.6) / polynomial(d, r - 1.6) : polynomial(e, r - 5) / polynomial(f, r - 5);
  return q < 0 ? -x : x;
}

void initial_values(const LogicalTensor& tensor, uint64_t seed, int64_t begin, int64_t count, float* out) {
  if (tensor.init != Init::normal) return void(std::fill_n(out, count, tensor.init == Init::ones ? 1.0f : 0.0f));
  const Hash128 name = hash128(std::as_bytes(std::span(tensor.name)));
  for (int64_t i = begin; i < begin + count; ++i) {  // elements 2j and 2j + 1 come from draw j
    const Philox draw = philox4x32(seed ^ name.lo, static_cast<uint64_t>(i / 2), name.hi);
    const int half = i % 2 * 2;
    out[i - begin] = static_cast<float>(tensor.std * normal_quantile(uniform_f64(draw.v[half], draw.v[half + 1])));
  }
}

}  // namespace llmops
