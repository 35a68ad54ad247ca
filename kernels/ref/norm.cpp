#include <cmath>

#include "kernels/ref/ref.h"

namespace llmops::ref {
namespace {

// The row that is normed: x, or x + delta as it is stored in `sum`.
std::vector<double> normed_row(const ConstTensorView& x, const ConstTensorView& delta, const TensorView& sum,
                               int64_t row) {
  std::vector<double> r = get_row(x, row);
  if (!delta.present()) return r;
  const std::vector<double> d = get_row(delta, row);
  for (size_t i = 0; i < r.size(); ++i) r[i] += d[i];
  put_row(sum, row, r);
  return get_row(sum, row);
}

// dx of y = (x - mean) * rstd * weight, where mean is 0 for rms_norm:
// dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), g = dout * weight; without the mean's own term for rms_norm.
std::vector<double> norm_dx(const std::vector<double>& dout, const std::vector<double>& xhat,
                            const std::vector<double>& weight, double rstd, bool centred) {
  const double width = double(xhat.size());
  double sum_g = 0, sum_gx = 0;
  for (size_t i = 0; i < xhat.size(); ++i) {
    sum_g += dout[i] * weight[i];
    sum_gx += dout[i] * weight[i] * xhat[i];
  }
  std::vector<double> dx(xhat.size());
  for (size_t i = 0; i < xhat.size(); ++i)
    dx[i] = rstd * (dout[i] * weight[i] - (centred ? sum_g / width : 0) - xhat[i] * sum_gx / width);
  return dx;
}

std::vector<double> vector_of(const ConstTensorView& t) {
  std::vector<double> x;
  for (int64_t i = 0; i < t.dim[0]; ++i) x.push_back(get(t, i));
  return x;
}

}  // namespace

Status layer_norm(Stream&, const LayerNormArgs& a) {
  const double width = double(a.weight.dim[0]);
  for (int64_t n = 0; n < a.x.dim[0]; ++n) {
    std::vector<double> x = normed_row(a.x, a.delta, a.sum, n);
    double mean = 0, variance = 0;
    for (double v : x) mean += v / width;
    for (double v : x) variance += (v - mean) * (v - mean) / width;
    const double rstd = 1 / std::sqrt(variance + double(a.eps));
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = (x[i] - mean) * rstd * get(a.weight, i) + (a.bias.present() ? get(a.bias, i) : 0);
    put_row(a.out, n, x);
    if (a.mean.present()) put(a.mean, mean, n);
    if (a.rstd.present()) put(a.rstd, rstd, n);
  }
  return {};
}

Status layer_norm_backward(Stream&, const LayerNormBackwardArgs& a) {
  const std::vector<double> weight = vector_of(a.weight);
  std::vector<double> dweight(weight.size()), dbias(weight.size());
  for (int64_t n = 0; n < a.x.dim[0]; ++n) {
    const double mean = get(a.mean, n), rstd = get(a.rstd, n);
    const std::vector<double> dout = get_row(a.dout, n);
    std::vector<double> xhat = get_row(a.x, n);
    for (double& x : xhat) x = (x - mean) * rstd;
    std::vector<double> dx = norm_dx(dout, xhat, weight, rstd, true);
    for (size_t i = 0; i < dx.size(); ++i) {
      dweight[i] += dout[i] * xhat[i];
      dbias[i] += dout[i];
      if (a.dresidual.present()) dx[i] += get(a.dresidual, n, i);
    }
    put_row(a.dx, n, dx);
  }
  put_sums(a.dweight, dweight, a.accumulate);
  if (a.dbias.present()) put_sums(a.dbias, dbias, a.accumulate);
  return {};
}

Status rms_norm(Stream&, const RmsNormArgs& a) {
  const double width = double(a.weight.dim[0]);
  for (int64_t n = 0; n < row_count(a.x); ++n) {
    std::vector<double> x = normed_row(a.x, a.delta, a.sum, n);
    double mean_square = 0;
    for (double v : x) mean_square += v * v / width;
    const double rstd = 1 / std::sqrt(mean_square + double(a.eps));
    for (size_t i = 0; i < x.size(); ++i) x[i] *= rstd * get(a.weight, i);
    put_row(a.out, n, x);
    if (!a.rstd.present()) continue;
    if (a.rstd.rank == 2) put(a.rstd, rstd, n / a.rstd.dim[1], n % a.rstd.dim[1]);
    else put(a.rstd, rstd, n);
  }
  return {};
}

Status rms_norm_backward(Stream&, const RmsNormBackwardArgs& a) {
  const std::vector<double> weight = vector_of(a.weight);
  std::vector<double> dweight(weight.size());
  for (int64_t n = 0; n < row_count(a.x); ++n) {
    const double rstd = a.rstd.rank == 2 ? get(a.rstd, n / a.rstd.dim[1], n % a.rstd.dim[1]) : get(a.rstd, n);
    const std::vector<double> dout = get_row(a.dout, n);
    std::vector<double> xhat = get_row(a.x, n);
    for (double& x : xhat) x *= rstd;
    std::vector<double> dx = norm_dx(dout, xhat, weight, rstd, false);
    std::vector<double> dresidual(dx.size());
    if (a.dresidual.present()) dresidual = get_row(a.dresidual, n);
    for (size_t i = 0; i < dx.size(); ++i) {
      dweight[i] += dout[i] * xhat[i];
      dx[i] += dresidual[i];
    }
    put_row(a.dx, n, dx);
  }
  put_sums(a.dweight, dweight, a.accumulate);
  return {};
}

}  // namespace llmops::ref
