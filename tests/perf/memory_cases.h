// The memory-bound ops at the sizes of GPT-2 124M, with the bytes that each must move: for perf_memory (the CPU) and
// perf_cuda.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "kernels/ops.h"

namespace llmops::perf {

inline constexpr int64_t kTokens = 256, kModel = 768, kFfn = 3072, kVocab = 50257, kVocabPadded = 50304;

inline void check(const Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "perf: %s: %s\n", what, status.message().c_str());
  std::exit(exit_code(status.code()));
}

// The tensors of one call, filled by name of role: values in [-1, 1), ids below a limit, or positive values.
class Tensors {
 public:
  explicit Tensors(Device& device) : device_(device) {}
  TensorView values(DType dtype, std::initializer_list<int64_t> dims, float scale = 1, float shift = 0) {
    return filled(dtype, dims, [=](void* data, int64_t i) {
      const float x = shift + scale * pattern(i);
      if (dtype == DType::f32) static_cast<float*>(data)[i] = x;
      else if (dtype == DType::bf16) static_cast<bf16*>(data)[i] = to_bf16(x);
      else static_cast<double*>(data)[i] = x;
    });
  }
  TensorView ids(int64_t count, int64_t limit) {
    return filled(DType::i32, {count},
                  [=](void* data, int64_t i) { static_cast<int32_t*>(data)[i] = int32_t(i * 7919 % limit); });
  }
  TensorView ints(const std::vector<int32_t>& x) {
    return filled(DType::i32, {int64_t(x.size())},
                  [&](void* data, int64_t i) { static_cast<int32_t*>(data)[i] = x[size_t(i)]; });
  }
  TensorView zeros(DType dtype, std::initializer_list<int64_t> dims) { return raw(dtype, dims); }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const Buffer& b : buffers_) sum += b.bytes();
    return sum;
  }

 private:
  // By way of the host, which may not touch a device's memory.
  template <class Set>
  TensorView filled(DType dtype, std::initializer_list<int64_t> dims, Set set) {
    const TensorView t = raw(dtype, dims);
    std::vector<char> host(size_t(buffers_.back().bytes()));
    for (int64_t i = 0; i < t.elems(); ++i) set(host.data(), i);
    device_.compute().copy(t.data, host.data(), int64_t(host.size()));
    check(device_.compute().sync(), "copy");
    return t;
  }
  TensorView raw(DType dtype, std::initializer_list<int64_t> dims) {
    int64_t elems = 1;
    for (int64_t d : dims) elems *= d;
    auto buffer = device_.alloc(*bytes_of(dtype, elems), Category::transient);
    check(buffer.status(), "alloc");
    buffers_.push_back(buffer.take());
    return buffers_.back().view(dtype, dims);
  }
  // One period is prime, so that rows differ.
  static float pattern(int64_t i) {
    static const std::vector<float> period = [] {
      std::vector<float> p(10007);
      for (size_t k = 0; k < p.size(); ++k) p[k] = 2 * uniform_f32(philox4x32(1, k, 0).v[0]) - 1;
      return p;
    }();
    return period[size_t(i % 10007)];
  }
  Device& device_;
  std::vector<Buffer> buffers_;
};

struct Call {
  std::function<Status(Stream&)> run;
  std::vector<TensorView> outputs;
  int64_t bytes;  // moved by one run
};

inline int64_t bytes_of_all(std::initializer_list<ConstTensorView> tensors) {
  int64_t sum = 0;
  for (const ConstTensorView& t : tensors) sum += *bytes_of(t.dtype, t.elems());
  return sum;
}

template <class Args>
Call call(Status (*op)(Stream&, const Args&), const Args& args, std::vector<TensorView> outputs, int64_t bytes) {
  return {[op, args](Stream& s) { return op(s, args); }, std::move(outputs), bytes};
}

// `n` tokens, or n * kParams / kTokens parameters, of type t.
inline constexpr int64_t kParams = kVocab * kModel;  // the largest group of the model
struct Case {
  const char* name;
  Call (*make)(Tensors&, int64_t n, DType t);
  bool of_params = false;
};

inline const Case kCases[] = {
    {"embedding",
     [](Tensors& m, int64_t n, DType t) {
       const EmbeddingArgs a = {m.ids(n, kVocab), m.ids(n, 64), m.values(t, {kVocab, kModel}),
                                m.values(t, {64, kModel}), m.values(t, {n, kModel})};
       return call(embedding, a, {a.out}, 2 * bytes_of_all({a.out}));
     }},
    {"embedding_backward",
     [](Tensors& m, int64_t n, DType t) {
       const TensorView dtable = m.values(DType::f32, {kVocab, kModel}), dpos = m.values(DType::f32, {64, kModel});
       const EmbeddingBackwardArgs a = {
           m.ids(n, kVocab), m.ids(n, 64), m.values(t, {n, kModel}), dtable, dpos, true, true};
       // dout, and the rows it is added to; the positions' table stays in the cache.
       return call(embedding_backward, a, {dpos}, bytes_of_all({a.dout}) + 2 * n * kModel * 4);
     }},
    {"layer_norm",
     [](Tensors& m, int64_t n, DType t) {
       const LayerNormArgs a = {m.values(t, {n, kModel}),
                                {},
                                m.values(t, {kModel}),
                                m.values(t, {kModel}),
                                {},
                                m.values(t, {n, kModel}),
                                m.values(DType::f32, {n}),
                                m.values(DType::f32, {n}),
                                1e-5f};
       return call(layer_norm, a, {a.out}, bytes_of_all({a.x, a.out}));
     }},
    {"layer_norm + delta",
     [](Tensors& m, int64_t n, DType t) {
       const LayerNormArgs a = {m.values(t, {n, kModel}),  m.values(t, {n, kModel}, 0.5f), m.values(t, {kModel}),
                                m.values(t, {kModel}),     m.values(t, {n, kModel}),       m.values(t, {n, kModel}),
                                m.values(DType::f32, {n}), m.values(DType::f32, {n}),      1e-5f};
       return call(layer_norm, a, {a.out, a.sum}, bytes_of_all({a.x, a.delta, a.sum, a.out}));
     }},
    {"layer_norm_backward",
     [](Tensors& m, int64_t n, DType t) {
       const LayerNormBackwardArgs a = {m.values(t, {n, kModel}),
                                        m.values(t, {n, kModel}),
                                        m.values(t, {kModel}),
                                        m.values(DType::f32, {n}, 0.1f),
                                        m.values(DType::f32, {n}, 0.1f, 1),
                                        m.values(t, {n, kModel}),
                                        m.values(t, {n, kModel}),
                                        m.values(DType::f32, {kModel}),
                                        m.values(DType::f32, {kModel}),
                                        false};
       return call(layer_norm_backward, a, {a.dx, a.dweight, a.dbias}, bytes_of_all({a.dout, a.x, a.dresidual, a.dx}));
     }},
    {"rms_norm",
     [](Tensors& m, int64_t n, DType t) {
       const RmsNormArgs a = {m.values(t, {n, kModel}),  {},   m.values(t, {kModel}), {}, m.values(t, {n, kModel}),
                              m.values(DType::f32, {n}), 1e-5f};
       return call(rms_norm, a, {a.out}, bytes_of_all({a.x, a.out}));
     }},
    {"rms_norm per head",
     [](Tensors& m, int64_t n, DType t) {
       const RmsNormArgs a = {m.values(t, {n, 12, 64}),      {},   m.values(t, {64}), {}, m.values(t, {n, 12, 64}),
                              m.values(DType::f32, {n, 12}), 1e-5f};
       return call(rms_norm, a, {a.out}, bytes_of_all({a.x, a.out}));
     }},
    {"rms_norm_backward",
     [](Tensors& m, int64_t n, DType t) {
       const RmsNormBackwardArgs a = {m.values(t, {n, kModel}),       m.values(t, {n, kModel}),
                                      m.values(t, {kModel}),          m.values(DType::f32, {n}, 0.1f, 1),
                                      m.values(t, {n, kModel}),       m.values(t, {n, kModel}),
                                      m.values(DType::f32, {kModel}), false};
       return call(rms_norm_backward, a, {a.dx, a.dweight}, bytes_of_all({a.dout, a.x, a.dresidual, a.dx}));
     }},
    {"bias_backward",
     [](Tensors& m, int64_t n, DType t) {
       const BiasBackwardArgs a = {m.values(t, {n, kFfn}), m.values(DType::f32, {kFfn}), false};
       return call(bias_backward, a, {a.dbias}, bytes_of_all({a.dout, a.dbias}));
     }},
    {"swiglu",
     [](Tensors& m, int64_t n, DType t) {
       const SwigluArgs a = {m.values(t, {n, 2 * kFfn}, 4), m.values(t, {n, kFfn})};
       return call(swiglu, a, {a.out}, bytes_of_all({a.x, a.out}));
     }},
    {"swiglu_backward",
     [](Tensors& m, int64_t n, DType t) {
       const SwigluBackwardArgs a = {m.values(t, {n, 2 * kFfn}, 4), m.values(t, {n, kFfn}), m.values(t, {n, 2 * kFfn})};
       return call(swiglu_backward, a, {a.dx}, bytes_of_all({a.x, a.dout, a.dx}));
     }},
    {"gelu tanh",
     [](Tensors& m, int64_t n, DType t) {
       const GeluArgs a = {m.values(t, {n, kFfn}, 4), m.values(t, {n, kFfn}), Activation::gelu_tanh};
       return call(gelu, a, {a.out}, bytes_of_all({a.x, a.out}));
     }},
    {"gelu erf",
     [](Tensors& m, int64_t n, DType t) {
       const GeluArgs a = {m.values(t, {n, kFfn}, 4), m.values(t, {n, kFfn}), Activation::gelu_erf};
       return call(gelu, a, {a.out}, bytes_of_all({a.x, a.out}));
     }},
    {"gelu_backward tanh",
     [](Tensors& m, int64_t n, DType t) {
       const GeluBackwardArgs a = {m.values(t, {n, kFfn}, 4), m.values(t, {n, kFfn}), m.values(t, {n, kFfn}),
                                   Activation::gelu_tanh};
       return call(gelu_backward, a, {a.dx}, bytes_of_all({a.x, a.dout, a.dx}));
     }},
    {"add",
     [](Tensors& m, int64_t n, DType t) {
       const AddArgs a = {m.values(t, {n, kModel}), m.values(t, {n, kModel}), m.values(t, {n, kModel})};
       return call(add, a, {a.out}, bytes_of_all({a.a, a.b, a.out}));
     }},
    {"cast to bf16",
     [](Tensors& m, int64_t n, DType) {
       const int64_t count = n * (kParams / kTokens);
       const CastArgs a = {m.values(DType::f32, {count}), m.values(DType::bf16, {count})};
       return call(cast, a, {a.out}, bytes_of_all({a.x, a.out}));
     }, true},
    {"cross_entropy",
     [](Tensors& m, int64_t n, DType t) {
       const TensorView logits = m.values(t, {n, kVocabPadded}, 8);
       const CrossEntropyArgs a = {logits, m.ids(n, kVocab), m.values(DType::f32, {n}), m.values(t, {n, kVocabPadded}),
                                   kVocab, 1.0f / kTokens};
       return call(cross_entropy, a, {a.losses, a.dlogits}, bytes_of_all({a.logits, a.dlogits}));
     }},
    {"square_sums",
     [](Tensors& m, int64_t n, DType) {
       const int64_t count = n * (kParams / kTokens), blocks = (count + kSquareSumBlock - 1) / kSquareSumBlock;
       const SquareSumsArgs a = {m.values(DType::f32, {count}), m.values(DType::f64, {blocks})};
       return call(square_sums, a, {a.sums}, bytes_of_all({a.x}));
     }, true},
    {"adamw",
     [](Tensors& m, int64_t n, DType) {
       const int64_t count = n * (kParams / kTokens);
       AdamwArgs a = {m.values(DType::f32, {count}),
                      m.values(DType::f32, {count}, 0.1f),
                      m.values(DType::f32, {count}, 0.4f, 0.5f),
                      m.values(DType::f32, {count}),
                      {},
                      m.values(DType::f32, {4}, 0, 1),
                      1e-4f,
                      0.9f,
                      0.95f,
                      1e-8f,
                      0.1f,
                      10};
       return call(adamw, a, {a.param, a.m, a.v}, bytes_of_all({a.param, a.m, a.v}) * 2 + bytes_of_all({a.grad}));
     }, true},
};

inline std::vector<double> values_of(Device& device, const ConstTensorView& t) {
  std::vector<char> host(size_t(*bytes_of(t.dtype, t.elems())));
  device.compute().copy(host.data(), t.data, int64_t(host.size()));
  check(device.compute().sync(), "copy");
  std::vector<double> values(size_t(t.elems()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = t.dtype == DType::f32   ? reinterpret_cast<const float*>(host.data())[i]
                : t.dtype == DType::f64 ? reinterpret_cast<const double*>(host.data())[i]
                                        : to_f32(reinterpret_cast<const bf16*>(host.data())[i]);
  return values;
}

// Ends the run when an element of `got` is further from `want` than `allowed` times the largest of those.
inline void check_close(const std::vector<double>& got, const std::vector<double>& want, double allowed,
                        const char* what) {
  double largest = 0, off = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(want[i]));
    off = std::isnan(got[i] - want[i]) ? 1e30 : std::max(off, std::abs(got[i] - want[i]));
  }
  if (off <= allowed * largest) return;
  std::fprintf(stderr, "perf: %s: off by %g of %g from the ref table\n", what, off, largest);
  std::exit(1);
}

// The op on 3 rows against the ref table.
inline void verify(const Case& c, Device& device, Device& reference, DType t) {
  Tensors ours(device), theirs(reference);
  const Call got = c.make(ours, 3, t), want = c.make(theirs, 3, t);
  check(got.run(device.compute()), c.name), check(device.compute().sync(), c.name);
  check(want.run(reference.compute()), c.name), check(reference.compute().sync(), c.name);
  for (size_t o = 0; o < got.outputs.size(); ++o)
    check_close(values_of(device, got.outputs[o]), values_of(reference, want.outputs[o]),
                t == DType::bf16 ? 1e-2 : 1e-5, c.name);
}

}  // namespace llmops::perf
