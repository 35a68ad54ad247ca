// Gradients of several parts of one batch.
//
// A batch may hold several virtual shards (train/step.h). Forward and the gradients of activations do not mix rows, so
// all parts share one product; a parameter's gradient sums over rows, and is summed part by part, the parts then as a
// balanced binary tree. This happens tensor by tensor, of a matrix a few rows at a time, so that sums on their way stay
// in the cache and need no second set of gradients. Group 0 alone, the embeddings, has one for each part: with a tied
// head its token table gets two addends, which a part must have added up before it meets another.
#pragma once

#include <array>
#include <vector>

#include "kernels/ops.h"
#include "nn/flat.h"

namespace llmops {

constexpr int kPartsMax = 8;  // each costs a copy of the embeddings' gradients

struct GradParts {
  std::vector<int64_t> begin;    // rows of part i: [begin[i], begin[i + 1]); a power of two of parts
  std::vector<FlatView> embed;   // of each part, group 0 alone; the first is where the sum goes
  std::vector<TensorView> sums;  // f32 [elems]: log2(parts) - 1, for subtrees on their way
  int count() const { return static_cast<int>(begin.size()) - 1; }
};

// Elements that each of GradParts::sums needs: some of the longest rows, which is more than two vectors; and the
// bytes of all that `count` parts need besides the gradients themselves.
int64_t part_sum_elems(const std::vector<Group>& groups);
int64_t part_bytes(const std::vector<Group>& groups, int count);

// Folds the parts [first, first + count) into slot `to`: run(part, slot, accumulate) makes a part's gradient in a slot
// or adds it to what is there (last, so the bits are those of an addition), add(to, from) adds slots. Slot 0 is the
// sum's place, slot i the i-th of GradParts::sums.
template <class Run, class Add>
Status fold_parts(int first, int count, int to, const Run& run, const Add& add) {
  if (count == 1) return run(first, to, false);
  const int half = count / 2;
  LLMOPS_TRY(fold_parts(first, half, to, run, add));
  if (half == 1) return run(first + 1, to, true);
  LLMOPS_TRY(fold_parts(first + half, half, to + 1, run, add));
  return add(to, to + 1);
}

// A parameter's gradient, or two that one op makes, as a slot of fold_parts() has it: the same shapes.
using GradPair = std::array<TensorView, 2>;
GradPair in_slot(const GradParts& parts, const GradPair& place, int slot);
Status add_pair(Stream& stream, const GradPair& to, const GradPair& from);

// dweight[i,o] (+)= a^T b, a [n,i], b [n,o], and the sums over n of a or of b (kernels/ops.h). parts: null when the batch
// is one.
struct WeightGradient {
  ConstTensorView a, b;
  TensorView dweight;
  TensorView a_sums, b_sums;  // optional
  bool accumulate = false;
};
Status weight_gradient(Stream& stream, const GradParts* parts, const WeightGradient& args);
// Adds group 0 of all parts into the first's.
Status fold_embed(Stream& stream, const GradParts& parts);

// run(first row, rows, gradients, accumulate) for the rows of a batch or of each part, n in all.
template <class Run>
Status part_gradients(Stream& stream, const GradParts* parts, int64_t n, const GradPair& place, bool accumulate,
                       const Run& run) {
  if (!parts) return run(int64_t{0}, n, place, accumulate);
  return fold_parts(
      0, parts->count(), 0,
      [&](int part, int slot, bool add) {
        const int64_t begin = parts->begin[part];
        return run(begin, parts->begin[part + 1] - begin, in_slot(*parts, place, slot), add);
      },
      [&](int to, int from) { return add_pair(stream, in_slot(*parts, place, to), in_slot(*parts, place, from)); });
}

}  // namespace llmops
