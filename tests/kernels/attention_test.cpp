// Attention, forward and backward: against the reference, and the promise that a row's bits depend on nothing but its
// query and the keys it sees.
#include "support/kernel_case.h"

namespace llmops::test {
namespace {

struct Seq {
  int64_t q_count, kv_count, q_pos, kv_pos, kv_gap = 0;  // kv_gap: unused KV rows behind it
};

struct Shape {
  int64_t e, heads, kv_heads;
  std::vector<Seq> sequences;
  int32_t window = 0;
  float softcap = 0;
};

int64_t q_rows(const Shape& s) {
  int64_t rows = 0;
  for (const Seq& seq : s.sequences) rows += seq.q_count;
  return rows;
}
int64_t kv_rows(const Shape& s) {
  int64_t rows = 0;
  for (const Seq& seq : s.sequences) rows += seq.kv_count + seq.kv_gap;
  return rows;
}

// Heads [first, first + count) of x[n,h,e].
TensorView heads_of(const GuardedTensor& x, int64_t first, int64_t count) {
  TensorView view = x.view();
  view.data = static_cast<char*>(view.data) + first * view.stride[1] * info(view.dtype).block_bytes;
  view.dim[1] = count;
  return view;
}

// All tensors of a case. k and v, and their gradients, are slices of one buffer with gaps; q and dq have gaps too.
struct Case {
  Case(const Shape& s, DType dtype, uint64_t seed = 1)
      : shape(s),
        q(random_tensor(dtype, {q_rows(s), s.heads, s.e}, seed, padded_strides({q_rows(s), s.heads, s.e}, 3))),
        kv(random_tensor(dtype, {kv_rows(s), 2 * s.kv_heads, s.e}, seed + 1,
                         padded_strides({kv_rows(s), 2 * s.kv_heads, s.e}, 5))),
        out(dtype, {q_rows(s), s.heads, s.e}),
        lse(DType::f32, {q_rows(s), s.heads}),
        dout(random_tensor(dtype, {q_rows(s), s.heads, s.e}, seed + 2)),
        dq(dtype, {q_rows(s), s.heads, s.e}, padded_strides({q_rows(s), s.heads, s.e}, 3)),
        dkv(dtype, {kv_rows(s), 2 * s.kv_heads, s.e}, padded_strides({kv_rows(s), 2 * s.kv_heads, s.e}, 1)),
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
    return {q, heads_of(kv, 0, shape.kv_heads), heads_of(kv, shape.kv_heads, shape.kv_heads), out, lse,
            q_begin, kv_begin, kv_len, q_pos0, kv_pos0, scale(), shape.softcap, shape.window};
  }
  AttentionBackwardArgs backward() const {
    const int64_t k = shape.kv_heads;
    return {q, heads_of(kv, 0, k), heads_of(kv, k, k), out, dout, lse, q_begin, kv_begin, kv_len, q_pos0,
            kv_pos0, dq, heads_of(dkv, 0, k), heads_of(dkv, k, k), scale(), shape.softcap, shape.window};
  }

  Shape shape;
  GuardedTensor q, kv, out, lse, dout, dq, dkv, q_begin, kv_begin, kv_len, q_pos0, kv_pos0;
};

// Odd head sizes, groups, windows that do and do not cross a chunk, caches that begin anywhere, sequences without
// queries or keys or both, queries before the first key, more heads per KV head than a block has rows.
std::vector<Shape> shapes() {
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
  };
}

constexpr double kUnit = 0x1p-24;

// Elements of q, k, v and dout are uniform in [-1, 1). A chain of e products of random sign keeps partial sums near
// sqrt(e) / 3 and rounds each once: its error is below e * kUnit at 4 sigma, so a score, scaled by 1 / sqrt(e), is off
// by at most sqrt(e) * kUnit, and a softcap adds the error of tanh, 2 ulp of at most softcap. A weight is exp(score -
// max or lse): relative error 2 score errors plus exp's and lse's, 8 units. A sum over t keys of weights that sum to 1
// adds sqrt(t) units.
double weight_error(const Shape& s) {
  return (8 * std::sqrt(double(s.e)) + 4 * double(s.softcap) + 16) * kUnit;
}
double sum_error(const Shape& s) { return weight_error(s) + 4 * std::sqrt(double(kv_rows(s) + 1)) * kUnit; }
// ds = p (dp - D) scale: p's relative error times |dp - D| scale, which is below 2 at 4 sigma, plus the errors of dp
// and D, e units each. Sums over the queries of a key multiply by the column's weight, below 16 for these inputs and
// one head; with bf16 a result next to a rounding boundary may fall to its other side, a whole ulp (up to 2^-7) away.
double rounding(DType dtype) { return dtype == DType::bf16 ? 0x1p-7 : 0; }
Bound gradient_bound(const Shape& s, DType dtype) {
  const double ds = 2 * sum_error(s) + 4 * std::sqrt(double(s.e)) * kUnit;
  return {16 * double(s.heads / s.kv_heads) * ds, rounding(dtype)};
}

TEST_CASE("attention: forward and backward against the reference, equal bits on every device") {
  for (const Shape& shape : shapes())
    for (DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(shape.e);
      CAPTURE(int(dtype));
      Case c(shape, dtype);
      const Bound out_bound = {sum_error(shape), rounding(dtype)}, lse_bound = {sum_error(shape), kUnit};
      CHECK(against_reference(attention, c.forward(), {{&c.out, out_bound}, {&c.lse, lse_bound}}) == "");
      const Bound bound = gradient_bound(shape, dtype);
      CHECK(against_reference(attention_backward, c.backward(), {{&c.dq, bound}, {&c.dkv, bound}}) == "");
    }
}

// Rows [from, from + count) of `part` against the same of `whole`, bit by bit.
std::string rows_differ(const GuardedTensor& part, int64_t from, const GuardedTensor& whole, int64_t whole_from,
                        int64_t count) {
  const int64_t width = whole.elems() / whole.view().dim[0];
  for (int64_t i = 0; i < count * width; ++i)
    if (part.bits(from * width + i) != whole.bits(whole_from * width + i))
      return fmt::format("row {} element {}: {:.9g} against {:.9g}", i / width, i % width, part.at(from * width + i),
                         whole.at(whole_from * width + i));
  return "";
}

// A case whose queries [begin, end) and keys [key_begin, end) are those rows of `whole`, a case of one sequence.
std::unique_ptr<Case> slice(const Case& whole, int64_t begin, int64_t end, int64_t key_begin) {
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

TEST_CASE("attention: chunked prefill and decode from a cache give the bits of the full pass") {
  for (const Shape& shape : {Shape{20, 6, 2, {{530, 530, 0, 0}}}, Shape{33, 1, 1, {{530, 530, 0, 0}}, 0, 3.0f},
                             Shape{16, 4, 1, {{530, 530, 0, 0}}, 300}})
    for (DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(shape.e);
      Case whole(shape, dtype);
      Device& device = *devices()[1].device;  // two threads
      REQUIRE(run_on(device, attention, whole.forward()) == "");
      for (auto [begin, end] : std::vector<std::pair<int64_t, int64_t>>{
               {0, 1}, {0, 100}, {100, 101}, {100, 357}, {255, 256}, {256, 258}, {357, 530}, {511, 512}, {529, 530}}) {
        CAPTURE(begin);
        const auto part = slice(whole, begin, end, 0);
        REQUIRE(run_on(*devices()[3].device, attention, part->forward()) == "");
        CHECK(rows_differ(part->out, 0, whole.out, begin, end - begin) == "");
        CHECK(rows_differ(part->lse, 0, whole.lse, begin, end - begin) == "");
      }
    }
}

TEST_CASE("attention: a ring that has dropped the keys behind the window gives the bits of the full pass") {
  Case whole({24, 4, 2, {{600, 600, 0, 0}}, 100}, DType::f32);
  Device& device = *devices()[0].device;
  REQUIRE(run_on(device, attention, whole.forward()) == "");
  for (int64_t begin : {150, 290, 512, 599}) {
    const auto part = slice(whole, begin, begin + 1, begin - 99);
    REQUIRE(run_on(device, attention, part->forward()) == "");
    CHECK(rows_differ(part->out, 0, whole.out, begin, 1) == "");
    CHECK(rows_differ(part->lse, 0, whole.lse, begin, 1) == "");
  }
}

TEST_CASE("attention: batch mates change no bits, forward and backward") {
  Case batch({12, 4, 2, {{90, 90, 0, 0}, {31, 31, 0, 0}, {64, 64, 0, 0}}}, DType::f32);
  Device& device = *devices()[2].device;
  REQUIRE(run_on(device, attention, batch.forward()) == "");
  REQUIRE(run_on(device, attention_backward, batch.backward()) == "");
  int64_t row = 0;
  for (const Seq& seq : batch.shape.sequences) {
    Case alone({12, 4, 2, {seq}}, DType::f32);
    const auto copy = [row](GuardedTensor& to, const GuardedTensor& from) {
      const int64_t width = from.elems() / from.view().dim[0];
      for (int64_t i = 0; i < to.elems(); ++i) to.set(i, from.at(row * width + i));
    };
    copy(alone.q, batch.q);
    copy(alone.kv, batch.kv);
    copy(alone.dout, batch.dout);
    REQUIRE(run_on(device, attention, alone.forward()) == "");
    REQUIRE(run_on(device, attention_backward, alone.backward()) == "");
    CHECK(rows_differ(alone.out, 0, batch.out, row, seq.q_count) == "");
    CHECK(rows_differ(alone.dq, 0, batch.dq, row, seq.q_count) == "");
    CHECK(rows_differ(alone.dkv, 0, batch.dkv, row, seq.q_count) == "");
    row += seq.q_count;
  }
}

TEST_CASE("attention: dq of a row does not depend on the later rows") {
  Case whole({20, 4, 2, {{200, 200, 0, 0}}}, DType::f32);
  Device& device = *devices()[0].device;
  REQUIRE(run_on(device, attention, whole.forward()) == "");
  REQUIRE(run_on(device, attention_backward, whole.backward()) == "");
  for (int64_t end : {1, 63, 130}) {
    const auto part = slice(whole, 0, end, 0);
    REQUIRE(run_on(device, attention, part->forward()) == "");
    REQUIRE(run_on(device, attention_backward, part->backward()) == "");
    CHECK(rows_differ(part->dq, 0, whole.dq, 0, end) == "");
  }
}

TEST_CASE("attention: a query that sees nothing is 0 with lse -inf, and has no gradient") {
  Case c({20, 2, 1, {{6, 4, 0, 3, 2}}}, DType::f32);  // queries 0..5, keys at positions 3..6
  for (const TestDevice& d : devices()) {
    REQUIRE(run_on(*d.device, attention, c.forward()) == "");
    REQUIRE(run_on(*d.device, attention_backward, c.backward()) == "");
    for (int64_t i = 0; i < 3 * 2 * 20; ++i) {
      REQUIRE(c.out.bits(i) == 0);
      REQUIRE(c.dq.bits(i) == 0);
    }
    for (int64_t i = 0; i < 12; ++i) CHECK(std::isinf(c.lse.at(i)) == (i < 6));
    for (int64_t i = 3 * 40; i < c.dkv.elems(); ++i)
      REQUIRE(c.dkv.bits(i) == 0);  // the key after the queries, and no key
  }
}

TEST_CASE("attention: what a masked key holds does not matter, NaN included") {
  const Shape shape{20, 4, 2, {{70, 70, 0, 0}}, 30};
  Case clean(shape, DType::f32), dirty(shape, DType::f32);
  for (int64_t i = 0; i < 80; ++i) {
    dirty.kv.set(50 * 80 + i, std::nan(""));                                 // seen by queries 50..69 only
    dirty.kv.set(60 * 80 + i, std::numeric_limits<double>::infinity());
  }
  Device& device = *devices()[0].device;
  REQUIRE(run_on(device, attention, clean.forward()) == "");
  REQUIRE(run_on(device, attention, dirty.forward()) == "");
  REQUIRE(run_on(device, attention_backward, clean.backward()) == "");
  REQUIRE(run_on(device, attention_backward, dirty.backward()) == "");
  CHECK(rows_differ(dirty.out, 0, clean.out, 0, 50) == "");
  CHECK(rows_differ(dirty.dq, 0, clean.dq, 0, 50) == "");
  for (int64_t i = 50 * 80; i < 70 * 80; ++i) REQUIRE(std::isnan(dirty.out.at(i)));
}

TEST_CASE("attention: offsets outside the tensors are errors that name the sequence") {
  Case c({4, 1, 1, {{3, 3, 0, 0}, {2, 2, 0, 0}}}, DType::f32);
  const auto error = [&](GuardedTensor& tensor, int64_t at, double value) {
    const double before = tensor.at(at);
    tensor.set(at, value);
    const auto device = open_device({.threads = 2});
    const std::string message = run_on(*device, attention, c.forward());
    tensor.set(at, before);
    return message;
  };
  CHECK(error(c.q_begin, 2, 6).find("sequence 1: query rows [3, 6) found") != std::string::npos);
  CHECK(error(c.q_begin, 1, 6).find("sequence 0: query rows [0, 6) found") != std::string::npos);
  CHECK(error(c.q_begin, 2, 1).find("sequence 1: query rows [3, 1) found") != std::string::npos);
  CHECK(error(c.kv_len, 1, 3).find("sequence 1: KV rows [3, 6) found") != std::string::npos);
  CHECK(error(c.kv_len, 0, -1).find("sequence 0: KV rows [0, -1) found") != std::string::npos);
  CHECK(error(c.kv_begin, 0, -1).find("sequence 0: KV rows [-1, 2) found") != std::string::npos);
  c.kv_begin.set(1, 2);
  const auto device = open_device({.threads = 2});
  CHECK(run_on(*device, attention_backward, c.backward()).find("sequence 1: KV rows from 2 found, from 3") !=
        std::string::npos);
}

}  // namespace
}  // namespace llmops::test
