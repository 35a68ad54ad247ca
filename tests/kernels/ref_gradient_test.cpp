// The oracle's own proof: every backward op of the ref table against central differences of its forward op. The table
// is called below its contracts with f64 tensors, so nothing is rounded to f32 in between: with a step of 1e-5 the
// truncation error is about 1e-10 of a third derivative near 1 and the rounding error about 1e-11; the bound is 1e-7.
#include <functional>

#include "kernels/tables.h"
#include "support/kernel_case.h"

namespace llmops::test {
namespace {

constexpr DType kF64 = DType::f64;
constexpr double kStep = 1e-5;
constexpr Bound kBound = {1e-7, 1e-7};

template <class Args>
void run(Op<Args> OpTable::*op, const Args& args) {
  const Status status = (op_table_ref().*op).run(reference_device().compute(), args);
  REQUIRE_MESSAGE(status.ok(), status.message());
}

GuardedTensor random(const Dimensions& dims, uint64_t seed, double shift = 0) {
  return random_tensor(kF64, dims, seed, {}, 1, shift);
}
GuardedTensor empty_like(const GuardedTensor& x) {
  const TensorView& view = x.view();
  return GuardedTensor(kF64, Dimensions(view.dim.v, view.dim.v + view.rank));
}

double dot(const GuardedTensor& a, const GuardedTensor& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.elems(); ++i) sum += a.at(i) * b.at(i);
  return sum;
}

// "" when `gradient` is d loss() / d x.
std::string gradient_error(GuardedTensor& x, const GuardedTensor& gradient, const std::function<double()>& loss) {
  GuardedTensor numeric = empty_like(x);
  for (int64_t i = 0; i < x.elems(); ++i) {
    const double at = x.at(i);
    x.set(i, at + kStep);
    const double above = loss();
    x.set(i, at - kStep);
    numeric.set(i, (above - loss()) / (2 * kStep));
    x.set(i, at);
  }
  loss();
  return difference(gradient, numeric, kBound);
}

TEST_CASE("gradient check: a wrong gradient is found") {
  GuardedTensor x = random({5}, 1), right = empty_like(x), wrong = empty_like(x);
  for (int64_t i = 0; i < 5; ++i) right.set(i, 2 * x.at(i)), wrong.set(i, 2 * x.at(i) + (i == 3 ? 1e-6 : 0));
  const auto loss = [&] { return dot(x, x); };
  CHECK(gradient_error(x, right, loss) == "");
  CHECK(gradient_error(x, wrong, loss).find("at [3]") == 0);
}

TEST_CASE("gradient check: embedding") {
  GuardedTensor ids = tensor_of<int>(DType::i32, {2, 0, 2, 4}), positions = tensor_of<int>(DType::i32, {0, 1, 2, 0});
  GuardedTensor table = random({5, 3}, 1), pos = random({3, 3}, 2), out = random({4, 3}, 3), dout = random({4, 3}, 4);
  GuardedTensor dtable(kF64, {5, 3}), dpos = random({3, 3}, 5), before = dpos;
  run(&OpTable::embedding_backward, {ids, positions, dout, dtable, dpos, false, true});
  for (int64_t i = 0; i < dpos.elems(); ++i) dpos.set(i, dpos.at(i) - before.at(i));  // what was accumulated
  const auto loss = [&] { return run(&OpTable::embedding, {ids, positions, table, pos, out}), dot(out, dout); };
  CHECK(gradient_error(table, dtable, loss) == "");
  CHECK(gradient_error(pos, dpos, loss) == "");
}

TEST_CASE("gradient check: layer_norm, with the residual's gradient") {
  GuardedTensor x = random({3, 7}, 1, 0.5), weight = random({7}, 2, 1), bias = random({7}, 3);
  GuardedTensor out = random({3, 7}, 4), mean(kF64, {3}), rstd(kF64, {3}), dout = random({3, 7}, 5),
                dres = random({3, 7}, 6);
  GuardedTensor dx(kF64, {3, 7}), dweight(kF64, {7}), dbias(kF64, {7});
  const LayerNormArgs forward = {x, {}, weight, bias, {}, out, mean, rstd, 1e-3f};
  const auto loss = [&] { return run(&OpTable::layer_norm, forward), dot(out, dout) + dot(x, dres); };
  loss();
  run(&OpTable::layer_norm_backward, {dout, x, weight, mean, rstd, dres, dx, dweight, dbias, false});
  CHECK(gradient_error(x, dx, loss) == "");
  CHECK(gradient_error(weight, dweight, loss) == "");
  CHECK(gradient_error(bias, dbias, loss) == "");
}

TEST_CASE("gradient check: rms_norm of rows and of heads") {
  for (const Dimensions& dims : {Dimensions{4, 6}, Dimensions{2, 3, 6}}) {
    GuardedTensor x = random(dims, 1), weight = random({6}, 2, 1), out = random(dims, 3), dout = random(dims, 4);
    GuardedTensor rstd(kF64, Dimensions(dims.begin(), dims.end() - 1)), dx(kF64, dims), dres = random(dims, 5);
    GuardedTensor dweight(kF64, {6});
    const RmsNormArgs forward = {x, {}, weight, {}, out, rstd, 1e-3f};
    const auto loss = [&] { return run(&OpTable::rms_norm, forward), dot(out, dout) + dot(x, dres); };
    loss();
    run(&OpTable::rms_norm_backward, {dout, x, weight, rstd, dres, dx, dweight, false});
    CHECK(gradient_error(x, dx, loss) == "");
    CHECK(gradient_error(weight, dweight, loss) == "");
  }
}

// A linear layer with its activation: out = act(x w^T + bias). dgrad and wgrad are matmuls of the same op.
TEST_CASE("gradient check: matmul as a linear layer, its bias and its fused activation") {
  for (Activation act : {Activation::gelu_tanh, Activation::gelu_erf}) {
    GuardedTensor x = random({3, 4}, 1), w = random({5, 4}, 2), bias = random({5}, 3), dout = random({3, 5}, 4);
    GuardedTensor out = random({3, 5}, 5), aux(kF64, {3, 5}), dpre(kF64, {3, 5}), dx(kF64, {3, 4}),
                  dw = random({5, 4}, 6);
    MatmulArgs forward = {};
    forward.a = x, forward.b.data = w, forward.b_trans = true, forward.out = out, forward.bias = bias;
    forward.aux = aux, forward.act = act;
    const auto loss = [&] { return run(&OpTable::matmul, forward), dot(out, dout); };
    loss();
    run(&OpTable::gelu_backward, {aux, dout, dpre, act});
    MatmulArgs dgrad = {};
    dgrad.a = dpre, dgrad.b.data = w, dgrad.out = dx;
    run(&OpTable::matmul, dgrad);
    MatmulArgs wgrad = {};
    wgrad.a = dpre, wgrad.a_trans = true, wgrad.b.data = x, wgrad.out = dw, wgrad.accumulate = true;
    dw.fill(0);
    run(&OpTable::matmul, wgrad);
    GuardedTensor dbias(kF64, {5});
    run(&OpTable::bias_backward, {dpre, dbias, false});
    CHECK(gradient_error(x, dx, loss) == "");
    CHECK(gradient_error(w, dw, loss) == "");
    CHECK(gradient_error(bias, dbias, loss) == "");
  }
}

TEST_CASE("gradient check: act_backward is the activation's slope at the saved input") {
  for (Activation act : {Activation::gelu_tanh, Activation::gelu_erf}) {
    // out = act(pre), loss = sum of (out w^T) * dout: d loss / d pre = (dout w) * act'(pre).
    GuardedTensor pre = random({3, 4}, 1), w = random({5, 4}, 2), dout = random({3, 5}, 3), dpre(kF64, {3, 4});
    GuardedTensor out(kF64, {3, 4}), product(kF64, {3, 5});
    MatmulArgs forward = {};
    forward.a = out, forward.b.data = w, forward.b_trans = true, forward.out = product;
    const auto loss = [&] {
      run(&OpTable::gelu, {pre, out, act});
      run(&OpTable::matmul, forward);
      return dot(product, dout);
    };
    MatmulArgs backward = {};
    backward.a = dout, backward.b.data = w, backward.out = dpre, backward.act = act, backward.act_backward = pre;
    run(&OpTable::matmul, backward);
    CHECK(gradient_error(pre, dpre, loss) == "");
  }
}

TEST_CASE("gradient check: gelu and swiglu") {
  for (Activation act : {Activation::gelu_tanh, Activation::gelu_erf}) {
    GuardedTensor x = random_tensor(kF64, {40}, 1, {}, 4), out(kF64, {40}), dout = random({40}, 2), dx(kF64, {40});
    run(&OpTable::gelu_backward, {x, dout, dx, act});
    CHECK(gradient_error(x, dx, [&] { return run(&OpTable::gelu, {x, out, act}), dot(out, dout); }) == "");
  }
  GuardedTensor x = random_tensor(kF64, {3, 10}, 1, {}, 4), out(kF64, {3, 5}), dout = random({3, 5}, 2),
                dx(kF64, {3, 10});
  run(&OpTable::swiglu_backward, {x, dout, dx});
  CHECK(gradient_error(x, dx, [&] { return run(&OpTable::swiglu, {x, out}), dot(out, dout); }) == "");
}

TEST_CASE("gradient check: rope, whose backward is the inverse rotation") {
  GuardedTensor positions = tensor_of<int>(DType::i32, {0, 2, 1}), cos_sin(kF64, {3, 2, 2});
  for (int64_t i = 0; i < 6; ++i)
    cos_sin.set(2 * i, std::cos(0.7 * double(i))), cos_sin.set(2 * i + 1, std::sin(0.7 * double(i)));
  for (const bool interleaved : {false, true}) {
    GuardedTensor x = random({3, 2, 6}, 1), out(kF64, {3, 2, 6}), dout = random({3, 2, 6}, 2), dx(kF64, {3, 2, 6});
    run(&OpTable::rope, {dout, positions, cos_sin, dx, interleaved, true});
    const auto loss = [&] {
      return run(&OpTable::rope, {x, positions, cos_sin, out, interleaved, false}), dot(out, dout);
    };
    CHECK(gradient_error(x, dx, loss) == "");
  }
}

TEST_CASE("gradient check: attention, ragged, grouped, windowed, capped") {
  // Three sequences: a prefill, a chunk that continues a cache, and queries of which the first two see nothing.
  GuardedTensor q_begin = tensor_of<int>(DType::i32, {0, 3, 5, 8}), kv_begin = tensor_of<int>(DType::i32, {0, 3, 8});
  GuardedTensor kv_len = tensor_of<int>(DType::i32, {3, 5, 2}), q_pos0 = tensor_of<int>(DType::i32, {0, 3, 10});
  GuardedTensor kv_pos0 = tensor_of<int>(DType::i32, {0, 0, 12});
  for (const int32_t window : {0, 2})
    for (const float softcap : {0.0f, 1.5f}) {
      GuardedTensor q = random({8, 4, 3}, 1), k = random({10, 2, 3}, 2), v = random({10, 2, 3}, 3),
                    dout = random({8, 4, 3}, 4);
      GuardedTensor out(kF64, {8, 4, 3}), lse(kF64, {8, 4}), dq(kF64, {8, 4, 3}), dk(kF64, {10, 2, 3}),
          dv(kF64, {10, 2, 3});
      const AttentionArgs forward = {q,       k,      v,      out,     lse,  q_begin, kv_begin,
                                     kv_len,  q_pos0, kv_pos0, 0.6f,   softcap, window};
      const auto loss = [&] { return run(&OpTable::attention, forward), dot(out, dout); };
      loss();
      CHECK(out.at(5 * 12) == 0);  // the first query of the third sequence
      CHECK(lse.at(5 * 4) == -std::numeric_limits<double>::infinity());
      run(&OpTable::attention_backward,
          {q, k, v, out, dout, lse, q_begin, kv_begin, kv_len, q_pos0, kv_pos0, dq, dk, dv, 0.6f, softcap, window});
      CHECK(gradient_error(q, dq, loss) == "");
      CHECK(gradient_error(k, dk, loss) == "");
      CHECK(gradient_error(v, dv, loss) == "");
    }
}

TEST_CASE("gradient check: cross_entropy with padding and an ignored row") {
  GuardedTensor logits = random_tensor(kF64, {4, 7}, 1, {}, 3), targets = tensor_of<int>(DType::i32, {4, -1, 0, 2});
  GuardedTensor losses(kF64, {4}), dlogits(kF64, {4, 7});
  const float scale = 0.25f;
  run(&OpTable::cross_entropy, {logits, targets, losses, dlogits, 5, scale});
  const auto loss = [&] {
    run(&OpTable::cross_entropy, {logits, targets, losses, {}, 5, scale});
    return double(scale) * (losses.at(0) + losses.at(1) + losses.at(2) + losses.at(3));
  };
  CHECK(gradient_error(logits, dlogits, loss) == "");
  CHECK(dlogits.at(5) == 0);
  CHECK(dlogits.at(7) == 0);
  CHECK(losses.at(1) == 0);
}

}  // namespace
}  // namespace llmops::test
