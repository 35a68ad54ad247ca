// The cuda table on the SIMT shim: embedding and its gradient against the ref table, and bit for bit against the cpu table,
// which adds tokens ascending. u = 2^-24.
#include "support/cuda_case.h"

namespace llmops::test {
namespace {

constexpr double kUnit = 0x1p-24;

struct Shape {
  int64_t n, v, p, d;
};
// Tokens that fill a warp's list (32) several times and end within it; rows of whole vectors and not; two slices of columns.
const std::vector<Shape> kShapes = {{0, 3, 2, 16}, {1, 1, 1, 1}, {5, 3, 2, 15}, {9, 50, 4, 16}, {200, 5, 50, 24}, {130, 2, 7, 35},
                                    {40, 11, 40, 136}, {3, 4, 5, 264}};

// At most n additions to one element; partial sums below n + 1.
Bound bound_of(int64_t n) { return {double(n) * double(n + 1) * kUnit, 0}; }

template <class Check>
void for_shapes(Check check) {
  for (DType t : {DType::f32, DType::bf16})
    for (const Shape s : kShapes) {
      CAPTURE(info(t).name);
      CAPTURE(s.n);
      CAPTURE(s.d);
      check(t, s);
    }
}

TEST_CASE("cuda embedding: rows of the table, with and without positions") {
  for_shapes([](DType t, Shape s) {
    GuardedTensor ids = random_ints(DType::i32, s.n, 0, s.v, 1), positions = random_ints(DType::i32, s.n, 0, s.p, 2);
    GuardedTensor table = random_tensor(t, {s.v, s.d}, 3), pos_table = random_tensor(t, {s.p, s.d}, 4), out(t, {s.n, s.d});
    CHECK(cuda_against_others(embedding, {{&ids}, {&table}, {&out, Bound{}}}, [](auto& t) {
            return EmbeddingArgs{t[0], {}, t[1], {}, t[2]};
          }) == "");
    CHECK(cuda_against_others(embedding, {{&ids}, {&positions}, {&table}, {&pos_table}, {&out, Bound{}}}, [](auto& t) {
            return EmbeddingArgs{t[0], t[1], t[2], t[3], t[4]};
          }) == "");
  });
}

TEST_CASE("cuda embedding_backward: overwriting and adding, each table on its own, and a frozen row") {
  for_shapes([](DType t, Shape s) {
    GuardedTensor ids = random_ints(DType::i32, s.n, 0, s.v, 1), positions = random_ints(DType::i32, s.n, 0, s.p, 2);
    GuardedTensor dout = random_tensor(t, {s.n, s.d}, 3), dtable = random_tensor(DType::f32, {s.v, s.d}, 4);
    GuardedTensor dpos = random_tensor(DType::f32, {s.p, s.d}, 5);
    const Bound bound = bound_of(s.n);
    for (int mode = 0; mode < 4; ++mode)
      CHECK(cuda_against_others(embedding_backward, {{&ids}, {&positions}, {&dout}, {&dtable, bound}, {&dpos, bound}}, [&](auto& t) {
              return EmbeddingBackwardArgs{t[0], t[1], t[2], t[3], t[4], (mode & 1) != 0, (mode & 2) != 0, mode == 3 ? 0 : -1};
            }) == "");
    CHECK(cuda_against_others(embedding_backward, {{&ids}, {&dout}, {&dtable, bound}}, [&](auto& t) {
            return EmbeddingBackwardArgs{t[0], {}, t[1], t[2], {}, false, false, 0};
          }) == "");
  });
}

TEST_CASE("cuda embedding_backward: a warp's list of tokens is full at the last look, and runs on past a window") {
  std::vector<int32_t> rest_at_end(64, 1), two_runs(64, 2);
  rest_at_end[31] = 0;  // 31 tokens in the first window of 32, and 32 in the last: one list and 31 left
  std::fill(two_runs.begin() + 33, two_runs.end(), 1);
  for (const std::vector<int32_t>& tokens : {rest_at_end, two_runs, std::vector<int32_t>(96, 1)})
    for (DType t : {DType::f32, DType::bf16}) {
      const int64_t n = std::ssize(tokens), d = 16, v = 3;
      GuardedTensor ids = tensor_of(DType::i32, tokens), dout = random_tensor(t, {n, d}, 3), dtable(DType::f32, {v, d});
      CHECK(cuda_against_others(embedding_backward, {{&ids}, {&dout}, {&dtable, bound_of(n)}}, [&](auto& t) {
              return EmbeddingBackwardArgs{t[0], {}, t[1], t[2], {}, false, false, -1};
            }) == "");
    }
}

}  // namespace
}  // namespace llmops::test
