// The next token of each row, one block a row.
//
// Cuts and draws are the same search: order the tokens by a key, and find the shortest run of the largest keys whose amounts
// reach a goal. top-k: by logit, amount 1; top-p: by logit, amount the weight; the draw: by id, amount the weight. The search
// narrows the key by three bits a pass and stops when one token is left.
//
// Weights enter sums as integers, multiples of 2^-k with the largest k that cannot overflow (2^-46 for 50,000 tokens): their
// sum does not depend on an order, so all threads add at once. The rounding is far below the error of the weights themselves,
// which is an ulp of f32.
#include "base/rng.h"
#include "kernels/cuda/entries.h"
#include "kernels/cuda/faults.h"
#include "kernels/cuda/lane.h"
#include "kernels/faults.h"

namespace llmops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kDigitBits = 3;
constexpr int kDigits = 1 << kDigitBits;

struct Sample {
  const float *logits, *temperature, *top_p;
  const int32_t* top_k;
  const int64_t *key, *position;
  int32_t* ids;
  float* weights;  // scratch [n, vocab]
  int64_t row_stride, vocab;
  int id_bits;  // ids are below 2^id_bits
  FaultPlace fault;
};

struct Shared {
  uint64_t warp[kWarps];
  uint64_t amount[kWarps][kDigits];
  unsigned count[kWarps][kDigits];
};

template <class T, class Combine>
__device__ __forceinline__ T warp_reduce(T x, Combine combine) {
  for (int step = kWarp / 2; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}
struct Plus {
  template <class T>
  __device__ T operator()(T a, T b) const { return a + b; }
};
struct Largest {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};

// The same result in every thread; the whole block calls it.
template <class Combine>
__device__ __forceinline__ uint64_t block_reduce(uint64_t x, Combine combine) {
  Shared& shared = block_shared<Shared>();
  x = warp_reduce(x, combine);
  __syncthreads();  // what an earlier call left has been read
  if (threadIdx.x % kWarp == 0) shared.warp[threadIdx.x / kWarp] = x;
  __syncthreads();
  uint64_t all = shared.warp[0];
  for (int w = 1; w < kWarps; ++w) all = combine(all, shared.warp[w]);
  return all;
}

// Unsigned order of the result = order of the floats; -0 equals 0.
__device__ __forceinline__ uint32_t rank_of(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

struct Row {
  const float* logits;
  float* weights;
  int64_t vocab;
  int id_bits;
  // Larger for a lower id; and for a larger logit, then a lower id.
  __device__ uint64_t id_key(int64_t i) const { return (uint64_t{1} << id_bits) - 1 - static_cast<uint64_t>(i); }
  __device__ uint64_t logit_key(int64_t i) const { return uint64_t{rank_of(logits[i])} << id_bits | id_key(i); }
  __device__ uint64_t weight(int64_t i) const {
    return __float2ull_rn(weights[i] * static_cast<float>(uint64_t{1} << (62 - id_bits)));
  }
  // The sum of the weights of tokens whose logit key is at least `cut`.
  __device__ uint64_t kept_weight(uint64_t cut) const {
    uint64_t sum = 0;
    for (int64_t i = threadIdx.x; i < vocab; i += kThreads)
      if (logit_key(i) >= cut) sum += weight(i);
    return block_reduce(sum, Plus());
  }
};

// Per digit, over the block: the amounts and the number of tokens.
struct Histogram {
  uint64_t amount[kDigits];
  unsigned count[kDigits];
};
__device__ __forceinline__ void block_add(Histogram& h) {
  Shared& shared = block_shared<Shared>();
  __syncthreads();
  for (int digit = 0; digit < kDigits; ++digit) {
    const uint64_t amount = warp_reduce(h.amount[digit], Plus());
    const unsigned count = warp_reduce(h.count[digit], Plus());
    if (threadIdx.x % kWarp != 0) continue;
    shared.amount[threadIdx.x / kWarp][digit] = amount;
    shared.count[threadIdx.x / kWarp][digit] = count;
  }
  __syncthreads();
  for (int digit = 0; digit < kDigits; ++digit) {
    h.amount[digit] = 0;
    h.count[digit] = 0;
    for (int w = 0; w < kWarps; ++w) {
      h.amount[digit] += shared.amount[w][digit];
      h.count[digit] += shared.count[w][digit];
    }
  }
}

// The lower bound of the keys of the shortest run of largest keys, of at least one token, whose amounts reach `goal`; all
// amounts together reach it. key(i) is below 2^bits, amount(i) is asked where takes(i). With `whole_key` the bound is the
// key of the last token itself.
template <class Key, class Amount, class Takes>
__device__ uint64_t bound_of_run(int64_t vocab, int bits, uint64_t goal, bool whole_key, Key key, Amount amount, Takes takes) {
  uint64_t prefix = 0, reached = 0;  // of the digits so far; the amounts of keys above it
  int shift = (bits + kDigitBits - 1) / kDigitBits * kDigitBits;
  while (shift > 0) {
    shift -= kDigitBits;
    Histogram h = {};
    for (int64_t i = threadIdx.x; i < vocab; i += kThreads) {
      const uint64_t digits = key(i) >> shift;
      if (digits >> kDigitBits != prefix || !takes(i)) continue;
      const uint64_t a = amount(i);
#pragma unroll
      for (int digit = 0; digit < kDigits; ++digit) {
        const bool here = static_cast<int>(digits % kDigits) == digit;
        h.amount[digit] += here ? a : 0;
        h.count[digit] += here ? 1 : 0;
      }
    }
    block_add(h);
    int chosen = -1;
    unsigned count = 0;
#pragma unroll
    for (int digit = kDigits - 1; digit >= 0; --digit) {
      if (chosen >= 0 || h.count[digit] == 0) continue;
      if (reached + h.amount[digit] >= goal) {
        chosen = digit;
        count = h.count[digit];
      } else {
        reached += h.amount[digit];
      }
    }
    prefix = prefix << kDigitBits | static_cast<uint64_t>(chosen);
    if (count == 1 && !whole_key) break;
  }
  return prefix << shift;
}

__device__ int draw(const Sample& a, const Row& row, int64_t n) {
  const auto all = [](int64_t) { return true; };
  const auto by_logit = [&](int64_t i) { return row.logit_key(i); };
  const auto weight = [&](int64_t i) { return row.weight(i); };
  uint64_t cut = 0;
  if (a.top_k[n] > 0 && a.top_k[n] < a.vocab)
    cut = bound_of_run(a.vocab, 32 + a.id_bits, static_cast<uint64_t>(a.top_k[n]), false, by_logit,
                       [](int64_t) { return uint64_t{1}; }, all);
  const auto kept = [&](int64_t i) { return row.logit_key(i) >= cut; };
  uint64_t sum = row.kept_weight(cut);
  if (a.top_p[n] < 1) {
    const uint64_t goal = __double2ull_ru(static_cast<double>(a.top_p[n]) * static_cast<double>(sum));
    const uint64_t narrower =
        bound_of_run(a.vocab, 32 + a.id_bits, goal < sum ? goal : sum, false, by_logit, weight, kept);
    cut = narrower > cut ? narrower : cut;
    sum = row.kept_weight(cut);
  }
  const Philox bits = philox4x32(static_cast<uint64_t>(a.key[n]), static_cast<uint64_t>(a.position[n]), 0);
  const uint64_t at = __double2ull_rd(uniform_f64(bits.v[0], bits.v[1]) * static_cast<double>(sum));
  const uint64_t goal = at < sum ? at + 1 : sum;  // the running sum exceeds `at`
  const auto by_id = [&](int64_t i) { return row.id_key(i); };
  const uint64_t last = bound_of_run(a.vocab, a.id_bits, goal, true, by_id, weight, kept);
  return static_cast<int>(row.id_key(static_cast<int64_t>(last)));
}

__device__ SampleFault fault_of(const Sample& a, int64_t n, bool nan, float top) {
  if (nan) return SampleFault::nan;
  if (!(a.temperature[n] >= 0)) return SampleFault::temperature;
  if (a.top_k[n] < 0) return SampleFault::top_k;
  if (!(a.top_p[n] >= 0 && a.top_p[n] <= 1)) return SampleFault::top_p;
  return a.temperature[n] > 0 && !(fabsf(top) < __int_as_float(0x7f800000)) ? SampleFault::infinite : SampleFault::none;
}

__global__ void __launch_bounds__(kThreads) sample_row(Sample a) {
  const int64_t n = blockIdx.x;
  const Row row = {a.logits + n * a.row_stride, a.weights + n * a.vocab, a.vocab, a.id_bits};
  uint64_t best = 0;  // NaN is above all keys, which have 63 bits
  for (int64_t i = threadIdx.x; i < a.vocab; i += kThreads) {
    const uint64_t key = row.logits[i] == row.logits[i] ? row.logit_key(i) : ~uint64_t{0};
    best = key > best ? key : best;
  }
  best = block_reduce(best, Largest());
  const bool nan = best == ~uint64_t{0};
  const int64_t first = static_cast<int64_t>(row.id_key(static_cast<int64_t>(best & ((uint64_t{1} << a.id_bits) - 1))));
  const float top = nan ? 0 : row.logits[first];
  const SampleFault fault = fault_of(a, n, nan, top);
  if (fault != SampleFault::none) {
    if (threadIdx.x == 0) report(a.fault, n, static_cast<int>(fault));
    return;
  }
  int id = static_cast<int>(first);
  if (a.temperature[n] > 0) {
    for (int64_t i = threadIdx.x; i < a.vocab; i += kThreads)
      row.weights[i] = exp(F32{(row.logits[i] - top) / a.temperature[n]}).v;
    id = draw(a, row, n);  // a thread reads the weights that it wrote
  }
  if (threadIdx.x == 0) a.ids[n] = id;
}

Status wrong_row(const FaultKind&, int64_t row, int32_t fault) { return sample_error(row, static_cast<SampleFault>(fault)); }

}  // namespace

Status sample(Stream& stream, const SampleArgs& a) {
  const int64_t n = a.logits.dim[0];
  if (n == 0) return {};
  LLMOPS_ASSIGN(void* const weights, stream.workspace(n * a.vocab * static_cast<int64_t>(sizeof(float))));
  int id_bits = 0;
  while (int64_t{1} << id_bits < a.vocab) ++id_bits;
  const Sample args = {static_cast<const float*>(a.logits.data),
                       static_cast<const float*>(a.temperature.data),
                       static_cast<const float*>(a.top_p.data),
                       static_cast<const int32_t*>(a.top_k.data),
                       static_cast<const int64_t*>(a.key.data),
                       static_cast<const int64_t*>(a.position.data),
                       static_cast<int32_t*>(a.ids.data),
                       static_cast<float*>(weights),
                       a.logits.stride[0],
                       a.vocab,
                       id_bits,
                       fault_place(stream, {wrong_row, "sample", "logits", 0, false})};
  return launch(stream.native(), static_cast<unsigned>(n), kThreads, sizeof(Shared), "sample", sample_row, args);
}

}  // namespace llmops::cuda
