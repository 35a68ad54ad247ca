// Cases of the attention ops for the kernel tests: ragged batches, their tensors, and the bounds of their results.
#pragma once

#include "support/kernel_case.h"

namespace llmops::test::attention_case {

struct Seq {
  int64_t q_count, kv_count, q_pos, kv_pos, kv_gap = 0;  // kv_gap: unused KV rows behind it
};

struct Shape {
  int64_t e, heads, kv_heads;
  std::vector<Seq> sequences;
  int32_t window = 0;
  float softcap = 0;
};

inline int64_t q_rows(const Shape& s) {
  int64_t rows = 0;
  for (const Seq& seq : s.sequences) rows += seq.q_count;
  return rows;
}
inline int64_t kv_rows(const Shape& s) {
  int64_t rows = 0;
  for (const Seq& seq : s.sequences) rows += seq.kv_count + seq.kv_gap;
  return rows;
}

// Heads [first, first + count) of x[n,h,e].
inline TensorView heads_of(TensorView view, int64_t first, int64_t count) {
  view.data = static_cast<char*>(view.data) + first * view.stride[1] * info(view.dtype).block_bytes;
  view.dim[1] = count;
  return view;
}

// All tensors of a case. k and v, and their gradients, are slices of one buffer; all but out and dout have strided rows
// and heads, with gaps of `gap` elements.
struct Case {
  Case(const Shape& s, DType dtype, uint64_t seed = 1, int64_t gap = 3)
      : shape(s),
        q(random_tensor(dtype, {q_rows(s), s.heads, s.e}, seed, padded_strides({q_rows(s), s.heads, s.e}, gap))),
        kv(random_tensor(dtype, {kv_rows(s), 2 * s.kv_heads, s.e}, seed + 1,
                         padded_strides({kv_rows(s), 2 * s.kv_heads, s.e}, gap))),
        out(dtype, {q_rows(s), s.heads, s.e}),
        lse(DType::f32, {q_rows(s), s.heads}),
        dout(random_tensor(dtype, {q_rows(s), s.heads, s.e}, seed + 2)),
        dq(dtype, {q_rows(s), s.heads, s.e}, padded_strides({q_rows(s), s.heads, s.e}, gap)),
        dkv(dtype, {kv_rows(s), 2 * s.kv_heads, s.e}, padded_strides({kv_rows(s), 2 * s.kv_heads, s.e}, gap)),
        q_begin(DType::i32, {int64_t(s.sequences.size()) + 1}),
        kv_begin(DType::i32, {int64_t(s.sequences.size())}),
        kv_len(kv_begin),
        q_pos0(kv_begin),
        kv_pos0(kv_begin) {
    int64_t rows = 0, keys = 0;
    q_begin.set(0, 0);
    for (size_t i = 0; i < s.sequences.size(); ++i) {
      const Seq& seq = s.sequences[i];
      kv_begin.set(int64_t(i), double(keys));
      kv_len.set(int64_t(i), double(seq.kv_count));
      q_pos0.set(int64_t(i), double(seq.q_pos));
      kv_pos0.set(int64_t(i), double(seq.kv_pos));
      q_begin.set(int64_t(i) + 1, double(rows += seq.q_count));
      keys += seq.kv_count + seq.kv_gap;
    }
  }

  float scale() const { return float(1 / std::sqrt(double(shape.e))); }
  AttentionArgs forward() const {
    return {q,
            heads_of(kv, 0, shape.kv_heads),
            heads_of(kv, shape.kv_heads, shape.kv_heads),
            out,
            lse,
            q_begin,
            kv_begin,
            kv_len,
            q_pos0,
            kv_pos0,
            scale(),
            shape.softcap,
            shape.window};
  }
  AttentionBackwardArgs backward() const {
    const int64_t k = shape.kv_heads;
    return {q,
            heads_of(kv, 0, k),
            heads_of(kv, k, k),
            out,
            dout,
            lse,
            q_begin,
            kv_begin,
            kv_len,
            q_pos0,
            kv_pos0,
            dq,
            heads_of(dkv, 0, k),
            heads_of(dkv, k, k),
            scale(),
            shape.softcap,
            shape.window};
  }

  Shape shape;
  GuardedTensor q, kv, out, lse, dout, dq, dkv, q_begin, kv_begin, kv_len, q_pos0, kv_pos0;
};

// Odd head sizes, groups, windows that do and do not cross a chunk, caches that begin anywhere, sequences without
// queries or keys or both, queries before the first key, more heads per KV head than a block has rows; heads beyond 128
// elements, the largest of which takes most of the shared memory that sm_80 has.
inline std::vector<Shape> shapes() {
  const std::vector<Seq> ragged = {{7, 7, 0, 0}, {0, 0, 0, 0}, {13, 13, 0, 0},
                                   {1, 1, 0, 0}, {0, 5, 0, 0}, {4, 0, 0, 0}};
  return {
      {1, 1, 1, {{9, 9, 0, 0}}},
      {12, 2, 2, ragged},
      {20, 6, 2, {{70, 70, 0, 0}, {3, 90, 87, 0, 6}, {2, 40, 300, 250}}, 9},
      {33, 4, 1, {{130, 130, 0, 0}}, 0, 3.0f},
      {80, 3, 3, {{5, 300, 295, 0, 12}, {66, 66, 0, 0}}, 70},
      {64, 2, 1, {{40, 40, 0, 0}, {20, 8, 0, 3}}, 0, 5.0f},
      {16, 70, 1, {{3, 6, 3, 0}}},
      {8, 1, 1, {{2, 1000, 998, 0}, {260, 260, 100, 100}}},
      {8, 4, 2, {{64, 64, 0, 0}, {64, 64, 0, 0}, {64, 64, 0, 0}}},
      {136, 2, 1, {{5, 37, 32, 0}, {0, 3, 0, 0}}},
      {256, 2, 2, {{3, 9, 6, 0}}},
  };
}

inline constexpr double kUnit = 0x1p-24;

// Elements of q, k, v and dout are uniform in [-1, 1). A chain of e products of random sign keeps partial sums near
// sqrt(e) / 3 and rounds each once: its error is below e * kUnit at 4 sigma, so a score, scaled by 1 / sqrt(e), is off
// by at most sqrt(e) * kUnit, and a softcap adds the error of tanh, 2 ulp of at most softcap. A weight is exp(score -
// max or lse): relative error 2 score errors plus exp's and lse's, 8 units. A sum over t keys of weights that sum to 1
// adds sqrt(t) units.
inline double weight_error(const Shape& s) { return (8 * std::sqrt(double(s.e)) + 4 * double(s.softcap) + 16) * kUnit; }
inline double sum_error(const Shape& s) { return weight_error(s) + 4 * std::sqrt(double(kv_rows(s) + 1)) * kUnit; }
// ds = p (dp - D) scale: p's relative error times |dp - D| scale, which is below 2 at 4 sigma, plus the errors of dp
// and D, e units each. Sums over the queries of a key multiply by the column's weight, below 16 for these inputs and
// one head; with bf16 a result next to a rounding boundary may fall to its other side, a whole ulp (up to 2^-7) away.
inline double rounding(DType dtype) { return dtype == DType::bf16 ? 0x1p-7 : 0; }
inline Bound gradient_bound(const Shape& s, DType dtype) {
  const double ds = 2 * sum_error(s) + 4 * std::sqrt(double(s.e)) * kUnit;
  return {16 * double(s.heads / s.kv_heads) * ds, rounding(dtype)};
}

// The keys of a case in a paged cache: blocks of 16 rows in descending order, with a block between two that nobody
// owns. What no sequence owns is NaN in the pool and -1 in the table.
struct Paged {
  explicit Paged(const Case& c)
      : shape(c.shape),
        pool(c.kv.dtype(), dims(c), padded_strides(dims(c), 8)),
        table(DType::i32, {int64_t(shape.sequences.size()), width()}) {
    table.fill(-1);
    const int64_t row_elems = 2 * shape.kv_heads * shape.e;
    int64_t next = pool.view().dim[0] / kKvBlock - 1, row = 0;
    for (size_t s = 0; s < shape.sequences.size(); ++s) {
      const Seq& seq = shape.sequences[s];
      for (int64_t j = 0; j < seq.kv_count; ++j) {
        if (j % kKvBlock == 0) table.set(int64_t(s) * width() + j / kKvBlock, double(next)), next -= 2;
        const int64_t to = (next + 2) * kKvBlock + j % kKvBlock;
        for (int64_t i = 0; i < row_elems; ++i) pool.set(to * row_elems + i, c.kv.at((row + j) * row_elems + i));
      }
      row += seq.kv_count + seq.kv_gap;
    }
  }
  AttentionArgs forward(const Case& c) const {
    AttentionArgs args = c.forward();
    args.k = heads_of(pool, 0, shape.kv_heads);
    args.v = heads_of(pool, shape.kv_heads, shape.kv_heads);
    args.kv_begin = {};
    args.block_table = table;
    return args;
  }

  Shape shape;
  GuardedTensor pool, table;

 private:
  static int64_t blocks_of(const Seq& seq) { return (seq.kv_count + kKvBlock - 1) / kKvBlock; }
  int64_t width() const {  // one more than any sequence needs
    int64_t most = 0;
    for (const Seq& seq : shape.sequences) most = std::max(most, blocks_of(seq));
    return most + 1;
  }
  static Dimensions dims(const Case& c) {
    int64_t blocks = 0;
    for (const Seq& seq : c.shape.sequences) blocks += 2 * blocks_of(seq);
    return {blocks * kKvBlock, 2 * c.shape.kv_heads, c.shape.e};
  }
};

// Prefill, decode, both, a ring that has dropped blocks, sequences without keys.
inline std::vector<Shape> paged_shapes() {
  return {
      {20, 6, 2, {{70, 70, 0, 0}, {3, 90, 87, 0, 6}, {2, 40, 300, 256}}, 9},
      {33, 4, 1, {{130, 130, 0, 0}, {0, 0, 0, 0}, {4, 0, 0, 0}}, 0, 3.0f},
      {64, 8, 2, {{1, 700, 699, 0}, {1, 33, 32, 0}, {1, 1, 0, 0}}},
      {8, 1, 1, {{2, 1000, 998, 0}, {260, 260, 96, 96}}},
      {136, 2, 1, {{3, 19, 16, 0}}},
      {256, 1, 1, {{1, 17, 16, 0}}},
  };
}

// Rows [from, from + count) of `part` against the same of `whole`, bit by bit.
inline std::string rows_differ(const GuardedTensor& part, int64_t from, const GuardedTensor& whole, int64_t whole_from,
                               int64_t count) {
  const int64_t width = whole.elems() / whole.view().dim[0];
  for (int64_t i = 0; i < count * width; ++i)
    if (part.bits(from * width + i) != whole.bits(whole_from * width + i))
      return fmt::format("row {} element {}: {:.9g} against {:.9g}", i / width, i % width, part.at(from * width + i),
                         whole.at(whole_from * width + i));
  return "";
}

// A case whose queries [begin, end) and keys [key_begin, end) are those rows of `whole`, a case of one sequence.
inline std::unique_ptr<Case> slice(const Case& whole, int64_t begin, int64_t end, int64_t key_begin) {
  Shape shape = whole.shape;
  shape.sequences = {{end - begin, end - key_begin, begin, key_begin, 3}};
  auto part = std::make_unique<Case>(shape, whole.q.dtype(), 99);
  const auto copy = [](GuardedTensor& to, const GuardedTensor& from, int64_t row, int64_t rows) {
    const int64_t width = from.elems() / from.view().dim[0];
    for (int64_t i = 0; i < rows * width; ++i) to.set(i, from.at(row * width + i));
  };
  copy(part->q, whole.q, begin, end - begin);
  copy(part->dout, whole.dout, begin, end - begin);
  copy(part->kv, whole.kv, key_begin, end - key_begin);
  return part;
}

}  // namespace llmops::test::attention_case
