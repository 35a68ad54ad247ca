// GB/s of the memory-bound ops at the sizes of GPT-2 124M with 256 tokens, beside the copy rate of the same threads in
// the same run. A benchmark, not a test: each op is first compared with the ref table on a few rows, and buffers rotate
// past the cache. Bytes are what the op must read and write once; a copy's are its source and its destination.
//   perf_memory [--threads N] [--seconds S per op] [--only TEXT] [--bf16]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/pool.h"
#include "base/rng.h"
#include "base/run.h"
#include "kernels/ops.h"

using namespace llmops;

namespace {

constexpr int64_t kTokens = 256, kModel = 768, kFfn = 3072, kVocab = 50257, kVocabPadded = 50304;
constexpr int64_t kRotateBytes = int64_t{128} << 20;  // four times this machine's last-level cache

void check(const Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "perf_memory: %s: %s\n", what, status.message().c_str());
  std::exit(exit_code(status.code()));
}

// The tensors of one call, filled by name of role: values in [-1, 1), ids below a limit, or positive values.
class Tensors {
 public:
  explicit Tensors(Device& device) : device_(device) {}
  TensorView values(DType dtype, std::initializer_list<int64_t> dims, float scale = 1, float shift = 0) {
    TensorView t = raw(dtype, dims);
    for (int64_t i = 0; i < t.elems(); ++i) {
      const float x = shift + scale * pattern(i);
      if (dtype == DType::f32) static_cast<float*>(t.data)[i] = x;
      else if (dtype == DType::bf16) static_cast<bf16*>(t.data)[i] = to_bf16(x);
      else static_cast<double*>(t.data)[i] = x;
    }
    return t;
  }
  TensorView ids(int64_t count, int64_t limit) {
    TensorView t = raw(DType::i32, {count});
    for (int64_t i = 0; i < count; ++i) static_cast<int32_t*>(t.data)[i] = int32_t(i * 7919 % limit);
    return t;
  }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const Buffer& b : buffers_) sum += b.bytes();
    return sum;
  }

 private:
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

int64_t bytes_of_all(std::initializer_list<ConstTensorView> tensors) {
  int64_t sum = 0;
  for (const ConstTensorView& t : tensors) sum += *bytes_of(t.dtype, t.elems());
  return sum;
}

template <class Args>
Call call(Status (*op)(Stream&, const Args&), const Args& args, std::vector<TensorView> outputs, int64_t bytes) {
  return {[op, args](Stream& s) { return op(s, args); }, std::move(outputs), bytes};
}

// `n` tokens, or n * kParams / kTokens parameters, of type t.
constexpr int64_t kParams = kVocab * kModel;  // the largest group of the model
struct Case {
  const char* name;
  Call (*make)(Tensors&, int64_t n, DType t);
};

const Case kCases[] = {
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
     }},
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
     }},
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
     }},
};

double element(const TensorView& t, int64_t i) {
  if (t.dtype == DType::f32) return static_cast<const float*>(t.data)[i];
  if (t.dtype == DType::f64) return static_cast<const double*>(t.data)[i];
  return to_f32(static_cast<const bf16*>(t.data)[i]);
}

// The op on 3 rows against the ref table: the largest difference over the largest value of each output.
void verify(const Case& c, Device& device, Device& reference, DType t) {
  Tensors ours(device), theirs(reference);
  const Call got = c.make(ours, 3, t), want = c.make(theirs, 3, t);
  check(got.run(device.compute()), c.name), check(device.compute().sync(), c.name);
  check(want.run(reference.compute()), c.name), check(reference.compute().sync(), c.name);
  const double allowed = t == DType::bf16 ? 1e-2 : 1e-5;
  for (size_t o = 0; o < got.outputs.size(); ++o) {
    double largest = 0, off = 0;
    for (int64_t i = 0; i < got.outputs[o].elems(); ++i) {
      const double a = element(got.outputs[o], i), b = element(want.outputs[o], i);
      largest = std::max(largest, std::abs(b));
      off = std::isnan(a - b) ? 1e30 : std::max(off, std::abs(a - b));
    }
    if (off <= allowed * largest) continue;
    std::fprintf(stderr, "perf_memory: %s: output %zu is off by %g of %g from the ref table\n", c.name, o, off,
                 largest);
    std::exit(1);
  }
}

SampleStats time_of(double seconds, const std::function<void(size_t)>& run) {
  std::vector<double> samples;
  run(0);
  const double end = monotonic_s() + seconds;
  for (size_t i = 1; i < 5 || monotonic_s() < end; ++i) {
    const double start = monotonic_s();
    run(i);
    samples.push_back(monotonic_s() - start);
  }
  return statistics(samples);
}

double copy_gbps(Device& device, double seconds) {
  constexpr int64_t kPart = 256 << 10;
  std::vector<char> from(size_t(kRotateBytes), 1), to(size_t(kRotateBytes), 2);
  const SampleStats s = time_of(seconds, [&](size_t) {
    device.pool().parallel_for(kRotateBytes / kPart, [&](int64_t i, int) {
      std::memcpy(&to[size_t(i * kPart)], &from[size_t(i * kPart)], kPart);
    });
  });
  return 2e-9 * double(kRotateBytes) / s.min;
}

void measure(const Case& c, Device& device, DType t, double seconds, double copy) {
  std::vector<Tensors> sets;
  std::vector<Call> calls;
  for (int64_t used = 0; used < kRotateBytes; used += sets.back().bytes()) {
    sets.emplace_back(device);
    calls.push_back(c.make(sets.back(), kTokens, t));
  }
  const SampleStats s =
      time_of(seconds, [&](size_t i) { check(calls[i % calls.size()].run(device.compute()), c.name); });
  check(device.compute().sync(), c.name);
  const double gb = 1e-9 * double(calls[0].bytes);
  std::printf("%-20s %9.2f MB %9.1f us %7.2f GB/s (median %.2f)  %4.0f %% of copy%s\n", c.name, 1e3 * gb, 1e6 * s.min,
              gb / s.min, gb / s.median, 100 * gb / s.min / copy, s.spread > 0.05 ? "  unstable" : "");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  int threads = usable_cores();
  double seconds = 0.3;
  std::string only;
  DType dtype = DType::f32;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--bf16") dtype = DType::bf16;
    else if (flag == "--threads" && i + 1 < argc) threads = std::atoi(argv[++i]);
    else if (flag == "--seconds" && i + 1 < argc) seconds = std::atof(argv[++i]);
    else if (flag == "--only" && i + 1 < argc) only = argv[++i];
    else return std::fprintf(stderr, "usage: perf_memory [--threads N] [--seconds S] [--only TEXT] [--bf16]\n"), 2;
  }
  auto device = Device::open_cpu({.threads = threads});
  check(device.status(), "device");
  auto reference = Device::open_cpu({.reference = true});
  check(reference.status(), "reference");
  const double copy = copy_gbps(**device, seconds);
  std::printf("%s, %d threads, %s; best of the runs; copy %.2f GB/s\n", std::string(name_of((*device)->isa())).c_str(),
              threads, std::string(info(dtype).name).c_str(), copy);
  for (const Case& c : kCases) {
    if (std::string(c.name).find(only) == std::string::npos) continue;
    verify(c, **device, **reference, dtype);
    measure(c, **device, dtype, seconds, copy);
  }
  return 0;
}
