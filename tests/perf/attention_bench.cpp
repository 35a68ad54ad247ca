// perf_attention: time per call and GFLOP/s of attention, forward and backward, by shape. Each shape is verified
// against the reference first (on its first rows where it is long). FLOPs count visible pairs only: 4 e forward and 10
// e backward each. The best of many repetitions.
//   perf_attention [THREADS [PART_OF_NAME]]
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/run.h"
#include "kernels/ops.h"

namespace llmops {
namespace {

struct Shape {
  const char* name;
  int64_t batch, queries, keys, heads, kv_heads, e;  // queries are the last ones of each sequence
  DType dtype;
};

constexpr Shape kShapes[] = {
    {"char B12 T64", 12, 64, 64, 4, 4, 32, DType::f32},
    {"gpt2 B4 T64", 4, 64, 64, 12, 12, 64, DType::f32},
    {"gpt2 B4 T64 bf16", 4, 64, 64, 12, 12, 64, DType::bf16},
    {"gpt2 T1024", 1, 1024, 1024, 12, 12, 64, DType::f32},
    {"one head T1024", 1, 1024, 1024, 1, 1, 64, DType::f32},
    {"llama T1024 GQA 4", 1, 1024, 1024, 8, 2, 128, DType::f32},
    {"decode B8 over 1024", 8, 1, 1024, 12, 12, 64, DType::f32},
    {"decode GQA over 32768", 1, 1, 32768, 8, 2, 128, DType::f32},
    {"decode GQA over 32768 bf16", 1, 1, 32768, 8, 2, 128, DType::bf16},
};

void must(const Status& status) {
  if (status.ok()) return;
  fmt::print(stderr, "perf_attention: {}\n", status.message());
  std::exit(exit_code(status.code()));
}

class Case {
 public:
  Case(Device& device, const Shape& s, int64_t queries) : device_(device), s_(s), queries_(queries) {
    const int64_t rows = s.batch * queries, keys = s.batch * s.keys;
    q = tensor(s.dtype, {rows, s.heads, s.e}, 1);
    kv = tensor(s.dtype, {keys, 2 * s.kv_heads, s.e}, 2);
    dout = tensor(s.dtype, {rows, s.heads, s.e}, 3);
    out = tensor(s.dtype, {rows, s.heads, s.e}, 0);
    dq = tensor(s.dtype, {rows, s.heads, s.e}, 0);
    dkv = tensor(s.dtype, {keys, 2 * s.kv_heads, s.e}, 0);
    lse = tensor(DType::f32, {rows, s.heads, 1}, 0);
    lse.rank = 2;
    for (int64_t i = 0; i <= s.batch; ++i) q_begin.push_back(int32_t(i * queries));
    for (int64_t i = 0; i < s.batch; ++i) kv_begin.push_back(int32_t(i * s.keys));
    kv_len.assign(size_t(s.batch), int32_t(s.keys));
    q_pos.assign(size_t(s.batch), int32_t(s.keys - queries));
    kv_pos.assign(size_t(s.batch), 0);
  }

  AttentionArgs forward() const {
    return {q, half(kv, 0), half(kv, 1), out, lse, ints(q_begin), ints(kv_begin), ints(kv_len), ints(q_pos),
            ints(kv_pos), float(1 / std::sqrt(double(s_.e))), 0, 0};
  }
  AttentionBackwardArgs backward() const {
    return {q, half(kv, 0), half(kv, 1), out, dout, lse, ints(q_begin), ints(kv_begin), ints(kv_len), ints(q_pos),
            ints(kv_pos), dq, half(dkv, 0), half(dkv, 1), float(1 / std::sqrt(double(s_.e))), 0, 0};
  }
  double pairs() const {
    const double q = double(queries_), k = double(s_.keys);
    return double(s_.batch * s_.heads) * (q * (k - q) + q * (q + 1) / 2);
  }

  TensorView q, kv, dout, out, dq, dkv, lse;

 private:
  TensorView tensor(DType dtype, std::initializer_list<int64_t> dims, uint64_t seed) {
    int64_t elems = 1;
    for (int64_t d : dims) elems *= d;
    auto buffer = device_.alloc(elems * info(dtype).block_bytes, Category::transient);
    must(buffer.status());
    const TensorView view = buffer->view(dtype, dims);
    for (int64_t i = 0; seed != 0 && i < elems; ++i) {
      const float x = 2 * uniform_f32(philox4x32(seed, uint64_t(i), 0).v[0]) - 1;
      if (dtype == DType::f32) buffer->as<float>()[i] = x;
      else buffer->as<bf16>()[i] = to_bf16(x);
    }
    buffers_.push_back(buffer.take());
    return view;
  }
  TensorView half(const TensorView& x, int64_t which) const {
    TensorView view = x;
    view.dim[1] /= 2;
    view.data = static_cast<char*>(x.data) + which * view.dim[1] * view.stride[1] * info(x.dtype).block_bytes;
    return view;
  }
  static ConstTensorView ints(const std::vector<int32_t>& x) {
    return dense_view<const void>(x.data(), DType::i32, {int64_t(x.size())});
  }

  Device& device_;
  Shape s_;
  int64_t queries_;
  std::vector<Buffer> buffers_;
  std::vector<int32_t> q_begin, kv_begin, kv_len, q_pos, kv_pos;
};

double value(const TensorView& x, int64_t i) {
  return x.dtype == DType::f32 ? double(static_cast<const float*>(x.data)[i])
                               : double(to_f32(static_cast<const bf16*>(x.data)[i]));
}

double largest_difference(const TensorView& a, const TensorView& b) {
  double largest = 0;
  for (int64_t i = 0; i < a.elems(); ++i) {
    const double d = std::abs(value(a, i) - value(b, i));
    if (!(d <= largest)) largest = d;  // NaN stays
  }
  return largest;
}

// At most 64 queries: the reference is slow.
void verify(Device& device, Device& reference, const Shape& shape) {
  const int64_t queries = std::min<int64_t>(shape.queries, 64);
  Case ours(device, shape, queries), theirs(reference, shape, queries);
  for (auto [d, c] : {std::pair{&device, &ours}, {&reference, &theirs}}) {
    must(attention(d->compute(), c->forward()));
    must(attention_backward(d->compute(), c->backward()));
    must(d->compute().sync());
  }
  const double bound = shape.dtype == DType::bf16 ? 0.05 : 1e-4;
  for (auto [a, b] : {std::pair{&ours.out, &theirs.out}, {&ours.dq, &theirs.dq}, {&ours.dkv, &theirs.dkv}})
    if (const double d = largest_difference(*a, *b); !(d <= bound))
      must(invalid_error(fmt::format("{}: off the reference by {}, at most {} expected", shape.name, d, bound)));
}

// One thread is timed by its CPU time, which other processes of the machine do not change; several by the wall.
double clock_s(int threads) {
  if (threads > 1) return monotonic_s();
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

double best_s(int threads, const std::function<void()>& call) {
  double best = 1e30;
  const double begin = clock_s(threads);
  for (int i = 0; i < 5 || (i < 1000 && clock_s(threads) - begin < 0.3); ++i) {
    const double t = clock_s(threads);
    call();
    best = std::min(best, clock_s(threads) - t);
  }
  return best;
}

int run(int threads, std::string_view only) {
  auto device = Device::open_cpu({.threads = threads});
  must(device.status());
  auto reference = Device::open_cpu({.reference = true});
  must(reference.status());
  fmt::print("{:<28} {:>8} {:>11} {:>9} {:>11} {:>9} {:>9}\n",
             fmt::format("{}, {} threads", name_of((*device)->isa()), threads), "", "forward us", "GFLOP/s",
             "backward us", "GFLOP/s", "KV GB/s");
  for (const Shape& shape : kShapes) {
    if (std::string_view(shape.name).find(only) == std::string_view::npos) continue;
    verify(**device, **reference, shape);
    Case c(**device, shape, shape.queries);
    Stream& stream = (*device)->compute();
    const double forward = best_s(threads, [&] { must(attention(stream, c.forward())); });
    const double backward = best_s(threads, [&] { must(attention_backward(stream, c.backward())); });
    must(stream.sync());
    const double flops = c.pairs() * double(shape.e), kv_bytes = double(c.kv.elems() * info(shape.dtype).block_bytes);
    fmt::print("{:<37} {:>11.1f} {:>9.1f} {:>11.1f} {:>9.1f} {:>9.1f}\n", shape.name, forward * 1e6,
               4 * flops / forward / 1e9, backward * 1e6, 10 * flops / backward / 1e9, kv_bytes / forward / 1e9);
  }
  return 0;
}

}  // namespace
}  // namespace llmops

int main(int argc, char** argv) {
  return llmops::run(argc > 1 ? std::max(1, std::atoi(argv[1])) : 2, argc > 2 ? argv[2] : "");
}
