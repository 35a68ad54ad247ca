// embedding and embedding_backward against the ref table. u = 2^-24.
#include "support/kernel_case.h"

namespace llmops::test {
namespace {

constexpr double kUnit = 0x1p-24;

struct Shape {
  int64_t n, v, p, d;
};
const std::vector<Shape> kShapes = {{0, 3, 2, 16}, {1, 1, 1, 1},     {5, 3, 2, 15},     {6, 50, 4, 16},
                                    {7, 3, 7, 17}, {200, 5, 50, 97}, {40, 11, 40, 768}, {3, 4, 5, 4097}};

TEST_CASE("embedding: rows of the table, with and without positions") {
  for (DType t : {DType::f32, DType::bf16}) {
    for (const Shape s : kShapes) {
      CAPTURE(s.n);
      CAPTURE(s.d);
      CAPTURE(info(t).name);
      GuardedTensor ids = random_ints(DType::i32, s.n, 0, s.v, 1), positions = random_ints(DType::i32, s.n, 0, s.p, 2);
      GuardedTensor table = random_tensor(t, {s.v, s.d}, 3), pos_table = random_tensor(t, {s.p, s.d}, 4),
                    out(t, {s.n, s.d});
      // A copy, and one addition that is rounded as on the other side.
      CHECK(against_reference(embedding, EmbeddingArgs{ids, {}, table, {}, out}, {{&out, {0, 0}}}) == "");
      CHECK(against_reference(embedding, EmbeddingArgs{ids, positions, table, pos_table, out}, {{&out, {0, 0}}}) == "");
    }
  }
}

TEST_CASE("embedding_backward: overwriting and adding, each table on its own") {
  for (DType t : {DType::f32, DType::bf16}) {
    for (const Shape s : kShapes) {
      for (int mode = 0; mode < 4; ++mode) {
        CAPTURE(s.n);
        CAPTURE(s.d);
        CAPTURE(info(t).name);
        CAPTURE(mode);
        GuardedTensor ids = random_ints(DType::i32, s.n, 0, s.v, 1),
                      positions = random_ints(DType::i32, s.n, 0, s.p, 2);
        GuardedTensor dout = random_tensor(t, {s.n, s.d}, 3), dtable = random_tensor(DType::f32, {s.v, s.d}, 4);
        GuardedTensor dpos = random_tensor(DType::f32, {s.p, s.d}, 5);
        // At most n additions to one element; partial sums below n + 1.
        const Bound bound = {double(s.n) * double(s.n + 1) * kUnit, 0};
        const EmbeddingBackwardArgs args = {ids, positions, dout, dtable, dpos, (mode & 1) != 0, (mode & 2) != 0};
        CHECK(against_reference(embedding_backward, args, {{&dtable, bound}, {&dpos, bound}}) == "");
        const EmbeddingBackwardArgs tokens_only = {ids, {}, dout, dtable, {}, (mode & 1) != 0, false};
        CHECK(against_reference(embedding_backward, tokens_only, {{&dtable, bound}}) == "");
      }
    }
  }
}

TEST_CASE("embedding_backward: ascending tokens, row by row") {
  const int64_t n = 100, v = 3, d = 70;
  GuardedTensor ids = random_ints(DType::i32, n, 0, v, 1), dout = random_tensor(DType::f32, {n, d}, 2);
  GuardedTensor want(DType::f32, {v, d});
  want.fill(0);
  for (int64_t r = 0; r < n; ++r)
    for (int64_t i = 0; i < d; ++i) {
      const int64_t to = int64_t(ids.at(r)) * d + i;
      want.set(to, float(want.at(to)) + float(dout.at(r * d + i)));
    }
  for (const TestDevice& device : devices()) {
    GuardedTensor dtable(DType::f32, {v, d});
    REQUIRE(run_on(*device.device, embedding_backward,
                   EmbeddingBackwardArgs{ids, {}, dout, dtable, {}, false, false}) == "");
    CHECK(difference_bits(dtable, want) == "");
  }
}

TEST_CASE("embedding_backward: a table that is added to keeps the rows without a token") {
  GuardedTensor ids = tensor_of<int>(DType::i32, {2, 2, 5}), dout = random_tensor(DType::f32, {3, 33}, 1);
  GuardedTensor dtable = random_tensor(DType::f32, {7, 33}, 2);
  const GuardedTensor before = dtable;
  REQUIRE(run_on(*devices().front().device, embedding_backward,
                 EmbeddingBackwardArgs{ids, {}, dout, dtable, {}, true, false}) == "");
  for (int64_t row = 0; row < 7; ++row)
    for (int64_t i = 0; i < 33; ++i)
      CHECK((dtable.bits(row * 33 + i) != before.bits(row * 33 + i)) == (row == 2 || row == 5));
}

TEST_CASE("embedding_backward: the frozen row gets no gradient, the others and the positions do") {
  GuardedTensor ids = tensor_of<int>(DType::i32, {2, 0, 2}), positions = tensor_of<int>(DType::i32, {0, 1, 2});
  GuardedTensor dout = random_tensor(DType::f32, {3, 19}, 1), dtable(DType::f32, {4, 19}), dpos(DType::f32, {3, 19});
  const std::string error = against_reference(embedding_backward, EmbeddingBackwardArgs{ids, positions, dout, dtable, dpos, false, false, 2},
                                              {{&dtable, {0, 0}}, {&dpos, {0, 0}}});
  CHECK(error == "");
  for (int64_t i = 0; i < 19; ++i) {
    CHECK(dtable.at(2 * 19 + i) == 0);
    CHECK(float(dtable.at(i)) == float(dout.at(19 + i)));
    CHECK(float(dpos.at(2 * 19 + i)) == float(dout.at(2 * 19 + i)));
  }
}

TEST_CASE("embedding: an id outside the table is named with its place and the limit") {
  const auto error_of = [](int id, int position, bool backward) {
    GuardedTensor ids = tensor_of<int>(DType::i32, {0, 4, id}),
                  positions = tensor_of<int>(DType::i32, {position, 1, 0});
    GuardedTensor table = random_tensor(DType::f32, {5, 8}, 1), pos_table = random_tensor(DType::f32, {2, 8}, 2);
    GuardedTensor rows_of = random_tensor(DType::f32, {3, 8}, 3);
    const auto device = open_device({.threads = 2});
    if (!backward) return run_on(*device, embedding, EmbeddingArgs{ids, positions, table, pos_table, rows_of});
    return run_on(*device, embedding_backward,
                  EmbeddingBackwardArgs{ids, positions, rows_of, table, pos_table, true, true});
  };
  for (bool backward : {false, true}) {
    CHECK(error_of(3, 1, backward) == "");
    CHECK(error_of(5, 0, backward).find("ids[2] is 5, expected 0 or more and less than 5") != std::string::npos);
    CHECK(error_of(-1, 0, backward).find("ids[2] is -1, expected 0 or more and less than 5") != std::string::npos);
    CHECK(error_of(0, 2, backward).find("positions[0] is 2, expected 0 or more and less than 2") != std::string::npos);
  }
}

}  // namespace
}  // namespace llmops::test
