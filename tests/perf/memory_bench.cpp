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
#include "base/run.h"
#include "perf/memory_cases.h"

using namespace llmops;
using namespace llmops::perf;

namespace {

constexpr int64_t kRotateBytes = int64_t{128} << 20;  // four times this machine's last-level cache

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
