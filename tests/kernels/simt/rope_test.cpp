// The cuda table on the SIMT shim: rope, kv_store and both in one, against the ref table, and bit for bit against the
// cpu table, of which kernels/rope_test.cpp shows that the one op is the two.
#include "support/cuda_case.h"

namespace llmops::test {
namespace {

GuardedTensor angles(int64_t positions, int64_t half) {
  GuardedTensor table(DType::f32, {positions, half, 2});
  for (int64_t i = 0; i < positions * half; ++i) {
    const double angle = double(i / half) * std::pow(100.0, -double(i % half) / double(half));
    table.set(2 * i, std::cos(angle));
    table.set(2 * i + 1, std::sin(angle));
  }
  return table;
}

// Two products of numbers below 1 and one sum, each rounded once; bf16 may fall to the other side of a rounding boundary.
Bound bound_of(DType t) { return {2 * 0x1p-24, t == DType::bf16 ? 0x1p-7 : 0}; }

TEST_CASE("cuda rope: both conventions and directions, partial, strided, in place") {
  for (DType t : {DType::f32, DType::bf16})
    for (auto [e, half] : {std::pair<int64_t, int64_t>{2, 1}, {20, 7}, {32, 16}, {33, 16}, {64, 32}, {80, 24}})
      for (int64_t gap : {0, 5, 8})
        for (int mode = 0; mode < 4; ++mode) {
          CAPTURE(info(t).name);
          CAPTURE(e);
          CAPTURE(gap);
          CAPTURE(mode);
          const Dimensions dims{7, 3, e};
          GuardedTensor table = angles(50, half), positions = random_ints(DType::i32, 7, 0, 50, 3);
          GuardedTensor x = random_tensor(t, dims, 1, padded_strides(dims, gap)), out(t, dims, padded_strides(dims, 2 * gap));
          CHECK(cuda_against_others(rope, {{&x}, {&positions}, {&table}, {&out, bound_of(t)}}, [&](auto& t) {
                  return RopeArgs{t[0], t[1], t[2], t[3], mode % 2 == 1, mode / 2 == 1};
                }) == "");
          CHECK(cuda_against_others(rope, {{&x, bound_of(t)}, {&positions}, {&table}}, [&](auto& t) {
                  return RopeArgs{t[0], t[1], t[2], t[0], mode % 2 == 1, mode / 2 == 1};
                }) == "");
        }
}

TEST_CASE("cuda rope: no tokens, and more heads than a block has threads") {
  for (int64_t n : {0, 2}) {
    GuardedTensor table = angles(5, 8), positions = random_ints(DType::i32, n, 0, 5, 3);
    GuardedTensor x = random_tensor(DType::bf16, {n, 300, 20}, 1), out(DType::bf16, {n, 300, 20});
    CHECK(cuda_against_others(rope, {{&x}, {&positions}, {&table}, {&out, bound_of(DType::bf16)}}, [](auto& t) {
            return RopeArgs{t[0], t[1], t[2], t[3], false, false};
          }) == "");
  }
}

TEST_CASE("cuda kv_store: rows anywhere, strided, the rest of the caches as it was") {
  for (DType t : {DType::f32, DType::bf16})
    for (int64_t n : {0, 1, 4})
      for (auto [heads, e] : {std::pair<int64_t, int64_t>{1, 1}, {3, 17}, {2, 64}, {40, 64}})
        for (int64_t gap : {0, 3, 16}) {
          CAPTURE(info(t).name);
          CAPTURE(n);
          CAPTURE(e);
          CAPTURE(gap);
          const Dimensions dims{n, heads, e}, cache_dims{9, heads, e};
          GuardedTensor k = random_tensor(t, dims, 1, padded_strides(dims, gap)), v = random_tensor(t, dims, 2);
          GuardedTensor target = tensor_of<int>(DType::i32, {7, 0, 8, 3}), k_cache = random_tensor(t, cache_dims, 3);
          GuardedTensor v_cache = random_tensor(t, cache_dims, 4, padded_strides(cache_dims, gap));
          CHECK(cuda_against_others(kv_store, {{&k}, {&v}, {&target}, {&k_cache, Bound{}}, {&v_cache, Bound{}}}, [&](auto& t) {
                  return KvStoreArgs{t[0], t[1], rows(t[2], 0, n), t[3], t[4]};
                }) == "");
        }
}

TEST_CASE("cuda kv_store with angles: both conventions, partial, strided, aligned or not, one launch") {
  const auto heads = [](TensorView view, int64_t first, int64_t count) {
    view.data = static_cast<char*>(view.data) + first * view.stride[1] * info(view.dtype).block_bytes;
    view.dim[1] = count;
    return view;
  };
  for (DType t : {DType::f32, DType::bf16})
    for (auto [e, half] : {std::pair<int64_t, int64_t>{2, 1}, {20, 7}, {33, 16}, {64, 32}, {80, 24}})
      for (auto [q_heads, k_heads] : {std::pair<int64_t, int64_t>{1, 1}, {6, 2}, {70, 10}})
        for (int64_t gap : {0, 3, 16})
          for (bool interleaved : {false, true}) {
            const int64_t n = q_heads == 1 ? 1 : 3;
            CAPTURE(info(t).name);
            CAPTURE(e);
            CAPTURE(q_heads);
            CAPTURE(gap);
            CAPTURE(interleaved);
            const Dimensions dims{n, q_heads + 2 * k_heads, e}, cache_dims{9, k_heads, e};
            GuardedTensor fused = random_tensor(t, dims, 1, padded_strides(dims, gap)), table = angles(50, half);
            GuardedTensor positions = random_ints(DType::i32, n, 0, 50, 3);
            GuardedTensor target = tensor_of<int>(DType::i32, {7, 0, 8});
            GuardedTensor k_cache = random_tensor(t, cache_dims, 3);
            GuardedTensor v_cache = random_tensor(t, cache_dims, 4, padded_strides(cache_dims, gap));
            const auto store = [&](auto& t) {
              const TensorView q = heads(t[0], 0, q_heads), k = heads(t[0], q_heads, k_heads);
              const TensorView v = heads(t[0], q_heads + k_heads, k_heads);
              return KvStoreArgs{k, v, rows(t[1], 0, n), t[2], t[3], q, t[4], t[5], interleaved};
            };
            const int64_t before = simt::launches();
            CHECK(cuda_against_others(kv_store, {{&fused, bound_of(t)}, {&target}, {&k_cache, bound_of(t)},
                                                 {&v_cache, Bound{}}, {&positions}, {&table}}, store) == "");
            if (simt::emulated()) CHECK(simt::launches() - before == int64_t(schedules().size()));
          }
}

TEST_CASE("cuda kv_store with angles: no tokens") {
  GuardedTensor x(DType::f32, {0, 2, 8}), ids(DType::i32, {0}), cache = random_tensor(DType::f32, {4, 2, 8}, 1);
  GuardedTensor v_cache(cache), table = angles(5, 4), q(x);
  const auto store = [](auto& t) { return KvStoreArgs{t[0], t[0], t[1], t[2], t[3], t[4], t[1], t[5], false}; };
  CHECK(cuda_against_others(
            kv_store, {{&x}, {&ids}, {&cache, Bound{}}, {&v_cache, Bound{}}, {&q, Bound{}}, {&table}}, store) == "");
}

}  // namespace
}  // namespace llmops::test
