// Attention, forward and backward: against the reference, and the promise that a row's bits depend on nothing but its
// query and the keys it sees.
#include "support/attention_case.h"

namespace llmops::test {
using namespace attention_case;
namespace {

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

TEST_CASE("attention: a paged cache gives the bits of a contiguous one") {
  for (const Shape& shape : paged_shapes())
    for (DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(shape.e);
      Case c(shape, dtype), whole(shape, dtype);
      const Paged paged(c);
      const Bound out_bound = {sum_error(shape), rounding(dtype)}, lse_bound = {sum_error(shape), kUnit};
      CHECK(against_reference(attention, paged.forward(c), {{&c.out, out_bound}, {&c.lse, lse_bound}}) == "");
      REQUIRE(run_on(*devices()[0].device, attention, whole.forward()) == "");
      CHECK(difference_bits(c.out, whole.out) == "");
      CHECK(difference_bits(c.lse, whole.lse) == "");
    }
}

TEST_CASE("attention: a cache that kv_store filled by pages") {
  Case c({16, 2, 1, {{40, 40, 0, 0}}}, DType::f32), whole({16, 2, 1, {{40, 40, 0, 0}}}, DType::f32);
  Paged paged(c);
  std::vector<int32_t> rows;
  for (int64_t j = 0; j < 40; ++j) rows.push_back(int32_t(paged.table.at(j / kKvBlock)) * 16 + int32_t(j % kKvBlock));
  const GuardedTensor to = tensor_of(DType::i32, rows);
  paged.pool.fill(std::nan(""));
  const AttentionArgs args = paged.forward(c), from = whole.forward();
  const auto writable = [&](int64_t head) { return heads_of(paged.pool, head, 1); };
  Device& device = *devices()[0].device;
  REQUIRE(run_on(device, kv_store, KvStoreArgs{from.k, from.v, to, writable(0), writable(1)}) == "");
  REQUIRE(run_on(device, attention, args) == "");
  REQUIRE(run_on(device, attention, from) == "");
  CHECK(difference_bits(c.out, whole.out) == "");
}

TEST_CASE("attention: blocks outside the pool, tables that are too short and odd positions are errors") {
  const auto error = [](GuardedTensor Case::* tensor, GuardedTensor Paged::* paged_tensor, int64_t at, double value) {
    Case c({4, 1, 1, {{3, 3, 0, 0}, {20, 20, 0, 0}}}, DType::f32);
    Paged paged(c);
    if (tensor) (c.*tensor).set(at, value);
    if (paged_tensor) (paged.*paged_tensor).set(at, value);
    const auto device = open_device({.threads = 2});
    return run_on(*device, attention, paged.forward(c));
  };
  CHECK(error(nullptr, &Paged::table, 4, 6).find("sequence 1: block 6 found at 1 of its table, expected within [0, 6)") !=
        std::string::npos);
  CHECK(error(nullptr, &Paged::table, 3, -1).find("sequence 1: block -1 found at 0") != std::string::npos);
  CHECK(error(&Case::kv_len, nullptr, 1, 49).find("sequence 1: 49 KV rows found, at most the 48 of its 3 blocks") !=
        std::string::npos);
  CHECK(error(&Case::kv_pos0, nullptr, 0, 8).find("sequence 0: kv_pos0 8 found, a multiple of 16") != std::string::npos);
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
  for (bool reference : {false, true}) {
    AttentionArgs args = c.forward();
    args.kv_max = 2;
    CHECK(run_on(*open_device({.threads = 2, .reference = reference}), attention, args)
              .find("sequence 0: 3 KV rows found, at most kv_max 2 expected") != std::string::npos);
    args.kv_max = 3;
    CHECK(run_on(*open_device({.threads = 2, .reference = reference}), attention, args) == "");
  }
  c.kv_begin.set(1, 2);
  const auto device = open_device({.threads = 2});
  CHECK(run_on(*device, attention_backward, c.backward()).find("sequence 1: KV rows from 2 found, from 3") !=
        std::string::npos);
}

}  // namespace
}  // namespace llmops::test
