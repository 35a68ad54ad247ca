// Rates of the CPU matmul on the shapes of the models, beside OpenBLAS and oneDNN when they are installed. A benchmark,
// not a test: each shape is first compared with a double loop, buffers rotate past the cache, and peers run
// alternately.
//   perf_matmul [--threads N] [--seconds S per shape] [--only TEXT]
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/ops.h"

using namespace llmops;

namespace {

struct Case {
  const char* name;
  int64_t m, n, k;
  bool a_trans, b_trans, accumulate;
  bool packed = false;
};

// The char model (768 tokens) and GPT-2 124M (256 tokens), forward, dgrad, wgrad; decode.
constexpr Case kCases[] = {
    {"qkv", 768, 384, 128, false, true, false},        {"up", 768, 512, 128, false, true, false},
    {"down", 768, 128, 512, false, true, false},       {"proj", 768, 128, 128, false, true, false},
    {"head", 768, 65, 128, false, true, false},        {"qkv dgrad", 768, 128, 384, false, false, false},
    {"up dgrad", 768, 128, 512, false, false, false},  {"down dgrad", 768, 512, 128, false, false, false},
    {"head dgrad", 768, 128, 65, false, false, false}, {"qkv wgrad", 384, 128, 768, true, false, true},
    {"up wgrad", 512, 128, 768, true, false, true},    {"down wgrad", 128, 512, 768, true, false, true},
    {"proj wgrad", 128, 128, 768, true, false, true},  {"head wgrad", 65, 128, 768, true, false, true},
    {"gpt2 proj", 256, 768, 768, false, true, false},  {"gpt2 qkv", 256, 2304, 768, false, true, false},
    {"gpt2 up", 256, 3072, 768, false, true, false},   {"gpt2 down", 256, 768, 3072, false, true, false},
    {"gpt2 up dgrad", 256, 768, 3072, false, false, false}, {"gpt2 down dgrad", 256, 3072, 768, false, false, false},
    {"gpt2 up wgrad", 3072, 768, 256, true, false, true}, {"gpt2 down wgrad", 768, 3072, 256, true, false, true},
    {"gpt2 head", 256, 50304, 768, false, true, false}, {"gpt2 head dgrad", 256, 768, 50304, false, false, false},
    {"gpt2 head wgrad", 50304, 768, 256, true, false, true}, {"gemv", 1, 768, 768, false, true, false},
    {"gemv packed", 1, 768, 768, false, true, false, true}, {"gemv head", 1, 50304, 768, false, true, false},
    {"gemv head packed", 1, 50304, 768, false, true, false, true}, {"decode 4", 4, 3072, 768, false, true, false},
    {"square", 1024, 1024, 1024, false, true, false},
};

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
// One thread is timed in its own CPU time: on a shared machine the time that others take is not ours.
double work_s(int threads) {
  timespec t;
  if (threads > 1 || clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0) return now_s();
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// dnnl_sgemm(row major; 'N' or 'T'); cblas_sgemm with 101 row major, 111 no transpose, 112 transpose.
using DnnlSgemm = int (*)(char, char, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*, int64_t,
                          float, float*, int64_t);
using CblasSgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*,
                            int);

struct Peers {
  DnnlSgemm dnnl = nullptr;
  CblasSgemm cblas = nullptr;
};

void* open_first(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return handle;
  return nullptr;
}

Peers open_peers(int threads) {
  // Read by the libraries when they load: the same number of threads as ours, and the kernels of this CPU.
  const std::string count = std::to_string(threads);
  for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}) setenv(name, count.c_str(), 1);
  unsetenv("OPENBLAS_CORETYPE");
  Peers peers;
  if (void* lib = open_first({"libdnnl.so.3", "libdnnl.so.2"}))
    peers.dnnl = reinterpret_cast<DnnlSgemm>(dlsym(lib, "dnnl_sgemm"));
  if (void* lib = open_first({"libopenblas.so.0"}))
    peers.cblas = reinterpret_cast<CblasSgemm>(dlsym(lib, "cblas_sgemm"));
  return peers;
}

struct Times {
  std::vector<double> s;
  double best() const { return s.empty() ? NAN : *std::min_element(s.begin(), s.end()); }
  double median() {
    if (s.empty()) return NAN;
    std::sort(s.begin(), s.end());
    return s[s.size() / 2];
  }
};

void fill(float* p, int64_t count, uint64_t seed) {
  for (int64_t i = 0; i < count; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    p[i] = static_cast<float>(static_cast<int64_t>(seed >> 40) - (1 << 23)) / (1 << 23);
  }
}

// A few hundred elements of out against a double sum. The bound is that of k roundings of a sum of |a b|.
bool verify(const Case& c, const float* a, const float* b, const float* out) {
  for (int64_t i = 0; i < 300; ++i) {
    const int64_t m = i * 7919 % c.m, n = i * 104729 % c.n;
    double sum = 0, size = 0;
    for (int64_t k = 0; k < c.k; ++k) {
      const double term = double{a[c.a_trans ? k * c.m + m : m * c.k + k]} * b[c.b_trans ? n * c.k + k : k * c.n + n];
      sum += term;
      size += std::fabs(term);
    }
    if (!(std::fabs(out[m * c.n + n] - sum) <= size * static_cast<double>(c.k) * 0x1p-24 + 1e-30)) {
      std::fprintf(stderr, "%s: out[%ld,%ld] = %g, expected %g\n", c.name, m, n, out[m * c.n + n], sum);
      return false;
    }
  }
  return true;
}

// Rotating copies, so that weights and activations come from memory as they do within a step (up to 64 MiB of them).
class Data {
 public:
  Data(Device& device, const Case& c) : device_(device), case_(c) {}

  Status fill_all() {
    const Case& c = case_;
    const int64_t bytes = 4 * (c.m * c.k + c.k * c.n + c.m * c.n);
    copies_ = std::clamp<int64_t>((int64_t{64} << 20) / bytes, 1, 16);
    for (int64_t i = 0; i < copies_; ++i) {
      LLMOPS_TRY(add(a_, c.m * c.k * 4));
      LLMOPS_TRY(add(b_, c.k * c.n * 4));
      LLMOPS_TRY(add(out_, c.m * c.n * 4));
      fill(a(i), c.m * c.k, 1);
      fill(b(i), c.k * c.n, 2);
      if (!c.packed) continue;
      LLMOPS_TRY(add(packed_, matmul_pack_bytes(DType::f32, c.k, c.n)));
      LLMOPS_TRY(matmul_pack(device_.compute(), {plain(i).b.data, panels(i), c.b_trans}));
    }
    return device_.compute().sync();
  }

  int64_t copies() const { return copies_; }
  float* a(int64_t i) const { return a_[i].as<float>(); }
  float* b(int64_t i) const { return b_[i].as<float>(); }
  float* out(int64_t i) const { return out_[i].as<float>(); }

  MatmulArgs args(int64_t i) const {
    MatmulArgs args = plain(i);
    if (case_.packed) args.b = {panels(i), Pack::panels};
    return args;
  }

 private:
  Status add(std::vector<Buffer>& list, int64_t bytes) {
    LLMOPS_ASSIGN(Buffer buffer, device_.alloc(bytes, Category::transient));
    list.push_back(std::move(buffer));
    return {};
  }
  TensorView panels(int64_t i) const { return packed_[i].view(DType::u8, {packed_[i].bytes()}); }
  MatmulArgs plain(int64_t i) const {
    const Case& c = case_;
    MatmulArgs args = {};
    args.a = c.a_trans ? a_[i].view(DType::f32, {c.k, c.m}) : a_[i].view(DType::f32, {c.m, c.k});
    args.b.data = c.b_trans ? b_[i].view(DType::f32, {c.n, c.k}) : b_[i].view(DType::f32, {c.k, c.n});
    args.out = out_[i].view(DType::f32, {c.m, c.n});
    args.a_trans = c.a_trans;
    args.b_trans = c.b_trans;
    args.accumulate = c.accumulate;
    return args;
  }

  Device& device_;
  const Case& case_;
  int64_t copies_ = 0;
  std::vector<Buffer> a_, b_, out_, packed_;
};

// Ours first, then the peers that are there.
std::vector<std::function<void(int64_t)>> runs_of(Device& device, const Case& c, const Data& d, const Peers& peers) {
  std::vector<std::function<void(int64_t)>> runs;
  runs.push_back([&](int64_t i) {
    if (Status s = matmul(device.compute(), d.args(i)); !s.ok()) std::fprintf(stderr, "%s\n", s.message().c_str());
  });
  const int64_t lda = c.a_trans ? c.m : c.k, ldb = c.b_trans ? c.k : c.n;
  if (peers.dnnl)
    runs.push_back([&, lda, ldb](int64_t i) {
      peers.dnnl(c.a_trans ? 'T' : 'N', c.b_trans ? 'T' : 'N', c.m, c.n, c.k, 1, d.a(i), lda, d.b(i), ldb, c.accumulate,
                 d.out(i), c.n);
    });
  if (peers.cblas)
    runs.push_back([&, lda, ldb](int64_t i) {
      peers.cblas(101, c.a_trans ? 112 : 111, c.b_trans ? 112 : 111, c.m, c.n, c.k, 1, d.a(i), lda, d.b(i), ldb,
                  c.accumulate, d.out(i), c.n);
    });
  return runs;
}

bool run_case(Device& device, const Case& c, const Peers& peers, double seconds) {
  Data d(device, c);
  if (Status s = d.fill_all(); !s.ok()) return std::fprintf(stderr, "%s\n", s.message().c_str()), false;
  const auto runs = runs_of(device, c, d, peers);
  runs[0](0);  // out is zero: with accumulate the result is the product, too
  if (!device.compute().sync().ok() || !verify(c, d.a(0), d.b(0), d.out(0))) return false;

  // Blocks of one library at a time, alternating. Between them a pause in which the threads of the one before stop
  // spinning, and calls that are not timed until the scheduler has given each thread a CPU.
  std::vector<Times> times(runs.size());
  const double end = now_s() + seconds;
  const int threads = device.pool().threads();
  int64_t copy = 0;
  for (int round = 0; round < 2 || now_s() < end; ++round)
    for (size_t r = 0; r < runs.size(); ++r) {
      if (threads > 1) std::this_thread::sleep_for(std::chrono::milliseconds(60));
      const double timed_from = now_s() + (threads > 1 ? 0.04 : 0), block_end = timed_from + seconds / 12;
      for (int i = 0; i < 3 || now_s() < block_end; ++i, copy = (copy + 1) % d.copies()) {
        const double start = work_s(threads);
        runs[r](copy);
        if (i > 0 && now_s() > timed_from) times[r].s.push_back(work_s(threads) - start);
      }
    }
  const double gflop = 2e-9 * static_cast<double>(c.m) * static_cast<double>(c.n) * static_cast<double>(c.k);
  const double gbytes = 4e-9 * static_cast<double>(c.m * c.k + c.k * c.n + c.m * c.n);
  std::printf("%-17s %5ldx%5ldx%5ld %c%c", c.name, c.m, c.n, c.k, c.a_trans ? 'T' : 'N', c.b_trans ? 'T' : 'N');
  for (Times& t : times) std::printf("   %6.1f %6.1f", gflop / t.best(), gflop / t.median());
  std::printf("   %5.1f GB/s\n", gbytes / times[0].best());
  std::fflush(stdout);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  int threads = 1;
  double seconds = 0.5;
  const char* only = "";
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 < argc && !std::strcmp(argv[i], "--threads")) {
      threads = std::atoi(argv[i + 1]);
    } else if (i + 1 < argc && !std::strcmp(argv[i], "--seconds")) {
      seconds = std::atof(argv[i + 1]);
    } else if (i + 1 < argc && !std::strcmp(argv[i], "--only")) {
      only = argv[i + 1];
    } else {
      return std::fprintf(stderr, "usage: perf_matmul [--threads N] [--seconds S] [--only PART_OF_NAME]\n"), 2;
    }
  }
  const Peers peers = open_peers(threads);
  auto device = Device::open_cpu({.threads = threads});
  if (!device.ok()) return std::fprintf(stderr, "%s\n", device.status().message().c_str()), 4;
  std::printf("%d threads, %s; GFLOP/s, best and median, of llmops%s%s; then the bytes of a, b and out\n",
              threads, std::string(name_of((*device)->isa())).c_str(), peers.dnnl ? ", oneDNN" : "",
              peers.cblas ? ", OpenBLAS" : "");
  for (const Case& c : kCases)
    if (std::strstr(c.name, only) && !run_case(**device, c, peers, seconds)) return 1;
  return 0;
}
