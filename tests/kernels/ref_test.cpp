// The ref table against closed forms and hand-made numbers.
#include "support/kernel_case.h"

namespace llmops::test {
namespace {

constexpr DType kF32 = DType::f32, kBf16 = DType::bf16, kI32 = DType::i32;

template <class Args>
void run_ref(OpFunction<Args> op, const std::type_identity_t<Args>& args) {
  CHECK(run_on(reference_device(), op, args) == "");
}
GuardedTensor f32(std::initializer_list<double> values) { return tensor_of<double>(kF32, values); }
GuardedTensor ints(std::initializer_list<int> values) { return tensor_of<int>(kI32, values); }
GuardedTensor matrix(Dimensions dims, std::initializer_list<double> values) {
  GuardedTensor x(kF32, std::move(dims));
  int64_t i = 0;
  for (double v : values) x.set(i++, v);
  REQUIRE(i == x.elems());
  return x;
}
constexpr Bound kExact = {0, 0}, kRounded = {0, 1e-6};

TEST_CASE("ref: embedding picks rows and adds positions; a bad id is an error") {
  GuardedTensor table = matrix({3, 2}, {1, 2, 3, 4, 5, 6}), pos = matrix({2, 2}, {10, 20, 30, 40}), out(kF32, {3, 2});
  run_ref(embedding, {ints({2, 0, 2}), ints({0, 1, 1}), table, pos, out});
  CHECK(difference(out, matrix({3, 2}, {15, 26, 31, 42, 35, 46}), kExact) == "");
  auto device = open_device({.reference = true});  // its own: the failure sticks
  CHECK(run_on(*device, embedding, {ints({0, 3, 0}), {}, table, {}, out}).find("ids[1] is 3") != std::string::npos);
}

TEST_CASE("ref: layer_norm of 1 2 3 4 5, bias, residual") {
  GuardedTensor x = matrix({1, 5}, {1, 2, 3, 4, 5}), weight = f32({1, 1, 2, 1, 1}), bias = f32({0, 0, 1, 0, 0});
  GuardedTensor out(kF32, {1, 5}), mean(kF32, {1}), rstd(kF32, {1});
  run_ref(layer_norm, {x, {}, weight, bias, {}, out, mean, rstd, 1e-12f});
  const double r = std::sqrt(0.5);  // the variance is 2
  CHECK(difference(out, matrix({1, 5}, {-2 * r, -r, 1, r, 2 * r}), kRounded) == "");
  CHECK(mean.at(0) == 3);
  CHECK(rstd.at(0) == doctest::Approx(r));
  GuardedTensor delta = matrix({1, 5}, {4, 3, 2, 1, 0}), sum(kF32, {1, 5});  // x + delta is 5 everywhere: no variance
  run_ref(layer_norm, {x, delta, weight, bias, sum, out, {}, {}, 1e-5f});
  CHECK(difference(sum, matrix({1, 5}, {5, 5, 5, 5, 5}), kExact) == "");
  CHECK(difference(out, matrix({1, 5}, {0, 0, 1, 0, 0}), kExact) == "");
}

TEST_CASE("ref: rms_norm of 3 4 (root mean square sqrt(12.5)), in place, per head, strided") {
  GuardedTensor x(kF32, {1, 2, 2}, {9, 4, 1}), rstd(kF32, {1, 2}), weight = f32({1, 2});
  x.set(0, 3), x.set(1, 4), x.set(2, -30), x.set(3, 40);
  run_ref(rms_norm, {x, {}, weight, {}, x, rstd, 1e-12f});
  const double r = 1 / std::sqrt(12.5);
  CHECK(difference(x, matrix({1, 2, 2}, {3 * r, 8 * r, -3 * r, 8 * r}), kRounded) == "");
  CHECK(difference(rstd, matrix({1, 2}, {r, r / 10}), kRounded) == "");
}

TEST_CASE("ref: matmul in its four orientations, packed, accumulated, with an epilogue") {
  // [1 2 3; 4 5 6] * [1 0; 0 1; 2 -1]
  const GuardedTensor want = matrix({2, 2}, {7, -1, 16, -1});
  const GuardedTensor a = matrix({2, 3}, {1, 2, 3, 4, 5, 6}), a_t = matrix({3, 2}, {1, 4, 2, 5, 3, 6});
  const GuardedTensor b = matrix({3, 2}, {1, 0, 0, 1, 2, -1}), b_t = matrix({2, 3}, {1, 0, 2, 0, 1, -1});
  for (const bool a_trans : {false, true})
    for (const bool b_trans : {false, true})
      for (const bool packed : {false, true}) {
        const int64_t bytes = matmul_pack_bytes(kF32, 3, 2);
        GuardedTensor out(kF32, {2, 2}), panels(DType::u8, {bytes});
        MatmulArgs args = {};
        args.a = a_trans ? a_t : a, args.b.data = b_trans ? b_t : b, args.out = out;
        args.a_trans = a_trans, args.b_trans = b_trans;
        if (packed) {
          run_ref(matmul_pack, {args.b.data, panels, b_trans});
          args.b = {panels, Pack::panels, {}, 0};
        }
        run_ref(matmul, args);
        CHECK(difference(out, want, kExact) == "");
        args.accumulate = true;
        run_ref(matmul, args);
        CHECK(difference(out, matrix({2, 2}, {14, -2, 32, -2}), kExact) == "");
      }
  GuardedTensor out(kF32, {2, 2}), aux(kF32, {2, 2}), bias = f32({-7, 1}), residual = matrix({2, 2}, {1, 2, 3, 4});
  MatmulArgs args = {};
  args.a = a, args.b.data = b, args.out = out, args.bias = bias, args.residual = residual, args.aux = aux;
  args.act = Activation::gelu_erf;
  run_ref(matmul, args);
  CHECK(difference(aux, matrix({2, 2}, {0, 0, 9, 0}), kExact) == "");
  CHECK(difference(out, matrix({2, 2}, {1, 2, 12, 4}), kRounded) == "");  // gelu(9) is 9 to 1e-18
}

TEST_CASE("ref: bias gradient sums rows") {
  GuardedTensor dout = matrix({3, 2}, {1, 2, 3, 4, 5, 6}), dbias = f32({100, 200});
  run_ref(bias_backward, {dout, dbias, true});
  CHECK(difference(dbias, f32({109, 212}), kExact) == "");
  run_ref(bias_backward, {dout, dbias, false});
  CHECK(difference(dbias, f32({9, 12}), kExact) == "");
}

TEST_CASE("ref: rope by a quarter turn, both conventions; the rest is copied; inverse undoes it") {
  GuardedTensor cos_sin(kF32, {2, 2, 2});
  for (int64_t i = 0; i < 2; ++i) cos_sin.set(2 * i, 1), cos_sin.set(2 * i + 1, 0);      // position 0: no turn
  for (int64_t i = 2; i < 4; ++i) cos_sin.set(2 * i, 0), cos_sin.set(2 * i + 1, 1);      // position 1: a quarter
  const GuardedTensor x = matrix({2, 1, 5}, {1, 2, 3, 4, 5, 1, 2, 3, 4, 5});
  for (const bool interleaved : {false, true}) {
    GuardedTensor out(kF32, {2, 1, 5});
    run_ref(rope, {x, ints({0, 1}), cos_sin, out, interleaved, false});
    const GuardedTensor halves = matrix({2, 1, 5}, {1, 2, 3, 4, 5, -3, -4, 1, 2, 5});
    const GuardedTensor pairs = matrix({2, 1, 5}, {1, 2, 3, 4, 5, -2, 1, -4, 3, 5});
    CHECK(difference(out, interleaved ? pairs : halves, kExact) == "");
    run_ref(rope, {out, ints({0, 1}), cos_sin, out, interleaved, true});
    CHECK(difference(out, x, kExact) == "");
  }
}

TEST_CASE("ref: attention with equal scores is the mean of the visible values") {
  GuardedTensor q(kF32, {4, 2, 1}), k = random_tensor(kF32, {4, 1, 1}, 1), v = matrix({4, 1, 1}, {1, 3, 8, 4});
  q.fill(0);
  GuardedTensor out(kF32, {4, 2, 1}), lse(kF32, {4, 2});
  const GuardedTensor begin = ints({0, 4}), zero = ints({0}), four = ints({4});
  run_ref(attention, {q, k, v, out, lse, begin, zero, four, zero, zero, 1.0f, 0.0f, 0});
  CHECK(difference(out, matrix({4, 2, 1}, {1, 1, 2, 2, 4, 4, 4, 4}), kRounded) == "");
  for (int64_t i = 0; i < 8; ++i) CHECK(lse.at(i) == doctest::Approx(std::log(double(i / 2 + 1))).epsilon(1e-6));
  run_ref(attention, {q, k, v, out, lse, begin, zero, four, zero, zero, 1.0f, 0.0f, 2});
  CHECK(difference(out, matrix({4, 2, 1}, {1, 1, 2, 2, 5.5, 5.5, 6, 6}), kRounded) == "");
  const GuardedTensor later = ints({5});  // keys at positions 5..8, queries at 3..6: two queries see nothing
  run_ref(attention, {q, k, v, out, lse, begin, zero, four, ints({3}), later, 1.0f, 0.0f, 0});
  CHECK(difference(out, matrix({4, 2, 1}, {0, 0, 0, 0, 1, 1, 2, 2}), kRounded) == "");
  CHECK(lse.at(0) == -std::numeric_limits<double>::infinity());
}

TEST_CASE("ref: gelu, swiglu at known points") {
  GuardedTensor x = f32({0, 1, -1, 10, -10}), out(kF32, {5});
  run_ref(gelu, {x, out, Activation::gelu_erf});
  CHECK(difference(out, f32({0, 0.8413447460685429, -0.15865525393145707, 10, -7.6198530241605e-23}), kRounded) == "");
  run_ref(gelu, {x, out, Activation::gelu_tanh});
  CHECK(difference(out, f32({0, 0.8411919906082768, -0.15880800939172324, 10, 0}), {1e-15, 1e-6}) == "");
  GuardedTensor gate = matrix({1, 4}, {0, 1, 7, 3}), swish(kF32, {1, 2});
  run_ref(swiglu, {gate, swish});
  CHECK(difference(swish, matrix({1, 2}, {0, 3 / (1 + std::exp(-1.0))}), kRounded) == "");
}

TEST_CASE("ref: add and cast; cast rounds to nearest even and keeps NaN") {
  GuardedTensor a = f32({1, 2}), b = f32({10, -2});
  run_ref(add, {a, b, a});
  CHECK(difference(a, f32({11, 0}), kExact) == "");
  // 1 + 2^-8 is half way between bf16 1 and 1 + 2^-7: to even, down; 1 + 3 * 2^-8 is half way: to even, up.
  GuardedTensor x = f32({1 + 0x1p-8, 1 + 3 * 0x1p-8, 1 + 0x1p-8 + 0x1p-20, -INFINITY, NAN, 3.4e38}), y(kBf16, {6});
  run_ref(cast, {x, y});
  const GuardedTensor want = tensor_of<double>(kBf16, {1, 1 + 0x1p-6, 1 + 0x1p-7, -INFINITY, NAN, INFINITY});
  CHECK(difference(y, want, kExact) == "");
}

TEST_CASE("ref: cross_entropy of equal logits is log(vocab); padding takes no part; large logits do not overflow") {
  GuardedTensor logits = matrix({3, 4}, {1000, 1000, 1000, 5e4, 0, 0, 0, 0, -80, 0, 0, 1}), losses(kF32, {3});
  GuardedTensor d(kF32, {3, 4});
  run_ref(cross_entropy, {logits, ints({1, -1, 0}), losses, d, 3, 0.5f});
  CHECK(difference(losses, f32({std::log(3.0), 0, 80 + std::log(2 + std::exp(-80.0))}), kRounded) == "");
  const GuardedTensor want = matrix({3, 4}, {1 / 6., -1 / 3., 1 / 6., 0, 0, 0, 0, 0, -0.5, 0.25, 0.25, 0});
  CHECK(difference(d, want, kRounded) == "");
}

TEST_CASE("ref: block sums, clip scale and the finite flag") {
  GuardedTensor x(kF32, {kSquareSumBlock + 1}), sums(DType::f64, {2}), control(kF32, {4});
  x.fill(0);
  x.set(0, 3), x.set(kSquareSumBlock, 4);
  run_ref(square_sums, {x, sums});
  run_ref(clip_scale, {sums, control, 1.0f});
  CHECK(difference(control, f32({5, 0.2, 1, -1}), kRounded) == "");
  run_ref(clip_scale, {sums, control, 6.0f});
  CHECK(difference(control, f32({5, 1, 1, -1}), kExact) == "");
  run_ref(clip_scale, {sums, control, 0.0f});
  CHECK(difference(control, f32({5, 1, 1, -1}), kExact) == "");
  x.set(kSquareSumBlock, INFINITY);
  run_ref(square_sums, {x, sums});
  run_ref(clip_scale, {sums, control, 1.0f});
  CHECK(control.at(2) == 0);
  CHECK(control.at(3) == 1);
}

TEST_CASE("ref: the first step of adamw moves by lr against the sign, plus decay; nothing moves when the flag is 0") {
  GuardedTensor p = f32({1, 1, -2}), m = f32({0, 0, 0}), v = f32({0, 0, 0}), grad = f32({0.5, -3, 4}), half(kBf16, {3});
  GuardedTensor control = f32({0, 2, 1, -1});
  const AdamwArgs args = {p, m, v, grad, half, control, 0.125f, 0.5f, 0.75f, 1e-30f, 0.5f, 1};
  run_ref(adamw, args);
  CHECK(difference(p, f32({1 - 0.125 * 1.5, 1 - 0.125 * -0.5, -2 - 0.125 * 0}), kRounded) == "");
  CHECK(difference(m, f32({0.5, -3, 4}), kRounded) == "");  // half of the doubled gradient
  CHECK(difference(v, f32({0.25, 9, 16}), kRounded) == "");
  CHECK(difference(half, p, {0, 0x1p-9}) == "");
  GuardedTensor before = p;
  AdamwArgs off = args;
  GuardedTensor flag = f32({0, 2, 0, 0});
  off.control = flag;
  run_ref(adamw, off);
  CHECK(difference_bits(p, before) == "");
}

struct Draws {
  double temperature = 1, top_p = 1;
  int top_k = 0;
};
// How often each of the vocabulary {5, 6} = {ln 1, ln 2, ln 3, ln 2} and one padded column is drawn in `count`
// positions.
std::vector<int> draw(const Draws& rule, int count) {
  GuardedTensor logits(kF32, {count, 5}), temperature(kF32, {count}), top_p(kF32, {count}), top_k(kI32, {count});
  GuardedTensor key(DType::i64, {count}), position(DType::i64, {count}), ids(kI32, {count});
  for (int64_t i = 0; i < count; ++i) {
    const double row[] = {std::log(1.0), std::log(2.0), std::log(3.0), std::log(2.0), 99};
    for (int64_t v = 0; v < 5; ++v) logits.set(i * 5 + v, row[v]);
    position.set(i, double(i));
  }
  temperature.fill(rule.temperature), top_p.fill(rule.top_p), top_k.fill(rule.top_k), key.fill(7);
  run_ref(sample, {logits, temperature, top_k, top_p, key, position, ids, 4});
  std::vector<int> counts(5);
  for (int64_t i = 0; i < count; ++i) ++counts[size_t(ids.at(i))];
  return counts;
}

TEST_CASE("ref: sample draws in proportion, cuts as told, and never a padded column") {
  // Shares 1, 2, 3, 2 of 8; four standard deviations of a count of 8000 draws are 180 at most.
  const auto near = [](const std::vector<int>& counts, std::vector<double> shares) {
    for (size_t i = 0; i < shares.size(); ++i) CHECK(std::abs(counts[i] - 8000 * shares[i]) <= 180);
    for (size_t i = 0; i < shares.size(); ++i) CHECK((shares[i] > 0) == (counts[i] > 0));
    CHECK(counts[4] == 0);
  };
  near(draw({}, 8000), {1 / 8., 2 / 8., 3 / 8., 2 / 8.});
  near(draw({.temperature = 0.5}, 8000), {1 / 18., 4 / 18., 9 / 18., 4 / 18.});
  near(draw({.top_k = 2}, 8000), {0, 2 / 5., 3 / 5., 0});                // the tie goes to the lower id
  near(draw({.top_p = 0.6}, 8000), {0, 2 / 5., 3 / 5., 0});              // 3/8 < 0.6 <= 5/8
  near(draw({.top_p = 0.63}, 8000), {0, 2 / 7., 3 / 7., 2 / 7.});        // 5/8 < 0.63 <= 7/8
  near(draw({.top_p = 0.55, .top_k = 3}, 8000), {0, 2 / 5., 3 / 5., 0});  // of the three: 3/7 < 0.55 <= 5/7
  near(draw({.top_p = 0.01}, 8000), {0, 0, 1, 0});
  near(draw({.temperature = 0}, 8000), {0, 0, 1, 0});
}

TEST_CASE("ref: sample names the row whose logits or rules cannot be used") {
  const auto error = [](double logit, double temperature, int top_k, double top_p) {
    auto device = open_device({.reference = true});  // its own: the failure sticks
    GuardedTensor logits = matrix({2, 2}, {1, 2, logit, 0}), t = f32({1, temperature}), p = f32({1, top_p}),
                  ids(kI32, {2});
    GuardedTensor k = ints({0, top_k}), key = tensor_of<int>(DType::i64, {1, 1});
    return run_on(*device, sample, {logits, t, k, p, key, key, ids, 2});
  };
  CHECK(error(0, 1, 0, 1) == "");
  CHECK(error(INFINITY, 0, 0, 1) == "");  // greedy may take it
  for (const std::string& text : {error(NAN, 1, 0, 1), error(INFINITY, 1, 0, 1), error(0, -1, 0, 1),
                                  error(0, NAN, 0, 1), error(0, 1, -1, 1), error(0, 1, 0, 1.5), error(0, 1, 0, NAN)})
    CHECK_MESSAGE(text.find("row 1: ") != std::string::npos, text);
}

TEST_CASE("ref: sum and kv_store") {
  GuardedTensor x = f32({1, 2, 0.5}), out(DType::f64, {1});
  out.set(0, 10);
  run_ref(sum, {x, out, true});
  CHECK(out.at(0) == 13.5);
  run_ref(sum, {x, out, false});
  CHECK(out.at(0) == 3.5);
  GuardedTensor k = matrix({2, 1, 1}, {1, 2}), v = matrix({2, 1, 1}, {3, 4}), k_cache(kF32, {4, 1, 1}),
                v_cache(kF32, {4, 1, 1});
  k_cache.fill(0), v_cache.fill(0);
  run_ref(kv_store, {k, v, ints({3, 1}), k_cache, v_cache});
  CHECK(difference(k_cache, matrix({4, 1, 1}, {0, 2, 0, 1}), kExact) == "");
  CHECK(difference(v_cache, matrix({4, 1, 1}, {0, 4, 0, 3}), kExact) == "");
}

TEST_CASE("ref: kv_store turns k on its way and q in place") {
  GuardedTensor k = matrix({2, 1, 3}, {1, 2, 3, 4, 5, 6}), v = matrix({2, 1, 3}, {1, 2, 3, 4, 5, 6}),
                q = matrix({2, 2, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}), k_cache(kF32, {3, 1, 3}),
                v_cache(kF32, {3, 1, 3}), turns = matrix({2, 1, 2}, {1, 0, 0, 1});  // by 0 and a quarter
  k_cache.fill(0), v_cache.fill(0);
  run_ref(kv_store, {k, v, ints({2, 0}), k_cache, v_cache, q, ints({1, 0}), turns, false});
  CHECK(difference(k_cache, matrix({3, 1, 3}, {4, 5, 6, 0, 0, 0, -2, 1, 3}), kExact) == "");
  CHECK(difference(v_cache, matrix({3, 1, 3}, {4, 5, 6, 0, 0, 0, 1, 2, 3}), kExact) == "");
  CHECK(difference(q, matrix({2, 2, 3}, {-2, 1, 3, -5, 4, 6, 7, 8, 9, 10, 11, 12}), kExact) == "");
}

}  // namespace
}  // namespace llmops::test
