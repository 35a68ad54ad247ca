// The op list: one Args struct and one contract each. `ref`, `cpu` and `cuda` are three equal tables of implementations.
//
// Axes: b batch, t time, n = rows (tokens), d model, h query heads, k KV heads, e head dim, v vocab, f ffn, s sequences.
// Args are trivially copyable and own everything by value. Fields have no defaults that change the mathematics; an absent
// optional tensor has data == nullptr. "T" is f32 or bf16, the same for all tensors marked T; sums and statistics are f32.
//
// Determinism, the contract of every table entry of one device:
//  - a row's result does not depend on the other rows, their number, or the thread count;
//  - sums along a row: 16 virtual f32 lanes (element i goes to lane i % 16, ascending), folded 8, 4, 2, 1;
//  - sums over rows (weight gradients of norms, bias gradients): blocks of 64 rows ascending, then a balanced binary tree;
//  - matmul: out[m,n] is one ascending chain of fma over each block of 512 k, block sums added ascending, then the epilogue;
//  - exp, tanh, log, erf: our own polynomials (kernels/math.h), the same text for every device.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/runtime.h"
#include "kernels/tensor.h"

namespace llmops {

// out[n,d] T = table[ids[n], d] T (+ pos_table[positions[n], d]). ids outside [0, v) are an error of the stream.
struct EmbeddingArgs {
  ConstTensorView ids;        // i32 [n]
  ConstTensorView positions;  // i32 [n]; absent with pos_table
  ConstTensorView table;      // T [v,d]
  ConstTensorView pos_table;  // T [p,d]; optional
  TensorView out;             // T [n,d]
};
// dtable[v,d] f32 += sum over n with ids[n] == v of dout[n,d], ascending in n; the same for dpos_table. With `accumulate`
// false the whole table is overwritten (rows without a token become 0). The row frozen_id gets no gradient (torch's padding_idx).
struct EmbeddingBackwardArgs {
  ConstTensorView ids;        // i32 [n]
  ConstTensorView positions;  // i32 [n]; absent with dpos_table
  ConstTensorView dout;       // T [n,d]
  TensorView dtable;          // f32 [v,d]
  TensorView dpos_table;      // f32 [p,d]; optional
  bool accumulate;            // for dtable
  bool accumulate_pos;        // for dpos_table
  int32_t frozen_id = -1;     // -1: none
};

// out[n,d] = (x - mean) * rstd * weight + bias, with x = residual + delta when `delta` is present (then also written to
// `sum`: one pass for the residual addition and the norm). mean and rstd [n] f32 are kept for backward.
struct LayerNormArgs {
  ConstTensorView x;       // T [n,d]
  ConstTensorView delta;   // T [n,d]; optional
  ConstTensorView weight;  // T [d]
  ConstTensorView bias;    // T [d]; optional
  TensorView sum;          // T [n,d]; present if and only if delta is
  TensorView out;          // T [n,d]
  TensorView mean, rstd;   // f32 [n]; optional (inference)
  float eps;
};
// dx[n,d] = gradient through the norm (+ dresidual when present: the gradient that reaches x past the norm).
// dweight, dbias f32 [d]: overwritten, or added to with `accumulate`.
struct LayerNormBackwardArgs {
  ConstTensorView dout;       // T [n,d]
  ConstTensorView x;          // T [n,d]: the normed input (`sum` where delta was present)
  ConstTensorView weight;     // T [d]
  ConstTensorView mean, rstd; // f32 [n]
  ConstTensorView dresidual;  // T [n,d]; optional; may be dx
  TensorView dx;              // T [n,d]; may alias dout
  TensorView dweight, dbias;  // f32 [d]; dbias optional
  bool accumulate;
};

// out[n,d] = x * rstd * weight, rstd = 1 / sqrt(mean_d(x^2) + eps); delta and sum as in LayerNormArgs.
// Rows may be strided, and x may be [n,h,d] with one weight [d] for all heads (QK-norm): then rstd is [n,h].
struct RmsNormArgs {
  ConstTensorView x;
  ConstTensorView delta;
  ConstTensorView weight;
  TensorView sum;
  TensorView out;   // may alias x
  TensorView rstd;  // f32; optional
  float eps;
};
struct RmsNormBackwardArgs {
  ConstTensorView dout;
  ConstTensorView x;
  ConstTensorView weight;
  ConstTensorView rstd;
  ConstTensorView dresidual;
  TensorView dx;       // may alias dout
  TensorView dweight;  // f32 [d]
  bool accumulate;
};

enum class Activation : uint8_t { none, gelu_tanh, gelu_erf };

// out[m,n] (+)= act(op(a)[m,k] * op(b)[k,n] + bias[n]) + residual[m,n].
//   a is [m,k], or [k,m] with a_trans; b is [n,k] (the orientation of a torch Linear), or [k,n] with b_trans == false:
//   b_trans says that b is stored [n,k]. Rows of a, b, out, residual and aux may be strided.
//   accumulate: out is read and added to last (weight gradients). Excludes an activation and a residual.
//   aux [m,n] T: with act != none, receives the value before the activation (needed by backward); optional.
//   act_backward [m,n] T: out = (a*b) * act'(act_backward) elementwise; the fused gradient of the activation.
//   a_sums [m], b_sums [n] f32: (+)= sums over k of a stored [k,m], of b stored [k,n], as out is overwritten or added to.
//   At most one of them: the bias gradient, where the product is a weight gradient and a or b the gradient of the layer's out.
// dtypes: a and b equal (f32 or bf16); out f32 or bf16; bias, residual, aux, act_backward have the dtype of a.
struct MatmulArgs {
  ConstTensorView a;
  WeightView b;
  TensorView out;
  ConstTensorView bias;          // optional
  ConstTensorView residual;      // optional
  TensorView aux;                // optional
  ConstTensorView act_backward;  // optional
  TensorView a_sums = {}, b_sums = {};  // optional
  Activation act;
  bool a_trans;
  bool b_trans;
  bool accumulate;
};
// Bytes of matmul_pack()'s output for a b of logical shape [k,n], and the packing itself.
int64_t matmul_pack_bytes(DType dtype, int64_t k, int64_t n);
struct MatmulPackArgs {
  ConstTensorView b;  // [n,k] with b_trans, else [k,n]
  TensorView out;     // u8 [matmul_pack_bytes], 64-byte aligned
  bool b_trans;
};

// dbias[n] f32 (+)= sum over m of dout[m,n].
struct BiasBackwardArgs {
  ConstTensorView dout;  // T [m,n]
  TensorView dbias;      // f32 [n]
  bool accumulate;
};
// The sums that a matmul makes on the side, for tables that do them in a pass of their own. Absent: dbias is.
inline BiasBackwardArgs sums_of(const MatmulArgs& a) {
  return a.a_sums.present() ? BiasBackwardArgs{a.a, a.a_sums, a.accumulate}
                            : BiasBackwardArgs{a.b.data, a.b_sums, a.accumulate};
}

// Rotates pairs of x[n,h,e] by the angle of positions[n]: pairs (i, i + r/2), or (2i, 2i+1) when interleaved, over the first
// r = 2 * cos_sin.dim[1] elements of a head; the rest is copied. `inverse` rotates back (the backward pass).
struct RopeArgs {
  ConstTensorView x;          // T [n,h,e], rows and heads may be strided
  ConstTensorView positions;  // i32 [n]
  ConstTensorView cos_sin;    // f32 [p, r/2, 2]
  TensorView out;             // T [n,h,e]; may be x
  bool interleaved;
  bool inverse;
};

// Ragged causal attention with grouped queries: query head j reads KV head j / (h / k). Sequence s owns query rows
// [q_begin[s], q_begin[s+1]) at absolute positions q_pos0[s] + i, and KV rows [kv_begin[s], kv_begin[s] + kv_len[s]) at
// positions kv_pos0[s] + j: packed batches, document masks, chunked prefill and a contiguous KV cache (kv_begin[s] = s * capacity)
// are the same call. Key j is seen from query i if pos_j <= pos_i and (window == 0 or pos_j > pos_i - window). A query that
// sees nothing gives out = 0, lse = -inf. Memory is linear in t. KV is walked in chunks of 256 at absolute positions and
// partials merge ascending, so chunked prefill and the cache do not change bits.
// A paged cache has block_table in place of kv_begin: k and v are a pool of blocks of 16 rows, and KV row j of sequence s is
// row block_table[s, j / 16] * 16 + j % 16 of it. m and kv_pos0 are then multiples of 16, so that a ring drops whole blocks.
// Entries behind kv_len are not read. The bits are those of a contiguous cache.
// kv_max is an upper bound of every kv_len, for a device whose lengths the host cannot see: the work is cut by it. It
// changes no bits. A sequence with more is an error of the stream.
struct AttentionArgs {
  ConstTensorView q;        // T [n,h,e]; rows and heads may be strided
  ConstTensorView k, v;     // T [m,k,e]; separate strides
  TensorView out;           // T [n,h,e]
  TensorView lse;           // f32 [n,h]: logsumexp of the scaled scores
  ConstTensorView q_begin;  // i32 [s+1]
  ConstTensorView kv_begin, kv_len, q_pos0, kv_pos0;  // i32 [s]; kv_begin absent with block_table
  float scale;
  float softcap;   // scores = softcap * tanh(scores / softcap); 0: none
  int32_t window;  // 0: none
  ConstTensorView block_table;  // i32 [s,w]; optional
  int64_t kv_max = 0;           // 0: m, or what block_table has room for
};
constexpr int64_t kKvBlock = 16;  // rows of a block of a paged cache
// dq, dk, dv are overwritten; may be strided (slices of one fused gradient).
struct AttentionBackwardArgs {
  ConstTensorView q, k, v, out, dout;
  ConstTensorView lse;
  ConstTensorView q_begin, kv_begin, kv_len, q_pos0, kv_pos0;
  TensorView dq, dk, dv;
  float scale;
  float softcap;
  int32_t window;
};

// out[n,f] = silu(x[n, 0:f]) * x[n, f:2f].
struct SwigluArgs {
  ConstTensorView x;  // T [n,2f]: gate, then up
  TensorView out;     // T [n,f]
};
struct SwigluBackwardArgs {
  ConstTensorView x;     // T [n,2f]
  ConstTensorView dout;  // T [n,f]
  TensorView dx;         // T [n,2f]; may be x
};

// out = act(x); dx = dout * act'(x). (The fused forms are in MatmulArgs.)
struct GeluArgs {
  ConstTensorView x;
  TensorView out;
  Activation act;
};
struct GeluBackwardArgs {
  ConstTensorView x, dout;
  TensorView dx;
  Activation act;
};

// out[i] = a[i] + b[i], T, any shape, contiguous. out may be a or b.
struct AddArgs {
  ConstTensorView a, b;
  TensorView out;
};
// out[i] = x[i] converted (f32 <-> bf16, round to nearest even), contiguous.
struct CastArgs {
  ConstTensorView x;
  TensorView out;
};

// losses[n] f32 = logsumexp(logits[n, 0:vocab]) - logits[n, target], 0 where target < 0 (ignored). Columns from `vocab` on are
// padding: they take no part and their gradient is 0. With `dlogits` present: dlogits[n,v] = (softmax - onehot) * scale, in
// the same pass; dlogits may be logits.
struct CrossEntropyArgs {
  ConstTensorView logits;   // T [n,v]
  ConstTensorView targets;  // i32 [n]
  TensorView losses;        // f32 [n]
  TensorView dlogits;       // T [n,v]; optional
  int64_t vocab;            // true vocabulary, <= v
  float scale;              // 1 / (valid tokens of the whole batch)
};

// sums[i] f64 = sum of x^2 over block i of 4096 elements (the last may be short); ascending f64 over 16 lanes, folded.
// A block's sum is finite if and only if all its elements are.
struct SquareSumsArgs {
  ConstTensorView x;  // f32 [n]
  TensorView sums;    // f64 [ceil(n / 4096)]
};
constexpr int64_t kSquareSumBlock = 4096;

// From the block sums of the whole gradient, added up in f64 over 16 lanes ascending, folded: control[0] = norm, control[1] =
// clip scale (clip / norm if norm > clip and clip > 0, else 1), control[2] = 1 when all is finite, else 0, control[3] = index
// of the first block that is not (else -1).
struct ClipScaleArgs {
  ConstTensorView sums;  // f64 [blocks]
  TensorView control;    // f32 [4]
  float clip;            // <= 0: no clipping
};

// Decoupled AdamW on a contiguous range (Loshchilov & Hutter 2019; torch.optim.AdamW):
//   g = grad * control[1]; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2
//   param -= lr * ((m / (1 - b1^step)) / (sqrt(v / (1 - b2^step)) + eps) + weight_decay * param)
// Nothing changes when control[2] == 0. `param` is the f32 master; `param_bf16`, when present, receives it rounded: to nearest
// even, or `stochastic`: up with the probability of what lies above the lower neighbour, so that small updates are not lost
// on average. Element i draws 16 bits: with e = first_element + i, half word e % 8, low half first, of
// philox4x32(rounding_key, e / 8, step). A model's element has the same bits in any range and on any rank.
struct AdamwArgs {
  TensorView param;         // f32 [n]
  TensorView m, v;          // f32 [n]
  ConstTensorView grad;     // f32 [n]
  TensorView param_bf16;    // bf16 [n]; optional
  ConstTensorView control;  // f32 [4], see ClipScaleArgs
  float lr, beta1, beta2, eps, weight_decay;
  int64_t step;               // 1-based
  bool stochastic;            // needs param_bf16
  int64_t rounding_key;
  int64_t first_element;      // of the range within the model; a multiple of 8
};

// ids[n] i32 = next token of each row of logits. temperature[n] f32: 0 = greedy (first of equal maxima). Else token i weighs
// w[i] = e^((logit[i] - max) / temperature). Kept are the top_k[n] largest (0 = all) and of these the fewest largest whose
// weights reach top_p[n] of the kept sum (1 = all); ties in a cut go to the lower id. With u = uniform_f64(v[0], v[1]) of
// philox4x32(key[n], position[n], 0), the id is the first kept one, ascending, where the running sum of w exceeds u * the
// sum of all kept. NaN or +inf logits, temperature < 0, top_k < 0 or top_p outside [0, 1] are errors of the stream.
struct SampleArgs {
  ConstTensorView logits;       // f32 [n,v]
  ConstTensorView temperature;  // f32 [n]
  ConstTensorView top_k;        // i32 [n]
  ConstTensorView top_p;        // f32 [n]
  ConstTensorView key;          // i64 [n]
  ConstTensorView position;     // i64 [n]
  TensorView ids;               // i32 [n]
  int64_t vocab;                // columns from vocab on are never drawn
};

// Row rows[i] of the caches = row i of k and v: new keys and values enter a KV cache. With cos_sin it is also `rope`,
// of k on its way and of q in place, with the bits of both ops one after the other.
struct KvStoreArgs {
  ConstTensorView k, v;         // T [n,k,e], rows strided
  ConstTensorView rows;         // i32 [n]
  TensorView k_cache, v_cache;  // T [m,k,e]
  TensorView q;                 // T [n,h,e]; these are present together or not at all
  ConstTensorView positions;    // i32 [n]
  ConstTensorView cos_sin;      // f32 [p, r/2, 2]
  bool interleaved = false;
};

// out[0] f64 (+)= sum of x f32 [n]: f64 over 16 lanes ascending, folded.
struct SumArgs {
  ConstTensorView x;
  TensorView out;  // f64 [1]
  bool accumulate;
};

// name, Args
#define LLMOPS_OPS(X)                               \
  X(embedding, EmbeddingArgs)                       \
  X(embedding_backward, EmbeddingBackwardArgs)      \
  X(layer_norm, LayerNormArgs)                      \
  X(layer_norm_backward, LayerNormBackwardArgs)     \
  X(rms_norm, RmsNormArgs)                          \
  X(rms_norm_backward, RmsNormBackwardArgs)         \
  X(matmul, MatmulArgs)                             \
  X(matmul_pack, MatmulPackArgs)                    \
  X(bias_backward, BiasBackwardArgs)                \
  X(rope, RopeArgs)                                 \
  X(attention, AttentionArgs)                       \
  X(attention_backward, AttentionBackwardArgs)      \
  X(swiglu, SwigluArgs)                             \
  X(swiglu_backward, SwigluBackwardArgs)            \
  X(gelu, GeluArgs)                                 \
  X(gelu_backward, GeluBackwardArgs)                \
  X(add, AddArgs)                                   \
  X(cast, CastArgs)                                 \
  X(cross_entropy, CrossEntropyArgs)                \
  X(square_sums, SquareSumsArgs)                    \
  X(clip_scale, ClipScaleArgs)                      \
  X(adamw, AdamwArgs)                               \
  X(sample, SampleArgs)                             \
  X(kv_store, KvStoreArgs)                          \
  X(sum, SumArgs)

// An implementation. `run` executes on the stream's device and may use stream.workspace(); null = not supported by the table.
template <class Args>
struct Op {
  Status (*run)(Stream& stream, const Args& args) = nullptr;
};

struct OpTable {
  std::string_view name;  // "ref", "cpu", "cuda"
#define X(op, Args) Op<Args> op;
  LLMOPS_OPS(X)
#undef X
};

// The calls that everybody uses: check the contract once, then enqueue the table's entry. The returned Status is the
// contract's; an error of the work itself comes from stream.sync().
#define X(op, Args)                            \
  static_assert(std::is_trivially_copyable_v<Args>); \
  Status op(Stream& stream, const Args& args);
LLMOPS_OPS(X)
#undef X

}  // namespace llmops
