#include "kernels/ref/ref.h"

namespace llmops::ref {
namespace {

// rows x k of op(t), dense: t is [rows, k], or [k, rows] when `transposed`.
std::vector<double> rows_of(const ConstTensorView& t, bool transposed) {
  const int64_t count = t.dim[transposed ? 1 : 0], k = t.dim[transposed ? 0 : 1];
  std::vector<double> x(static_cast<size_t>(count * k));
  for (int64_t i = 0; i < count; ++i)
    for (int64_t j = 0; j < k; ++j) x[size_t(i * k + j)] = transposed ? get(t, j, i) : get(t, i, j);
  return x;
}

// What matmul_pack() of this table writes is the dense [n,k] matrix.
ConstTensorView unpacked(const MatmulArgs& a, int64_t n, int64_t k) {
  return dense_view(a.b.data.data, a.a.dtype, {n, k}, a.b.data.device);
}

// The epilogue, in the order of its definition in ops.h.
double finish(const MatmulArgs& a, double sum, int64_t m, int64_t n) {
  if (a.act_backward.present()) return sum * activate_slope(a.act, get(a.act_backward, m, n));
  if (a.bias.present()) sum += get(a.bias, n);
  if (a.aux.present()) put(a.aux, sum, m, n);
  return activate(a.act, sum) + (a.residual.present() ? get(a.residual, m, n) : 0);
}

}  // namespace

Status matmul(Stream& stream, const MatmulArgs& a) {
  const int64_t rows = a.out.dim[0], columns = a.out.dim[1], k = a.a.dim[a.a_trans ? 0 : 1];
  const std::vector<double> left = rows_of(a.a, a.a_trans);
  const std::vector<double> right =
      a.b.pack == Pack::panels ? rows_of(unpacked(a, columns, k), false) : rows_of(a.b.data, !a.b_trans);
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t n = 0; n < columns; ++n) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += left[size_t(m * k + i)] * right[size_t(n * k + i)];
      const double value = finish(a, sum, m, n);
      put(a.out, a.accumulate ? get(a.out, m, n) + value : value, m, n);
    }
  const BiasBackwardArgs sums = sums_of(a);
  return sums.dbias.present() ? ref::bias_backward(stream, sums) : Status();
}

Status matmul_pack(Stream&, const MatmulPackArgs& a) {
  const int64_t columns = a.b.dim[a.b_trans ? 0 : 1], k = a.b.dim[a.b_trans ? 1 : 0];
  const TensorView out = dense_view(a.out.data, a.b.dtype, {columns, k}, a.out.device);
  for (int64_t n = 0; n < columns; ++n)
    for (int64_t i = 0; i < k; ++i) put(out, a.b_trans ? get(a.b, n, i) : get(a.b, i, n), n, i);
  return {};
}

Status bias_backward(Stream&, const BiasBackwardArgs& a) {
  std::vector<double> sums(static_cast<size_t>(a.dbias.dim[0]));
  for (int64_t m = 0; m < a.dout.dim[0]; ++m)
    for (size_t n = 0; n < sums.size(); ++n) sums[n] += get(a.dout, m, n);
  put_sums(a.dbias, sums, a.accumulate);
  return {};
}

}  // namespace llmops::ref
