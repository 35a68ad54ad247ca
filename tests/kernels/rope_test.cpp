// Rotary embedding: both conventions, both directions, partial, strided, in place, and on the way into a KV cache.
#include <numbers>

#include "support/kernel_case.h"

namespace llmops::test {
namespace {

// cos and sin of position * 100^(-i / half).
GuardedTensor angles(int64_t positions, int64_t half) {
  GuardedTensor table(DType::f32, {positions, half, 2});
  for (int64_t i = 0; i < positions * half; ++i) {
    const double angle = double(i / half) * std::pow(100.0, -double(i % half) / double(half));
    table.set(2 * i, std::cos(angle));
    table.set(2 * i + 1, std::sin(angle));
  }
  return table;
}

// Two products of numbers below 1 and one sum, each rounded once: 2 units; with bf16 a result next to a rounding
// boundary may fall to its other side, a whole ulp (up to 2^-7) away.
Bound bound_of(DType dtype) { return {2 * 0x1p-24, dtype == DType::bf16 ? 0x1p-7 : 0}; }

TEST_CASE("rope against the reference") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (auto [e, half] :
         {std::pair<int64_t, int64_t>{2, 1}, {12, 6}, {20, 7}, {33, 16}, {64, 32}, {80, 20}, {130, 65}})
      for (int mode = 0; mode < 4; ++mode) {
        CAPTURE(e);
        CAPTURE(mode);
        const Dimensions dims{9, 3, e};
        const GuardedTensor table = angles(50, half), positions = random_ints(DType::i32, 9, 0, 50, 3);
        const GuardedTensor x = random_tensor(dtype, dims, 1, padded_strides(dims, 5));
        GuardedTensor out(dtype, dims, padded_strides(dims, 2));
        const RopeArgs args{x, positions, table, out, mode % 2 == 1, mode / 2 == 1};
        CHECK(against_reference(rope, args, {{&out, bound_of(dtype)}}) == "");
        GuardedTensor place(x);
        const RopeArgs in_place{place, positions, table, place, args.interleaved, args.inverse};
        CHECK(against_reference(rope, in_place, {{&place, bound_of(dtype)}}) == "");
        Device& device = *devices()[0].device;
        REQUIRE(run_on(device, rope, args) == "");
        place.restore(x.contents());
        REQUIRE(run_on(device, rope, in_place) == "");
        CHECK(difference_bits(out, place) == "");
      }
}

TEST_CASE("kv_store with angles: rope of q and k, then the store, bit by bit") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (auto [e, half] : {std::pair<int64_t, int64_t>{2, 1}, {20, 7}, {33, 16}, {64, 32}, {80, 20}})
      for (int64_t n : {0, 1, 7, 200})
        for (bool interleaved : {false, true}) {
          CAPTURE(e);
          CAPTURE(n);
          CAPTURE(interleaved);
          // Slices of one fused tensor of 5 + 2 + 2 heads, as a block has them.
          const Dimensions dims{n, 9, e}, cache_dims{n + 3, 2, e}, cache_strides = padded_strides(cache_dims, 3);
          const GuardedTensor fused = random_tensor(dtype, dims, 1, padded_strides(dims, 5)), table = angles(50, half);
          const GuardedTensor positions = random_ints(DType::i32, n, 0, 50, 3);
          const GuardedTensor k_cache = random_tensor(dtype, cache_dims, 2, cache_strides);
          const GuardedTensor v_cache = random_tensor(dtype, cache_dims, 3);
          GuardedTensor rows(DType::i32, {n});
          for (int64_t i = 0; i < n; ++i) rows.set(i, double(n + 2 - i));
          GuardedTensor one(fused), k_one(k_cache), v_one(v_cache), two(fused), k_two(k_cache), v_two(v_cache);
          const auto heads = [](const GuardedTensor& x, int64_t first, int64_t count) {
            TensorView view = x.view();
            view.data = static_cast<char*>(view.data) + first * view.stride[1] * info(view.dtype).block_bytes;
            view.dim[1] = count;
            return view;
          };
          const KvStoreArgs args{heads(one, 5, 2), heads(one, 7, 2), rows,  k_one,      v_one,
                                 heads(one, 0, 5), positions,        table, interleaved};
          const Bound bound = bound_of(dtype);
          CHECK(against_reference(kv_store, args, {{&one, bound}, {&k_one, bound}, {&v_one, Bound{}}}) == "");
          Device& device = *devices()[0].device;
          const auto turn = [&](const TensorView& x) {
            return run_on(device, rope, {x, positions, table, x, interleaved, false});
          };
          REQUIRE(turn(heads(two, 0, 7)) == "");
          REQUIRE(run_on(device, kv_store, {heads(two, 5, 2), heads(two, 7, 2), rows, k_two, v_two}) == "");
          CHECK(difference_bits(k_one, k_two) == "");
          CHECK(difference_bits(v_one, v_two) == "");
          if (n > 0) CHECK(difference_bits(one, two) != "");  // its k is left as it was
          REQUIRE(turn(heads(one, 5, 2)) == "");
          CHECK(difference_bits(one, two) == "");
        }
}

TEST_CASE("rope: the inverse undoes it, and many rows go through several tasks") {
  const Dimensions dims{700, 4, 24};
  const GuardedTensor table = angles(700, 12), positions = random_ints(DType::i32, 700, 0, 700, 3);
  const GuardedTensor x = random_tensor(DType::f32, dims, 1);
  GuardedTensor turned(DType::f32, dims), back(DType::f32, dims);
  for (bool interleaved : {false, true}) {
    Device& device = *devices()[3].device;
    REQUIRE(run_on(device, rope, {x, positions, table, turned, interleaved, false}) == "");
    REQUIRE(run_on(device, rope, {turned, positions, table, back, interleaved, true}) == "");
    CHECK(difference(back, x, {8 * 0x1p-24, 0}) == "");  // two rotations of 2 units and a table rounded to f32
    CHECK(difference(turned, x, {0.1, 0}) != "");
  }
}

TEST_CASE("rope, kv_store: a position outside the table is an error that names it") {
  const GuardedTensor table = angles(5, 2), x = random_tensor(DType::f32, {2, 1, 4}, 1);
  const GuardedTensor rows = tensor_of(DType::i32, std::vector<int>{0, 1});
  GuardedTensor out(DType::f32, {2, 1, 4}), k_cache(out), v_cache(out);
  for (int position : {-1, 5}) {
    const GuardedTensor positions = tensor_of(DType::i32, std::vector<int>{0, position});
    const auto device = open_device({.threads = 1});
    const std::string message = run_on(*device, rope, {x, positions, table, out, false, false});
    CHECK(message.find(fmt::format("positions[1] is {}", position)) != std::string::npos);
    for (bool reference : {false, true})
      CHECK(run_on(*open_device({.threads = 1, .reference = reference}), kv_store,
                   {x, x, rows, k_cache, v_cache, out, positions, table, false})
                .find(fmt::format("kv_store: positions[1] is {}", position)) != std::string::npos);
  }
}

}  // namespace
}  // namespace llmops::test
