#include <cmath>
#include <limits>

#include "kernels/cpu/sequences.h"
#include "kernels/cpu/tasks.h"
#include "kernels/ref/ref.h"

namespace llmops::ref {
namespace {

// One score of a query row: the key's row, the score after softcap, and d score / d (scaled dot product).
struct Score {
  int64_t key;
  double value, slope;
};

// Scores of the keys that query `i` of sequence `s` sees, head `j`; ascending keys.
template <class Args>
std::vector<Score> scores_of(const Args& a, const Sequence& s, int64_t i, int64_t j) {
  const int64_t kv_head = j / (a.q.dim[1] / a.k.dim[1]);
  std::vector<Score> scores;
  for (int64_t key = 0; key < s.kv_count; ++key) {
    const int64_t q_pos = s.q_pos + i, k_pos = s.kv_pos + key;
    if (k_pos > q_pos || (a.window != 0 && k_pos <= q_pos - a.window)) continue;
    double dot = 0;
    for (int64_t e = 0; e < a.q.dim[2]; ++e)
      dot += get(a.q, s.q_begin + i, j, e) * get(a.k, s.kv_row(key), kv_head, e);
    const double x = dot * double(a.scale), cap = a.softcap;
    const double t = cap > 0 ? std::tanh(x / cap) : 0;
    scores.push_back({s.kv_row(key), cap > 0 ? cap * t : x, 1 - t * t});
  }
  return scores;
}

// out[e] = sum of softmax(scores) * v[e]; returns logsumexp.
double attend(const AttentionArgs& a, const std::vector<Score>& scores, int64_t kv_head, std::vector<double>& out) {
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const Score& s : scores) top = std::fmax(top, s.value);
  for (const Score& s : scores) sum += std::exp(s.value - top);
  for (const Score& s : scores)
    for (size_t e = 0; e < out.size(); ++e) out[e] += std::exp(s.value - top) / sum * get(a.v, s.key, kv_head, e);
  return scores.empty() ? top : top + std::log(sum);
}

// Gradients are summed here in double and stored once.
struct Gradient {
  explicit Gradient(const TensorView& to) : to(to), sums(size_t(to.elems())) {}
  double& operator()(int64_t n, int64_t h, int64_t e) { return sums[size_t((n * to.dim[1] + h) * to.dim[2] + e)]; }
  void store() {
    for (int64_t n = 0; n < to.dim[0]; ++n)
      for (int64_t h = 0; h < to.dim[1]; ++h)
        for (int64_t e = 0; e < to.dim[2]; ++e) put(to, (*this)(n, h, e), n, h, e);
  }
  TensorView to;
  std::vector<double> sums;
};

// One query row. With p_j = exp(score_j - lse) and delta = dout . out:
// dv_j += p_j dout;  ds_j = p_j (dout . v_j - delta) slope_j scale;  dq += ds_j k_j;  dk_j += ds_j q.
void row_backward(const AttentionBackwardArgs& a, const Sequence& s, int64_t i, int64_t j, Gradient& dq, Gradient& dk,
                  Gradient& dv) {
  const int64_t n = s.q_begin + i, width = a.q.dim[2], kv_head = j / (a.q.dim[1] / a.k.dim[1]);
  double delta = 0;
  for (int64_t e = 0; e < width; ++e) delta += get(a.dout, n, j, e) * get(a.out, n, j, e);
  for (const Score& score : scores_of(a, s, i, j)) {
    const double p = std::exp(score.value - get(a.lse, n, j));
    double dp = 0;
    for (int64_t e = 0; e < width; ++e) dp += get(a.dout, n, j, e) * get(a.v, score.key, kv_head, e);
    const double ds = p * (dp - delta) * score.slope * double(a.scale);
    for (int64_t e = 0; e < width; ++e) {
      dv(score.key, kv_head, e) += p * get(a.dout, n, j, e);
      dq(n, j, e) += ds * get(a.k, score.key, kv_head, e);
      dk(score.key, kv_head, e) += ds * get(a.q, n, j, e);
    }
  }
}

}  // namespace

Status attention(Stream&, const AttentionArgs& a) {
  const Sequences sequences = sequences_of(a);
  LLMOPS_TRY(check_sequences(sequences, a.q.dim[0], a.k.dim[0]));
  const int64_t group = a.q.dim[1] / a.k.dim[1];
  for (int64_t s = 0; s < sequences.count; ++s)
    for (int64_t i = 0; i < sequences[s].q_count; ++i)
      for (int64_t j = 0; j < a.q.dim[1]; ++j) {
        const int64_t n = sequences[s].q_begin + i;
        std::vector<double> out(static_cast<size_t>(a.q.dim[2]));
        put(a.lse, attend(a, scores_of(a, sequences[s], i, j), j / group, out), n, j);
        for (size_t e = 0; e < out.size(); ++e) put(a.out, out[e], n, j, e);
      }
  return {};
}

Status attention_backward(Stream&, const AttentionBackwardArgs& a) {
  const Sequences sequences = sequences_of(a);
  LLMOPS_TRY(check_sequences(sequences, a.q.dim[0], a.k.dim[0]));
  Gradient dq(a.dq), dk(a.dk), dv(a.dv);
  for (int64_t s = 0; s < sequences.count; ++s)
    for (int64_t i = 0; i < sequences[s].q_count; ++i)
      for (int64_t j = 0; j < a.q.dim[1]; ++j) row_backward(a, sequences[s], i, j, dq, dk, dv);
  dq.store();
  dk.store();
  dv.store();
  return {};
}

}  // namespace llmops::ref
