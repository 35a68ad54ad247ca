// Attention, backward. The definition, with s and the rows (queries outermost) as in the forward pass:
//   p_ij = exp(s_ij - lse_i), D_i = sum over e of dout_i * out_i, dp_ij = fma chain over e of dout_i * v_j,
//   ds_ij = p_ij * (dp_ij - D_i) * scale (* 1 - tanh^2 with a softcap);
//   dq_i = sum over chunks of 64 positions of the fma chain over the chunk's keys of ds_ij * k_j;
//   dk_j, dv_j = sum over blocks of rows of the fma chain over the block's rows of ds_ij * q_i, p_ij * dout_i;
// all ascending, masked pairs left out. One walk over the pairs (block, chunk) of a (sequence, KV head) gives all three
// with five products per pair. When that makes too few tasks for the threads, a block's task gives its dq and a chunk's
// task its dk and dv: seven products, the same sums in the same order, so the same bits.
#include <algorithm>

#include "kernels/cpu/entries.h"
#include "kernels/cpu/sequences.h"

#include "kernels/cpu/vec.h"
#include "kernels/math.h"
#include "kernels/cpu/attention_tile.h"

namespace llmops::LLMOPS_ISA {
namespace {

constexpr int64_t kChunk = 64;              // positions per chunk: part of the definition
constexpr int64_t kScoreRow = kChunk + 16;  // row stride of p and ds: 5 cache lines, to use all cache sets

// What a task computes: blocks [block_first, block_end) of queries against chunks [chunk_first, chunk_end) of keys.
struct Task {
  int64_t sequence, kv_head, block_first, block_end, chunk_first, chunk_end;
  bool dq, dkv;
};

struct Scratch {
  float *q, *dout, *dq, *lse, *d;  // of one block: [rows, wide] and [rows]
  float *k, *k_rows, *v;           // of one chunk: transposed, [kChunk, wide], transposed
  float *p, *ds;                   // [rows, kScoreRow]
  float *dk, *dv;                  // of all chunks of the task: [chunks * kChunk, wide]

  static int64_t floats(const Grouping& g, int64_t chunks) {
    return 3 * g.rows * g.wide + 2 * round_up_16(g.rows) + 3 * kChunk * g.wide + 2 * g.rows * kScoreRow +
           2 * chunks * kChunk * g.wide;
  }
  static Scratch at(float* base, const Grouping& g, int64_t chunks) {
    const auto take = [&base](int64_t floats) {
      float* p = base;
      base += floats;
      return p;
    };
    const int64_t rows = g.rows * g.wide, stats = round_up_16(g.rows), keys = kChunk * g.wide;
    return {take(rows), take(rows), take(rows), take(stats), take(stats), take(keys), take(keys), take(keys),
            take(g.rows * kScoreRow), take(g.rows * kScoreRow), take(chunks * keys), take(chunks * keys)};
  }
};

template <class T>
class Backward {
 public:
  Backward(const AttentionBackwardArgs& args, const Grouping& g) : args_(args), g_(g), sequences_(sequences_of(args)) {}

  void run(const Task& task, const Scratch& s) const {
    const Sequence seq = sequences_[task.sequence];
    if (task.dkv) {
      const int64_t floats = (task.chunk_end - task.chunk_first) * kChunk * g_.wide;
      std::fill_n(s.dk, floats, 0.0f);
      std::fill_n(s.dv, floats, 0.0f);
    }
    int64_t packed = INT64_MIN;  // the chunk in the scratch
    for (int64_t block = task.block_first; block < task.block_end; ++block) {
      Pair pair{task.kv_head, block * g_.queries, std::min(g_.queries, seq.q_count - block * g_.queries), 0, {}};
      pack_block(seq, pair, s);
      for (pair.chunk = task.chunk_first; pair.chunk < task.chunk_end; ++pair.chunk) {
        pair.keys = {keys_of(seq, pair, 0).lo, keys_of(seq, pair, pair.q_count - 1).hi};
        if (pair.keys.lo >= pair.keys.hi) continue;
        if (packed != pair.chunk) pack_chunk(seq, pair, s);
        packed = pair.chunk;
        weigh(seq, pair, s);
        if (task.dq) add_dq(seq, pair, s);
        if (task.dkv) add_dkv(seq, pair, s, (pair.chunk - task.chunk_first) * kChunk * g_.wide);
      }
      if (task.dq) write_dq(seq, pair, s);
    }
    if (task.dkv) write_dkv(seq, task, s);
  }

 private:
  // A block of queries [q_first, q_first + q_count) and the keys of a chunk that some of them see.
  struct Pair {
    int64_t kv_head, q_first, q_count, chunk;
    Range keys;
  };

  static const T* at(const ConstTensorView& x, int64_t row, int64_t head) {
    return static_cast<const T*>(x.data) + row * x.stride[0] + head * x.stride[1];
  }
  static T* at(const TensorView& x, int64_t row, int64_t head) {
    return static_cast<T*>(x.data) + row * x.stride[0] + head * x.stride[1];
  }

  // The keys of the chunk that query i of the block sees, and the queries of the block that see key j of the chunk.
  Range keys_of(const Sequence& seq, const Pair& pair, int64_t i) const {
    int64_t lo, hi;
    visible(seq, seq.q_pos + pair.q_first + i, args_.window, lo, hi);
    return within(lo, hi, pair.chunk * kChunk, kChunk);
  }
  Range queries_of(const Sequence& seq, const Pair& pair, int64_t j) const {
    const int64_t key = pair.chunk * kChunk + j;
    const int64_t end = args_.window > 0 ? key + args_.window : INT64_MAX / 2;
    return within(key, end, seq.q_pos + pair.q_first, pair.q_count);
  }

  void pack_block(const Sequence& seq, const Pair& pair, const Scratch& s) const {
    const int64_t first = seq.q_begin + pair.q_first, step = g_.heads * g_.wide;
    for (int64_t j = 0; j < g_.heads; ++j) {
      const int64_t head = pair.kv_head * g_.heads + j;
      pack_rows(s.q + j * g_.wide, step, at(args_.q, first, head), args_.q.stride[0], pair.q_count, g_.e);
      pack_rows(s.dout + j * g_.wide, step, at(args_.dout, first, head), args_.dout.stride[0], pair.q_count, g_.e);
      for (int64_t i = 0; i < pair.q_count; ++i) {
        const int64_t r = i * g_.heads + j;
        s.lse[r] = static_cast<const float*>(args_.lse.data)[(first + i) * args_.lse.stride[0] + head];
        fetch_row(at(args_.out, first + i, head) + kRowsAhead * args_.out.stride[0], g_.e);
        s.d[r] = dot(s.dout + r * g_.wide, at(args_.out, first + i, head));
      }
    }
    std::fill_n(s.dq, g_.rows * g_.wide, 0.0f);
  }

  // 16 lanes, folded; a is padded with 0.
  float dot(const float* a, const T* b) const {
    F32x16 sum = zero();
    int64_t x = 0;
    for (; x + 16 <= g_.e; x += 16) sum = fma(load(a + x), load(b + x), sum);
    if (x < g_.e) sum = fma(load(a + x), load_n(b + x, static_cast<int>(g_.e - x)), sum);
    return fold_sum(sum);
  }

  // All keys of the chunk that the sequence has, for the blocks to come.
  void pack_chunk(const Sequence& seq, const Pair& pair, const Scratch& s) const {
    const Range keys = within(seq.kv_pos, seq.kv_pos + seq.kv_count, pair.chunk * kChunk, kChunk);
    const int64_t row = seq.kv_begin + pair.chunk * kChunk + keys.lo - seq.kv_pos;
    const T *k = at(args_.k, row, pair.kv_head), *v = at(args_.v, row, pair.kv_head);
    pack_transposed(s.k, k, args_.k.stride[0], keys, g_.e);
    pack_transposed(s.v, v, args_.v.stride[0], keys, g_.e);
    pack_rows(s.k_rows + keys.lo * g_.wide, g_.wide, k, args_.k.stride[0], keys.hi - keys.lo, g_.e);
  }

  // p and ds of the pair. Entries of masked keys hold anything: the sums leave them out.
  void weigh(const Sequence& seq, const Pair& pair, const Scratch& s) const {
    const int64_t rows = pair.q_count * g_.heads;
    Range whole[kTileRows];
    std::fill_n(whole, kTileRows, Range{0, static_cast<int32_t>(g_.e)});
    for (int64_t r = 0; r < rows; r += kTileRows) {
      const int64_t count = std::min<int64_t>(kTileRows, rows - r);
      const int64_t lo = keys_of(seq, pair, g_.query_of(r)).lo / 16;
      const int64_t hi = (keys_of(seq, pair, g_.query_of(r + count - 1)).hi + 15) / 16;
      if (lo >= hi) continue;
      float *p = s.p + r * kScoreRow, *ds = s.ds + r * kScoreRow;
      product_tile({s.q + r * g_.wide, g_.wide, 1, s.k, 16, 16 * g_.e, p, kScoreRow, false}, count, whole, lo, hi);
      product_tile({s.dout + r * g_.wide, g_.wide, 1, s.v, 16, 16 * g_.e, ds, kScoreRow, false}, count, whole, lo, hi);
      for (int64_t i = 0; i < count; ++i)
        weigh_row(p + i * kScoreRow, ds + i * kScoreRow, lo * 16, hi * 16, s.lse[r + i], s.d[r + i]);
    }
  }

  // In: p = q.k, ds = dout.v. Out: p and ds as defined above.
  void weigh_row(float* p, float* ds, int64_t lo, int64_t hi, float lse, float d) const {
    const F32x16 scale = set1(args_.scale), cap = set1(args_.softcap);
    for (int64_t j = lo; j < hi; j += 16) {
      F32x16 s = load(p + j) * scale, slope = scale;
      if (args_.softcap > 0) {
        const F32x16 t = tanh(s / cap);
        s = t * cap;
        slope = (set1(1.0f) - t * t) * scale;
      }
      const F32x16 weight = exp(s - set1(lse));
      store(p + j, weight);
      store(ds + j, weight * (load(ds + j) - set1(d)) * slope);
    }
  }

  void add_dq(const Sequence& seq, const Pair& pair, const Scratch& s) const {
    const int64_t rows = pair.q_count * g_.heads;
    for (int64_t r = 0; r < rows; r += kTileRows) {
      Range seen[kTileRows];
      const int64_t count = std::min<int64_t>(kTileRows, rows - r);
      for (int64_t i = 0; i < count; ++i) seen[i] = keys_of(seq, pair, g_.query_of(r + i));
      product_tile({s.ds + r * kScoreRow, kScoreRow, 1, s.k_rows, g_.wide, 16, s.dq + r * g_.wide, g_.wide, true},
                   count, seen, 0, g_.wide / 16);
    }
  }

  // Rows of these products are keys, the chains run over the block's rows.
  void add_dkv(const Sequence& seq, const Pair& pair, const Scratch& s, int64_t offset) const {
    for (int64_t j = pair.keys.lo; j < pair.keys.hi; j += kTileRows) {
      Range seen[kTileRows];
      const int64_t count = std::min<int64_t>(kTileRows, pair.keys.hi - j);
      for (int64_t i = 0; i < count; ++i) {
        seen[i] = queries_of(seq, pair, j + i);
        seen[i] = {static_cast<int32_t>(seen[i].lo * g_.heads), static_cast<int32_t>(seen[i].hi * g_.heads)};
      }
      const int64_t to = offset + j * g_.wide;
      product_tile({s.p + j, 1, kScoreRow, s.dout, g_.wide, 16, s.dv + to, g_.wide, true}, count, seen, 0,
                   g_.wide / 16);
      product_tile({s.ds + j, 1, kScoreRow, s.q, g_.wide, 16, s.dk + to, g_.wide, true}, count, seen, 0, g_.wide / 16);
    }
  }

  void write_dq(const Sequence& seq, const Pair& pair, const Scratch& s) const {
    for (int64_t r = 0; r < pair.q_count * g_.heads; ++r)
      unpack_row(at(args_.dq, seq.q_begin + pair.q_first + r / g_.heads, pair.kv_head * g_.heads + r % g_.heads),
                 s.dq + r * g_.wide, g_.e);
  }

  void write_dkv(const Sequence& seq, const Task& task, const Scratch& s) const {
    const int64_t first = task.chunk_first * kChunk - seq.kv_pos;  // KV row of the sequence at the start of dk and dv
    const int64_t end = std::min(task.chunk_end * kChunk - seq.kv_pos, seq.kv_count);
    for (int64_t j = std::max<int64_t>(first, 0); j < end; ++j) {
      unpack_row(at(args_.dk, seq.kv_begin + j, task.kv_head), s.dk + (j - first) * g_.wide, g_.e);
      unpack_row(at(args_.dv, seq.kv_begin + j, task.kv_head), s.dv + (j - first) * g_.wide, g_.e);
    }
  }

  const AttentionBackwardArgs& args_;
  const Grouping g_;
  const Sequences sequences_;
};

// How the work is cut.
struct Cut {
  Grouping g;
  Sequences sequences;
  bool whole;                // a task is a whole (sequence, KV head)
  const int64_t* first;      // [sequences] index of the first task of each; the total in front of the scratch

  int64_t chunk_first(const Sequence& seq) const { return seq.kv_pos >> 6; }
  int64_t chunks(const Sequence& seq) const {
    return seq.kv_count == 0 ? 0 : ((seq.kv_pos + seq.kv_count - 1) >> 6) + 1 - chunk_first(seq);
  }
  int64_t tasks(const Sequence& seq) const { return g.kv_heads * (whole ? 1 : chunks(seq) + g.blocks(seq)); }

  Task task(int64_t index) const {
    const int64_t s = std::upper_bound(first, first + sequences.count, index) - first - 1;
    const Sequence seq = sequences[s];
    const int64_t part = (index - first[s]) / g.kv_heads, all = chunks(seq), begin = chunk_first(seq);
    Task t{s, (index - first[s]) % g.kv_heads, 0, g.blocks(seq), begin, begin + all, true, true};
    if (whole) return t;
    if (part < all) {
      t.chunk_first = begin + part;
      t.chunk_end = t.chunk_first + 1;
      t.dq = false;
    } else {
      t.block_first = part - all;
      t.block_end = t.block_first + 1;
      t.dkv = false;
    }
    return t;
  }
};
static_assert(kChunk == 1 << 6);

// Seven products instead of five pay when the threads would otherwise wait for the last whole task: when that takes
// more than 7/5 of a fair share.
bool whole_tasks(const Cut& cut, int64_t threads) {
  int64_t total = 0, largest = 0, count = 0;
  for (int64_t s = 0; s < cut.sequences.count; ++s) {
    const Sequence seq = cut.sequences[s];
    const int64_t cost = seq.q_count * seq.kv_count;
    total += cost * cut.g.kv_heads;
    largest = std::max(largest, cost);
    count += cut.g.kv_heads;
  }
  const int64_t rounds = (count + threads - 1) / threads;
  const int64_t last = std::max(largest, count > 0 ? total / count * rounds : 0);
  return last * threads * 5 <= total * 7;
}

// Rows of no sequence have a gradient of 0.
template <class T>
void clear_rows(const TensorView& x, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row)
    for (int64_t head = 0; head < x.dim[1]; ++head)
      std::fill_n(static_cast<T*>(x.data) + row * x.stride[0] + head * x.stride[1], x.dim[2], T{});
}

template <class T>
void clear_unowned(const AttentionBackwardArgs& args, const Sequences& sequences) {
  const auto q_rows = [&](int64_t s) {
    return std::pair(sequences[s].q_begin, sequences[s].q_begin + sequences[s].q_count);
  };
  const auto kv_rows = [&](int64_t s) {
    return std::pair(sequences[s].kv_begin, sequences[s].kv_begin + sequences[s].kv_count);
  };
  for_unowned(sequences.count, args.q.dim[0], q_rows,
              [&](int64_t begin, int64_t end) { clear_rows<T>(args.dq, begin, end); });
  for_unowned(sequences.count, args.k.dim[0], kv_rows, [&](int64_t begin, int64_t end) {
    clear_rows<T>(args.dk, begin, end);
    clear_rows<T>(args.dv, begin, end);
  });
}

template <class T>
Status run(Stream& stream, const AttentionBackwardArgs& args) {
  const Sequences sequences = sequences_of(args);
  LLMOPS_TRY(check_sequences(sequences, args.q.dim[0], args.k.dim[0]));
  LLMOPS_TRY(check_disjoint(sequences));
  clear_unowned<T>(args, sequences);
  Pool& pool = stream.device().pool();
  Cut cut{grouping_of(args), sequences, false, nullptr};
  cut.whole = whole_tasks(cut, pool.threads());
  int64_t tasks = 0, chunks = 1;  // chunks: the most of one task
  for (int64_t s = 0; s < sequences.count; ++s) {
    tasks += cut.tasks(sequences[s]);
    if (cut.whole) chunks = std::max(chunks, cut.chunks(sequences[s]));
  }
  const int64_t index_floats = round_up_16(2 * sequences.count);
  const int64_t scratch_floats = Scratch::floats(cut.g, chunks);
  LLMOPS_ASSIGN(void* workspace, stream.workspace((index_floats + pool.threads() * scratch_floats) * 4));
  int64_t* first = static_cast<int64_t*>(workspace);
  for (int64_t s = 0, next = 0; s < sequences.count; next += cut.tasks(sequences[s]), ++s) first[s] = next;
  cut.first = first;
  float* scratch = static_cast<float*>(workspace) + index_floats;
  const Backward<T> backward(args, cut.g);
  pool.parallel_for(tasks, [&](int64_t index, int worker) {
    backward.run(cut.task(index), Scratch::at(scratch + worker * scratch_floats, cut.g, chunks));
  });
  return {};
}

}  // namespace

Status attention_backward(Stream& stream, const AttentionBackwardArgs& args) {
  return args.q.dtype == DType::bf16 ? run<bf16>(stream, args) : run<float>(stream, args);
}

}  // namespace llmops::LLMOPS_ISA
#include "kernels/cpu/vec_end.h"
