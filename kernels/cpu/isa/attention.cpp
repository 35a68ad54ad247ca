// Attention, forward. The definition, for a query row (one query, one head) and absolute key positions:
//   s_j = (ascending fma chain over e of q[e] * k_j[e]) * scale, then softcap * tanh(s_j / softcap) if softcap > 0;
//   for each chunk of 256 positions with visible keys, ascending: m = max s_j, p_j = exp(s_j - m),
//     l = sum of p_j over 16 lanes (lane = position % 16, ascending), folded,
//     a[e] = ascending fma chain over j of p_j * v_j[e];
//   chunks merge ascending (see merge), out = a / l, lse = m + log(l).
// So a row's bits depend on its own q, and the keys it sees; not on its block, the thread, or how the sequence was cut.
// Work is cut into tasks (sequence, KV head, block of queries); when those are too few for the threads (decode against
// a long cache), also into spans of chunks, whose partials are stored and merged afterwards in the same order.
#include <algorithm>

#include "kernels/cpu/entries.h"
#include "kernels/cpu/sequences.h"

#include "kernels/cpu/vec.h"
#include "kernels/math.h"
#include "kernels/cpu/attention_tile.h"

namespace llmops::LLMOPS_ISA {
namespace {

constexpr int64_t kChunk = 256;                 // positions per partial: part of the definition
constexpr int64_t kPartialFloatsMax = 8 << 20;  // 32 MiB of stored partials; beyond it chunks are not spread

// A block's running result: m[rows], l[rows], a[rows, wide]. l == 0: nothing was seen yet, since a chunk's l is
// at least 1.
struct Partial {
  float *m, *l, *a;

  static int64_t floats(const Grouping& g) { return 2 * round_up_16(g.rows) + g.rows * g.wide; }
  static Partial at(float* base, const Grouping& g) {
    return {base, base + round_up_16(g.rows), base + 2 * round_up_16(g.rows)};
  }
};

// The scratch of one worker.
struct Scratch {
  float *q, *k, *v, *scores, *tile;
  Partial block;

  static int64_t floats(const Grouping& g) {
    return g.rows * g.wide + 2 * kChunk * g.wide + kTileRows * kChunk + kTileRows * g.wide + Partial::floats(g);
  }
  static Scratch at(float* base, const Grouping& g) {
    Scratch s;
    s.q = base;
    s.k = s.q + g.rows * g.wide;
    s.v = s.k + kChunk * g.wide;
    s.scores = s.v + kChunk * g.wide;
    s.tile = s.scores + kTileRows * kChunk;
    s.block = Partial::at(s.tile + kTileRows * g.wide, g);
    return s;
  }
};

struct Task {
  int64_t sequence, kv_head, q_first, q_count;  // queries of the sequence
  int64_t chunk_first, chunk_end;               // absolute chunks that hold a key seen by any of the queries
};

// Chunk and lane of a position; positions of a ring may be anything, so the division rounds down.
LLMOPS_INLINE int64_t chunk_of(int64_t position) { return position >> 8; }
static_assert(kChunk == 1 << 8);

LLMOPS_INLINE F32x16 lane_numbers() {
  alignas(64) static constexpr float kLane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load(kLane);
}

// Scaled, capped and masked scores of one row, in place over the vectors of `keys`; their maximum.
LLMOPS_INLINE float mask_scores(float* s, Range keys, float scale, float softcap) {
  const F32x16 none = set1(-__builtin_inff());
  const int32_t begin = keys.lo & ~15;
  F32x16 top = none;
  F32x16 lo = set1(static_cast<float>(keys.lo - begin)), hi = set1(static_cast<float>(keys.hi - begin));
  for (int32_t j = begin; j < keys.hi; j += 16, lo = lo - set1(16.0f), hi = hi - set1(16.0f)) {
    F32x16 x = load(s + j) * set1(scale);
    if (softcap > 0) x = tanh(x / set1(softcap)) * set1(softcap);
    x = select(less(lane_numbers(), lo), none, select(less(lane_numbers(), hi), x, none));
    top = max(top, x);
    store(s + j, x);
  }
  return fold_max(top);
}

// Masked scores to weights exp(s - m), in place; their sum. A masked key weighs 0.
LLMOPS_INLINE float exp_scores(float* s, Range keys, float m) {
  F32x16 sum = zero();
  for (int32_t j = keys.lo & ~15; j < keys.hi; j += 16) {
    const F32x16 p = exp(load(s + j) - set1(m));
    sum = sum + p;
    store(s + j, p);
  }
  return fold_sum(sum);
}

LLMOPS_INLINE float exp_of(float x) {
  float lanes[16];
  store(lanes, exp(set1(x)));
  return lanes[0];
}

// Adds the partial (m, l, a) of a later chunk to row r of `to`.
LLMOPS_INLINE void merge(const Partial& to, int64_t r, float m, float l, const float* a, int64_t wide) {
  float* sum = to.a + r * wide;
  if (to.l[r] == 0) {
    to.m[r] = m;
    to.l[r] = l;
    for (int64_t x = 0; x < wide; x += 16) store(sum + x, load(a + x));
    return;
  }
  const float top = to.m[r] > m ? to.m[r] : m;
  const float keep = exp_of(to.m[r] - top), take = exp_of(m - top);
  to.m[r] = top;
  to.l[r] = __builtin_fmaf(l, take, to.l[r] * keep);
  for (int64_t x = 0; x < wide; x += 16)
    store(sum + x, fma(load(a + x), set1(take), load(sum + x) * set1(keep)));
}

template <class T>
class Forward {
 public:
  Forward(const AttentionArgs& args, const Grouping& g) : args_(args), g_(g), sequences_(sequences_of(args)) {}

  // Walks chunks [first, end) of a task. Partials go to `stored` (one per chunk of the task, from chunk_first on) or,
  // when that is null, are merged in the scratch and written out.
  void run(const Task& task, int64_t first, int64_t end, const Scratch& scratch, float* stored) const {
    pack_queries(task, scratch);
    clear(scratch.block);
    for (int64_t chunk = first; chunk < end; ++chunk) {
      if (stored == nullptr) {
        add_chunk(task, chunk, scratch, scratch.block);
      } else {
        const Partial partial = Partial::at(stored + (chunk - task.chunk_first) * Partial::floats(g_), g_);
        clear(partial);
        add_chunk(task, chunk, scratch, partial);
      }
    }
    if (stored == nullptr) write(task, scratch.block);
  }

  // The second half of a task whose partials were stored.
  void merge_stored(const Task& task, const Scratch& scratch, float* stored) const {
    clear(scratch.block);
    for (int64_t chunk = task.chunk_first; chunk < task.chunk_end; ++chunk) {
      const Partial p = Partial::at(stored + (chunk - task.chunk_first) * Partial::floats(g_), g_);
      for (int64_t r = 0; r < task.q_count * g_.heads; ++r)
        if (p.l[r] != 0) merge(scratch.block, r, p.m[r], p.l[r], p.a + r * g_.wide, g_.wide);
    }
    write(task, scratch.block);
  }

  // Chunks seen by queries [q_first, q_first + q_count) of a sequence.
  Task task_of(int64_t sequence, int64_t kv_head, int64_t block) const {
    const Sequence seq = sequences_[sequence];
    Task t{sequence, kv_head, block * g_.queries, 0, 0, 0};
    t.q_count = std::min(g_.queries, seq.q_count - t.q_first);
    int64_t lo, hi, unused;
    visible(seq, seq.q_pos + t.q_first, args_.window, lo, unused);
    visible(seq, seq.q_pos + t.q_first + t.q_count - 1, args_.window, unused, hi);
    if (lo < hi) {
      t.chunk_first = chunk_of(lo);
      t.chunk_end = chunk_of(hi - 1) + 1;
    }
    return t;
  }

 private:
  void clear(const Partial& p) const { std::fill_n(p.l, g_.rows, 0.0f); }

  void pack_queries(const Task& task, const Scratch& scratch) const {
    const int64_t row = sequences_[task.sequence].q_begin + task.q_first;
    for (int64_t j = 0; j < g_.heads; ++j) {
      const T* q = static_cast<const T*>(args_.q.data) + row * args_.q.stride[0] +
                   (task.kv_head * g_.heads + j) * args_.q.stride[1];
      pack_rows(scratch.q + j * g_.wide, g_.heads * g_.wide, q, args_.q.stride[0], task.q_count, g_.e);
    }
  }

  // The keys that row r of the task sees in a chunk.
  Range keys_of(const Task& task, const Sequence& seq, int64_t r, int64_t chunk) const {
    int64_t lo, hi;
    visible(seq, seq.q_pos + task.q_first + g_.query_of(r), args_.window, lo, hi);
    return within(lo, hi, chunk * kChunk, kChunk);
  }

  // Keys and values of a chunk, in runs of rows that follow each other: blocks of a paged cache begin at multiples of 16.
  void pack_keys(const Task& task, const Sequence& seq, int64_t chunk, Range keys, const Scratch& scratch) const {
    for (Range run = {keys.lo, 0}; run.lo < keys.hi; run.lo = run.hi) {
      run.hi = seq.blocks ? std::min<int32_t>(keys.hi, (run.lo | (kKvBlock - 1)) + 1) : keys.hi;
      const int64_t row = seq.kv_row(chunk * kChunk + run.lo - seq.kv_pos);
      const auto at = [&](const ConstTensorView& view) {
        return static_cast<const T*>(view.data) + row * view.stride[0] + task.kv_head * view.stride[1];
      };
      pack_transposed(scratch.k, at(args_.k), args_.k.stride[0], run, g_.e);
      pack_rows(scratch.v + run.lo * g_.wide, g_.wide, at(args_.v), args_.v.stride[0], run.hi - run.lo, g_.e);
    }
  }

  void add_chunk(const Task& task, int64_t chunk, const Scratch& scratch, const Partial& to) const {
    const Sequence seq = sequences_[task.sequence];
    const int64_t rows = task.q_count * g_.heads;
    const Range keys{keys_of(task, seq, 0, chunk).lo, keys_of(task, seq, rows - 1, chunk).hi};
    if (keys.lo >= keys.hi) return;
    pack_keys(task, seq, chunk, keys, scratch);
    for (int64_t r = 0; r < rows; r += kTileRows) {
      Range seen[kTileRows];
      const int64_t count = std::min<int64_t>(kTileRows, rows - r);
      for (int64_t i = 0; i < count; ++i) seen[i] = keys_of(task, seq, r + i, chunk);
      add_tile(r, count, seen, scratch, to);
    }
  }

  void add_tile(int64_t r, int64_t count, const Range* seen, const Scratch& scratch, const Partial& to) const {
    Range all = seen[0], whole[kTileRows];
    for (int64_t i = 0; i < count; ++i) {
      whole[i] = {0, static_cast<int32_t>(g_.e)};
      all = {std::min(all.lo, seen[i].lo), std::max(all.hi, seen[i].hi)};
    }
    const float* q = scratch.q + r * g_.wide;
    product_tile({q, g_.wide, 1, scratch.k, 16, 16 * g_.e, scratch.scores, kChunk, false}, count, whole, all.lo / 16,
                 (all.hi + 15) / 16);
    float m[kTileRows], l[kTileRows];
    for (int64_t i = 0; i < count; ++i)
      m[i] = mask_scores(scratch.scores + i * kChunk, seen[i], args_.scale, args_.softcap);
    for (int64_t i = 0; i < count; ++i) l[i] = exp_scores(scratch.scores + i * kChunk, seen[i], m[i]);
    product_tile({scratch.scores, kChunk, 1, scratch.v, g_.wide, 16, scratch.tile, g_.wide, false}, count, seen, 0,
                 g_.wide / 16);
    for (int64_t i = 0; i < count; ++i)
      if (seen[i].lo < seen[i].hi) merge(to, r + i, m[i], l[i], scratch.tile + i * g_.wide, g_.wide);
  }

  // m becomes lse. (0 / 0 and log(0) of rows that saw nothing are replaced.)
  void write(const Task& task, const Partial& block) const {
    const int64_t first = sequences_[task.sequence].q_begin + task.q_first, rows = task.q_count * g_.heads;
    for (int64_t r = 0; r < rows; r += 16) {
      const F32x16 l = load(block.l + r), some = log(l) + load(block.m + r);
      store(block.m + r, select(less_equal(l, zero()), set1(-__builtin_inff()), some));
    }
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = first + g_.query_of(r), head = task.kv_head * g_.heads + r - g_.query_of(r) * g_.heads;
      float* a = block.a + r * g_.wide;
      const bool empty = block.l[r] == 0;
      for (int64_t x = 0; x < g_.wide; x += 16) store(a + x, empty ? zero() : load(a + x) / set1(block.l[r]));
      unpack_row(static_cast<T*>(args_.out.data) + row * args_.out.stride[0] + head * args_.out.stride[1], a, g_.e);
      static_cast<float*>(args_.lse.data)[row * args_.lse.stride[0] + head] = block.m[r];
    }
  }

  const AttentionArgs& args_;
  const Grouping g_;
  const Sequences sequences_;
};

// Which task an index means: first[s] is the first index of sequence s. The last blocks of a sequence, which see the
// most keys, come first.
template <class T>
Task task_at(const Forward<T>& forward, const Grouping& g, const Sequences& sequences, const int64_t* first,
             int64_t index) {
  const int64_t s = std::upper_bound(first, first + sequences.count, index) - first - 1;
  const int64_t local = index - first[s];
  return forward.task_of(s, local % g.kv_heads, g.blocks(sequences[s]) - 1 - local / g.kv_heads);
}

template <class T>
Status run(Stream& stream, const AttentionArgs& args) {
  const Grouping g = grouping_of(args);
  const Forward<T> forward(args, g);
  const Sequences sequences = sequences_of(args);
  LLMOPS_TRY(check_sequences(sequences, args.q.dim[0], args.k.dim[0]));
  Pool& pool = stream.device().pool();

  int64_t tasks = 0, chunks = 0;
  for (int64_t s = 0; s < sequences.count; ++s) {
    tasks += g.blocks(sequences[s]) * g.kv_heads;
    chunks = std::max(chunks, sequences[s].kv_count / kChunk + 2);  // a sequence may begin and end within a chunk
  }
  if (tasks == 0) return {};
  const bool stores =
      tasks < 2 * pool.threads() && chunks > 3 && tasks * chunks * Partial::floats(g) <= kPartialFloatsMax;
  const int64_t spans = stores ? std::min(chunks, 4 * pool.threads() / tasks + 1) : 1;

  const int64_t index_floats = round_up_16(2 * sequences.count), scratch_floats = Scratch::floats(g);
  const int64_t stored_floats = stores ? tasks * chunks * Partial::floats(g) : 0;
  LLMOPS_ASSIGN(void* workspace,
                stream.workspace((index_floats + pool.threads() * scratch_floats + stored_floats) * 4));
  int64_t* first = static_cast<int64_t*>(workspace);
  for (int64_t s = 0, next = 0; s < sequences.count; next += g.blocks(sequences[s]) * g.kv_heads, ++s) first[s] = next;
  float* scratch = static_cast<float*>(workspace) + index_floats;
  float* stored = scratch + pool.threads() * scratch_floats;
  const auto stored_of = [&](int64_t task) { return stores ? stored + task * chunks * Partial::floats(g) : nullptr; };

  pool.parallel_for(tasks * spans, [&](int64_t index, int worker) {
    const Task task = task_at(forward, g, sequences, first, index / spans);
    const int64_t span = index % spans, count = task.chunk_end - task.chunk_first;
    forward.run(task, task.chunk_first + count * span / spans, task.chunk_first + count * (span + 1) / spans,
                Scratch::at(scratch + worker * scratch_floats, g), stored_of(index / spans));
  });
  if (!stores) return {};
  pool.parallel_for(tasks, [&](int64_t index, int worker) {
    forward.merge_stored(task_at(forward, g, sequences, first, index),
                         Scratch::at(scratch + worker * scratch_floats, g), stored_of(index));
  });
  return {};
}

}  // namespace

Status attention(Stream& stream, const AttentionArgs& args) {
  return args.q.dtype == DType::bf16 ? run<bf16>(stream, args) : run<float>(stream, args);
}

}  // namespace llmops::LLMOPS_ISA
#include "kernels/cpu/vec_end.h"
