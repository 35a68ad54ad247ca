// The next token of each row. The definition: order tokens by logit descending, then id ascending, with weights
// w_i = exp((x_i - max) / temperature) in f32. top-k keeps the first k; top-p keeps the shortest prefix of those whose
// weight reaches top_p of theirs, at least one; the draw is the first kept id, ascending, at which the running sum of w
// exceeds u * (sum of the kept w). Sums are f64. Nothing is sorted but one bucket: a histogram over the leading bits of
// the logits says in which bucket a cut falls.
#include <algorithm>
#include <atomic>
#include <span>

#include "base/rng.h"
#include "kernels/cpu/entries.h"
#include "kernels/cpu/tasks.h"
#include "kernels/faults.h"

namespace llmops {
namespace {

struct Candidate {
  uint32_t rank;  // larger for a larger logit
  int32_t id;
  double weight;
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.id < b.id;
  }
};

// The last token that a cut keeps.
struct Cut {
  uint32_t rank = 0;
  int32_t id = INT32_MAX;
  bool keeps(uint32_t r, int32_t i) const { return r > rank || (r == rank && i <= id); }
};

// Unsigned order of the result = order of the floats; -0 equals 0.
inline uint32_t rank_of(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

constexpr int kBucketBits = 12;  // sign, exponent and three bits of mantissa
constexpr int64_t kBuckets = int64_t{1} << kBucketBits;
constexpr int bucket_shift = 32 - kBucketBits;

struct Bucket {
  int64_t count;
  double weight;
};

// A row's scratch: weights[vocab], buckets[kBuckets], candidates[vocab].
struct RowScratch {
  float* weights;
  Bucket* buckets;
  Candidate* candidates;
};

struct Row {
  std::span<const float> logits;
  RowScratch scratch;

  // The cut after the shortest prefix, of what `kept` keeps, whose count (or else weight) reaches `enough`.
  [[maybe_unused]] Cut cut(const Cut& kept, bool by_weight, double enough) const {
    std::fill_n(scratch.buckets, kBuckets, Bucket{});
    for (size_t i = 0; i < logits.size(); ++i) {
      const uint32_t rank = rank_of(logits[i]);
      if (!kept.keeps(rank, static_cast<int32_t>(i))) continue;
      Bucket& bucket = scratch.buckets[rank >> bucket_shift];
      ++bucket.count;
      bucket.weight += static_cast<double>(scratch.weights[i]);
    }
    double reached = 0;
    for (int64_t b = kBuckets - 1; b >= 0; --b) {
      const Bucket& bucket = scratch.buckets[b];
      const double more = by_weight ? bucket.weight : static_cast<double>(bucket.count);
      if (bucket.count > 0 && reached + more >= enough) return cut_within(b, kept, by_weight, reached, enough);
      reached += more;
    }
    return kept;  // the sums of the buckets rounded to less than `enough`
  }

 private:
  Cut cut_within(int64_t bucket, const Cut& kept, bool by_weight, double reached, double enough) const {
    Candidate* end = scratch.candidates;
    for (size_t i = 0; i < logits.size(); ++i) {
      const uint32_t rank = rank_of(logits[i]);
      if (rank >> bucket_shift == bucket && kept.keeps(rank, static_cast<int32_t>(i)))
        *end++ = {rank, static_cast<int32_t>(i), static_cast<double>(scratch.weights[i])};
    }
    Candidate* last = scratch.candidates;
    if (by_weight) {
      std::sort(scratch.candidates, end);
      for (reached += last->weight; reached < enough && last + 1 < end; reached += last->weight) ++last;
    } else {
      last += static_cast<int64_t>(enough - reached) - 1;
      std::nth_element(scratch.candidates, last, end);
    }
    return {last->rank, last->id};
  }
};

}  // namespace
}  // namespace llmops

#include "kernels/cpu/vec.h"
#include "kernels/math.h"
#include "kernels/cpu/lanes.h"

namespace llmops::LLMOPS_ISA {
namespace {

// The largest of x[count] and whether one is NaN.
float largest(const float* x, int64_t count, bool& nan) {
  F32x16 top = set1(-__builtin_inff()), poison = zero();
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const F32x16 v = load(x + i);
    top = max(v, top);
    poison = poison + (v - v) * zero();  // NaN for NaN, and for an infinity, which is looked at again below
  }
  float result = fold_max(top);
  bool odd = !(fold_sum(poison) == 0);
  for (; i < count; ++i) {
    result = x[i] > result ? x[i] : result;
    odd |= x[i] != x[i];
  }
  nan = odd && std::any_of(x, x + count, [](float v) { return v != v; });
  return result;
}

int32_t draw(const Row& row, float top, float temperature, int64_t top_k, float top_p, uint64_t key,
             uint64_t position) {
  const int64_t vocab = static_cast<int64_t>(row.logits.size());
  float* weights = row.scratch.weights;
  for_lanes(vocab, [&](int64_t i, int n) LLMOPS_BODY {
    store_part(weights + i, exp((load_part(row.logits.data() + i, n) - set1(top)) / set1(temperature)), n);
  });
  Cut cut;
  if (top_k > 0 && top_k < vocab) cut = row.cut(cut, false, static_cast<double>(top_k));
  const auto kept = [&](int64_t i) { return cut.keeps(rank_of(row.logits[size_t(i)]), static_cast<int32_t>(i)); };
  const auto sum = [&] {
    double total = 0;
    for (int64_t i = 0; i < vocab; ++i)
      if (kept(i)) total += static_cast<double>(weights[i]);
    return total;
  };
  if (top_p < 1) cut = row.cut(cut, true, static_cast<double>(top_p) * sum());
  const Philox bits = philox4x32(key, position, 0);
  const double at = uniform_f64(bits.v[0], bits.v[1]) * sum();
  double reached = 0;
  int32_t id = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    if (!kept(i)) continue;
    id = static_cast<int32_t>(i);
    if ((reached += static_cast<double>(weights[i])) > at) break;
  }
  return id;
}

SampleFault sample_row(const SampleArgs& args, int64_t n, const RowScratch& scratch) {
  const float* logits = static_cast<const float*>(args.logits.data) + n * args.logits.stride[0];
  const float temperature = static_cast<const float*>(args.temperature.data)[n];
  const float top_p = static_cast<const float*>(args.top_p.data)[n];
  const int64_t top_k = static_cast<const int32_t*>(args.top_k.data)[n];
  bool nan = false;
  const float top = largest(logits, args.vocab, nan);
  if (nan) return SampleFault::nan;
  if (!(temperature >= 0)) return SampleFault::temperature;
  if (top_k < 0) return SampleFault::top_k;
  if (!(top_p >= 0 && top_p <= 1)) return SampleFault::top_p;
  int32_t& id = static_cast<int32_t*>(args.ids.data)[n];
  if (temperature == 0) {
    id = static_cast<int32_t>(std::find(logits, logits + args.vocab, top) - logits);
    return SampleFault::none;
  }
  if (!(std::fabs(top) < __builtin_inff())) return SampleFault::infinite;
  const Row row{{logits, static_cast<size_t>(args.vocab)}, scratch};
  id = draw(row, top, temperature, top_k, top_p, static_cast<uint64_t>(static_cast<const int64_t*>(args.key.data)[n]),
            static_cast<uint64_t>(static_cast<const int64_t*>(args.position.data)[n]));
  return SampleFault::none;
}

}  // namespace

Status sample(Stream& stream, const SampleArgs& args) {
  const int64_t rows = args.logits.dim[0];
  const int64_t weight_bytes = (args.vocab * int64_t{sizeof(float)} + 63) & ~63;
  const int64_t bucket_bytes = kBuckets * int64_t{sizeof(Bucket)};
  const int64_t scratch_bytes = weight_bytes + bucket_bytes + args.vocab * int64_t{sizeof(Candidate)};
  Pool& pool = stream.device().pool();
  LLMOPS_ASSIGN(void* workspace, stream.workspace(pool.threads() * scratch_bytes));
  std::atomic<int64_t> first_bad = INT64_MAX;  // row * 256 + fault
  pool.parallel_for(rows, [&](int64_t n, int worker) {
    char* base = static_cast<char*>(workspace) + worker * scratch_bytes;
    const SampleFault fault = sample_row(args, n,
                                   {reinterpret_cast<float*>(base), reinterpret_cast<Bucket*>(base + weight_bytes),
                                    reinterpret_cast<Candidate*>(base + weight_bytes + bucket_bytes)});
    if (fault == SampleFault::none) return;
    const int64_t bad = n * 256 + static_cast<int64_t>(fault);
    int64_t seen = first_bad;
    while (bad < seen && !first_bad.compare_exchange_weak(seen, bad)) {
    }
  });
  const int64_t bad = first_bad;
  return bad == INT64_MAX ? Status() : sample_error(bad / 256, static_cast<SampleFault>(bad % 256));
}

}  // namespace llmops::LLMOPS_ISA
#include "kernels/cpu/vec_end.h"
