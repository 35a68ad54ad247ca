// Rates of the cuda table: matmul beside the best algorithm that cuBLASLt offers, the memory-bound ops beside the rate
// of a device copy, attention. A benchmark, not a test: each case is first verified, buffers rotate past the L2 cache,
// and calls are enqueued in batches of at least 10 ms, so that no launch is waited for. The best batch counts;
// "unstable" is a spread above 5 %. Prints a Markdown table; --json also writes the rows as an array. Without a device:
// exit 4.
//   perf_cuda [--seconds S per case] [--only TEXT] [--json FILE]
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "base/run.h"
#include "kernels/cuda/cublaslt_api.h"
#include "perf/memory_cases.h"

namespace llmops::perf {
namespace {

namespace lt = cuda::lt;

constexpr int64_t kRotateBytes = int64_t{256} << 20;  // twice the L2 cache of the largest of these devices
constexpr int64_t kRowsTimed = 8192;                  // tokens of a step: 8 sequences of 1024

struct Row {
  std::string group, name, dtype, unit;
  double rate, spread;
  std::optional<double> other;  // what the rate is held against
  std::string other_name;
};

// Times calls; keeps and prints the rows.
class Bench {
 public:
  Bench(Device& device, Device& reference, double seconds, std::string only)
      : device(device), reference(reference), seconds_(seconds), only_(std::move(only)) {}

  bool wants(const std::string& name) const { return name.find(only_) != std::string::npos; }

  // Seconds of run(i), i = 0, 1, ..., which enqueues one call.
  template <class Run>
  SampleStats time(Run run) {
    size_t next = 0, batch = 1;
    const auto batch_s = [&] {
      const double start = monotonic_s();
      for (size_t i = 0; i < batch; ++i) run(next++);
      check(device.compute().sync(), "timed call");
      return monotonic_s() - start;
    };
    batch_s();
    while (batch < 4096 && batch_s() < 0.01) batch *= 2;
    std::vector<double> samples;
    const double end = monotonic_s() + seconds_;
    while (samples.size() < 5 || monotonic_s() < end) samples.push_back(batch_s() / double(batch));
    return statistics(samples);
  }

  void add(Row row) {
    if (rows_.empty()) fmt::print("| group | case | dtype | rate | of | share |\n|---|---|---|---:|---:|---:|\n");
    const std::string other = row.other ? fmt::format("{:.1f} {}", *row.other, row.other_name) : "-";
    const std::string share = row.other ? fmt::format("{:.0f} %", 100 * row.rate / *row.other) : "-";
    fmt::print("| {} | {} | {} | {:.1f} {}{} | {} | {} |\n", row.group, row.name, row.dtype, row.rate, row.unit,
               row.spread > 0.05 ? " unstable" : "", other, share);
    std::fflush(stdout);
    rows_.push_back(std::move(row));
  }

  void write_json(const std::string& path) const {
    std::FILE* const file = std::fopen(path.c_str(), "w");
    if (file == nullptr) check(io_error("cannot be opened"), path.c_str());
    for (size_t i = 0; i < rows_.size(); ++i) {
      const Row& r = rows_[i];
      fmt::print(file, R"({}{{"group":"{}","case":"{}","dtype":"{}","unit":"{}","rate":{},"spread":{})",
                 i == 0 ? "[\n" : ",\n", r.group, r.name, r.dtype, r.unit, r.rate, r.spread);
      if (r.other) fmt::print(file, R"(,"of":{},"of_name":"{}")", *r.other, r.other_name);
      fmt::print(file, "}}");
    }
    std::fputs(rows_.empty() ? "[]\n" : "\n]\n", file);
    if (std::fclose(file) != 0) check(io_error("cannot be written"), path.c_str());
  }

  Device& device;
  Device& reference;

 private:
  double seconds_;
  std::string only_;
  std::vector<Row> rows_;
};

std::string name_of_type(DType t) { return std::string(info(t).name); }

// --- Matmul.

struct Product {
  const char* name;
  int64_t m, n, k;
  bool a_trans = false, b_trans = true, accumulate = false;
};
// GPT-2 124M forward, both gradients, the classifier; a large square; decode.
constexpr Product kProducts[] = {{"qkv", kRowsTimed, 2304, 768},
                                 {"proj", kRowsTimed, 768, 768},
                                 {"up", kRowsTimed, 3072, 768},
                                 {"down", kRowsTimed, 768, 3072},
                                 {"head", kRowsTimed, 50304, 768},
                                 {"up dgrad", kRowsTimed, 768, 3072, false, false},
                                 {"up wgrad", 3072, 768, kRowsTimed, true, false, true},
                                 {"square", 4096, 4096, 4096},
                                 {"decode 1", 1, 3072, 768},
                                 {"decode 8", 8, 50304, 768}};

MatmulArgs product_args(Tensors& t, const Product& p, DType dtype) {
  MatmulArgs args = {};
  args.a = p.a_trans ? t.values(dtype, {p.k, p.m}) : t.values(dtype, {p.m, p.k});
  args.b = {p.b_trans ? t.values(dtype, {p.n, p.k}) : t.values(dtype, {p.k, p.n})};
  args.out = t.zeros(p.accumulate ? DType::f32 : dtype, {p.m, p.n});
  args.a_trans = p.a_trans, args.b_trans = p.b_trans, args.accumulate = p.accumulate;
  return args;
}

// 300 elements of the first and the last row of out, which was zero, against a double sum. Each of k additions is off
// by at most 2^-23 of the sum of |a b| (tensor cores may cut bits off); a bf16 result by 2^-8 of itself.
void verify_product(Device& device, const Product& p, const MatmulArgs& args) {
  check(matmul(device.compute(), args), p.name);
  const std::vector<double> a = values_of(device, args.a), b = values_of(device, args.b.data);
  for (const int64_t m : {int64_t{0}, p.m - 1}) {
    const std::vector<double> out = values_of(device, rows(args.out, m, 1));
    for (int64_t i = 0; i < 150; ++i) {
      const int64_t n = i * 104729 % p.n;
      double sum = 0, size = 0;
      for (int64_t k = 0; k < p.k; ++k) {
        const int64_t at_a = p.a_trans ? k * p.m + m : m * p.k + k, at_b = p.b_trans ? n * p.k + k : k * p.n + n;
        const double term = a[size_t(at_a)] * b[size_t(at_b)];
        sum += term, size += std::abs(term);
      }
      const double got = out[size_t(n)], rounding = args.out.dtype == DType::bf16 ? 0x1p-8 * std::abs(sum) : 0;
      if (!(std::abs(got - sum) <= size * double(p.k) * 0x1p-23 + rounding))
        check(invalid_error(fmt::format("out[{},{}] is {}, expected {}", m, n, got, sum)), p.name);
    }
  }
}

// The same product by the algorithms that cuBLASLt proposes; its matrices are stored by columns, so that it computes
// the transposed out from b and a.
class Peer {
 public:
  explicit Peer(Device& device) : memory_(device) {
    auto api = lt::api();
    if (!api.ok()) {
      fmt::print(stderr, "perf_cuda: no cuBLASLt to compare with: {}\n", api.status().message());
      return;
    }
    api_ = api.take();
    must(api_->Create(&handle_));
    workspace_ = memory_.zeros(DType::u8, {kWorkspaceBytes}).data;
  }

  // TFLOP/s of the fastest proposal.
  std::optional<double> best(Bench& bench, const Product& p, const std::vector<MatmulArgs>& sets) {
    if (api_ == nullptr) return {};
    const MatmulArgs& args = sets.front();
    lt::Desc desc;
    must(api_->MatmulDescCreate(&desc, lt::Compute::f32, lt::Type::f32));
    set(desc, lt::DescField::trans_a, int32_t{p.b_trans}), set(desc, lt::DescField::trans_b, int32_t{p.a_trans});
    const lt::Layout a = layout(args.b.data), b = layout(args.a), out = layout(args.out);
    double rate = 0;
    for (const lt::Choice& choice : proposals(desc, a, b, out)) {
      const float alpha = 1, beta = p.accumulate ? 1 : 0;
      const SampleStats s = bench.time([&](size_t i) {
        const MatmulArgs& x = sets[i % sets.size()];
        must(api_->Matmul(handle_, desc, &alpha, x.b.data.data, a, x.a.data, b, &beta, x.out.data, out, x.out.data, out,
                          &choice.algo, workspace_, size_t(kWorkspaceBytes), bench.device.compute().native()));
      });
      rate = std::max(rate, 2e-12 * double(p.m) * double(p.n) * double(p.k) / s.min);
    }
    if (rate == 0) return {};
    return rate;
  }

 private:
  static constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
  static constexpr int kProposals = 8;

  static void must(lt::Code code) {
    if (code != lt::Code::success) check(peer_error(fmt::format("status {}", int(code))), "cuBLASLt");
  }
  void set(lt::Desc desc, lt::DescField field, int32_t value) {
    must(api_->MatmulDescSetAttribute(desc, field, &value, sizeof value));
  }
  lt::Layout layout(const ConstTensorView& x) {
    lt::Layout made;
    must(api_->MatrixLayoutCreate(&made, x.dtype == DType::f32 ? lt::Type::f32 : lt::Type::bf16, uint64_t(x.dim[1]),
                                  uint64_t(x.dim[0]), x.stride[0]));
    return made;
  }
  std::vector<lt::Choice> proposals(lt::Desc desc, lt::Layout a, lt::Layout b, lt::Layout out) {
    lt::Preference preference;
    must(api_->MatmulPreferenceCreate(&preference));
    constexpr auto kField = lt::PreferenceField::workspace_bytes_max;
    const uint64_t bytes = kWorkspaceBytes;
    must(api_->MatmulPreferenceSetAttribute(preference, kField, &bytes, sizeof bytes));
    std::vector<lt::Choice> choices(kProposals);
    int found = 0;
    must(api_->MatmulAlgoGetHeuristic(handle_, desc, a, b, out, out, preference, kProposals, choices.data(), &found));
    must(api_->MatmulPreferenceDestroy(preference));
    choices.resize(size_t(found));
    std::erase_if(choices, [](const lt::Choice& c) { return c.state != lt::Code::success; });
    return choices;
  }

  Tensors memory_;
  const lt::Api* api_ = nullptr;
  lt::Handle handle_ = nullptr;
  void* workspace_ = nullptr;
};

void run_products(Bench& bench) {
  Peer peer(bench.device);
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Product& p : kProducts) {
      if (!bench.wants(fmt::format("matmul {}", p.name))) continue;
      Tensors memory(bench.device);
      std::vector<MatmulArgs> sets = {product_args(memory, p, dtype)};
      verify_product(bench.device, p, sets.front());
      while (memory.bytes() < kRotateBytes && sets.size() < 64) sets.push_back(product_args(memory, p, dtype));
      const SampleStats s = bench.time(
          [&](size_t i) { check(matmul(bench.device.compute(), sets[i % sets.size()]), p.name); });
      const double tflop = 2e-12 * double(p.m) * double(p.n) * double(p.k);
      bench.add({"matmul", fmt::format("{} {}x{}x{}", p.name, p.m, p.n, p.k), name_of_type(dtype), "TFLOP/s",
                 tflop / s.min, s.spread, peer.best(bench, p, sets), "cuBLASLt"});
    }
}

// --- Memory-bound ops.

// GB/s of a copy within the device, its reads and its writes; the first row.
double copy_rate(Bench& bench) {
  Tensors memory(bench.device);
  const TensorView from = memory.zeros(DType::u8, {kRotateBytes}), to = memory.zeros(DType::u8, {kRotateBytes});
  const SampleStats s = bench.time([&](size_t) { bench.device.compute().copy(to.data, from.data, kRotateBytes); });
  const double rate = 2e-9 * double(kRotateBytes) / s.min;
  bench.add({"memory", "device copy", "u8", "GB/s", rate, s.spread, {}, ""});
  return rate;
}

void run_memory(Bench& bench, double copy) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Case& c : kCases) {
      if (!bench.wants(fmt::format("memory {}", c.name))) continue;
      if (c.of_params && dtype == DType::bf16) continue;  // their types are their own
      verify(c, bench.device, bench.reference, dtype);
      Tensors memory(bench.device);
      std::vector<Call> calls;
      while (memory.bytes() < kRotateBytes && calls.size() < 16)
        calls.push_back(c.make(memory, c.of_params ? kTokens : kRowsTimed, dtype));
      const SampleStats s = bench.time(
          [&](size_t i) { check(calls[i % calls.size()].run(bench.device.compute()), c.name); });
      bench.add({"memory", c.name, name_of_type(dtype), "GB/s", 1e-9 * double(calls.front().bytes) / s.min, s.spread,
                 copy, "copy"});
    }
}

// --- Attention.

struct Heads {
  const char* name;
  int64_t batch, queries, keys, heads, kv_heads, e;  // the queries are the last ones of each sequence
};
constexpr Heads kHeads[] = {{"gpt2 B8 T1024", 8, 1024, 1024, 12, 12, 64},
                            {"llama B1 T8192 GQA 4", 1, 8192, 8192, 32, 8, 128},
                            {"decode B32 over 4096 GQA 4", 32, 1, 4096, 32, 8, 128},
                            {"decode B1 over 32768 GQA 4", 1, 1, 32768, 32, 8, 128}};

struct AttentionCall {
  AttentionArgs forward;
  AttentionBackwardArgs backward;
};
AttentionCall attention_call(Tensors& t, const Heads& h, DType dtype) {
  const int64_t rows = h.batch * h.queries, keys = h.batch * h.keys;
  std::vector<int32_t> q_begin, kv_begin;
  for (int64_t i = 0; i <= h.batch; ++i) q_begin.push_back(int32_t(i * h.queries));
  for (int64_t i = 0; i < h.batch; ++i) kv_begin.push_back(int32_t(i * h.keys));
  const std::vector<int32_t> kv_len(size_t(h.batch), int32_t(h.keys)), kv_pos(size_t(h.batch), 0);
  const std::vector<int32_t> q_pos(size_t(h.batch), int32_t(h.keys - h.queries));
  const float scale = 1 / std::sqrt(float(h.e));
  const AttentionArgs f = {t.values(dtype, {rows, h.heads, h.e}), t.values(dtype, {keys, h.kv_heads, h.e}),
                           t.values(dtype, {keys, h.kv_heads, h.e}, 0.5f), t.zeros(dtype, {rows, h.heads, h.e}),
                           t.zeros(DType::f32, {rows, h.heads}), t.ints(q_begin), t.ints(kv_begin), t.ints(kv_len),
                           t.ints(q_pos), t.ints(kv_pos), scale, 0, 0};
  const AttentionBackwardArgs b = {f.q, f.k, f.v, f.out, t.values(dtype, {rows, h.heads, h.e}, 0.25f), f.lse, f.q_begin,
                                   f.kv_begin, f.kv_len, f.q_pos0, f.kv_pos0, t.zeros(dtype, {rows, h.heads, h.e}),
                                   t.zeros(dtype, {keys, h.kv_heads, h.e}), t.zeros(dtype, {keys, h.kv_heads, h.e}),
                                   scale, 0, 0};
  return {f, b};
}

// One sequence with at most 32 queries and 512 keys against the ref table.
void verify_attention(Bench& bench, Heads h, DType dtype) {
  h.batch = 1, h.queries = std::min<int64_t>(h.queries, 32), h.keys = std::min<int64_t>(h.keys, 512);
  std::vector<std::vector<double>> results[2];
  Device* const devices[] = {&bench.device, &bench.reference};
  for (int d = 0; d < 2; ++d) {
    Tensors memory(*devices[d]);
    const AttentionCall call = attention_call(memory, h, dtype);
    check(attention(devices[d]->compute(), call.forward), h.name);
    check(attention_backward(devices[d]->compute(), call.backward), h.name);
    for (const TensorView& t : {call.forward.out, call.backward.dq, call.backward.dk, call.backward.dv})
      results[d].push_back(values_of(*devices[d], t));
  }
  for (size_t i = 0; i < results[0].size(); ++i)
    check_close(results[0][i], results[1][i], dtype == DType::bf16 ? 2e-2 : 1e-4, h.name);
}

// FLOPs count the pairs that are visible: 4 e forward, 10 e backward. Decode reads every key and value once.
void run_attention(Bench& bench, double copy) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Heads& h : kHeads) {
      if (!bench.wants(fmt::format("attention {}", h.name))) continue;
      verify_attention(bench, h, dtype);
      Tensors memory(bench.device);
      const AttentionCall call = attention_call(memory, h, dtype);
      Stream& stream = bench.device.compute();
      const SampleStats forward = bench.time([&](size_t) { check(attention(stream, call.forward), h.name); });
      if (h.queries == 1) {
        const double bytes = 2 * double(*bytes_of(dtype, call.forward.k.elems()));
        bench.add({"attention", h.name, name_of_type(dtype), "GB/s", 1e-9 * bytes / forward.min, forward.spread, copy,
                   "copy"});
        continue;
      }
      const double q = double(h.queries), visible = q * double(h.keys - h.queries) + q * (q + 1) / 2;
      const double pairs = double(h.batch * h.heads) * visible;
      const SampleStats backward =
          bench.time([&](size_t) { check(attention_backward(stream, call.backward), h.name); });
      bench.add({"attention", fmt::format("{} forward", h.name), name_of_type(dtype), "TFLOP/s",
                 4e-12 * pairs * double(h.e) / forward.min, forward.spread, {}, ""});
      bench.add({"attention", fmt::format("{} backward", h.name), name_of_type(dtype), "TFLOP/s",
                 10e-12 * pairs * double(h.e) / backward.min, backward.spread, {}, ""});
    }
}

int run(double seconds, const std::string& only, const std::string& json) {
  auto device = Device::open_cuda(0);
  if (!device.ok()) return fmt::print(stderr, "perf_cuda: not run: {}\n", device.status().message()), 4;
  auto reference = Device::open_cpu({.reference = true});
  check(reference.status(), "reference");
  Bench bench(**device, **reference, seconds, only);
  const double copy = copy_rate(bench);
  run_products(bench);
  run_memory(bench, copy);
  run_attention(bench, copy);
  if (!json.empty()) bench.write_json(json);
  return 0;
}

}  // namespace
}  // namespace llmops::perf

int main(int argc, char** argv) {
  double seconds = 0.1;
  std::string only, json;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--seconds" && i + 1 < argc) seconds = std::atof(argv[i + 1]);
    else if (flag == "--only" && i + 1 < argc) only = argv[i + 1];
    else if (flag == "--json" && i + 1 < argc) json = argv[i + 1];
    else return std::fprintf(stderr, "usage: perf_cuda [--seconds S] [--only TEXT] [--json FILE]\n"), 2;
  }
  return llmops::perf::run(seconds, only, json);
}
