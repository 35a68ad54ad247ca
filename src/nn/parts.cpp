#include "nn/parts.h"

#include <algorithm>

#include "base/checked.h"
#include "nn/linear.h"

namespace llmops {
namespace {

constexpr int64_t kSumElems = 1 << 18;  // 1 MiB: with its addend a core's share stays in L2
constexpr int64_t kRowsUnit = 48;       // whole tiles of every matmul
constexpr int64_t kAlignElems = 16;

Status product(Stream& stream, const WeightGradient& args) {
  return matmul(stream, {.a = args.a,
                         .b = {.data = args.b, .pack = Pack::plain, .scales = {}, .group = 0},
                         .out = args.dweight,
                         .bias = {},
                         .residual = {},
                         .aux = {},
                         .act_backward = {},
                         .a_sums = args.a_sums,
                         .b_sums = args.b_sums,
                         .act = Activation::none,
                         .a_trans = true,
                         .b_trans = false,
                         .accumulate = args.accumulate});
}

// The elements from `begin` on in the shape of a dense view.
TensorView in_shape_of(const TensorView& like, const TensorView& sums, int64_t begin) {
  TensorView view = like;
  view.data = static_cast<float*>(sums.data) + begin;
  return view;
}

}  // namespace

int64_t part_sum_elems(const std::vector<Group>& groups) {
  int64_t elems = kSumElems;
  for (const Group& group : groups)
    for (const Param& param : group.params) elems = std::max(elems, kRowsUnit * param.shape.back());
  return elems;
}

int64_t part_bytes(const std::vector<Group>& groups, int count) {
  int64_t elems = (count - 1) * groups[0].elems;
  for (int i = 2; i < count; i *= 2) elems += part_sum_elems(groups);
  return elems * 4;
}

GradPair in_slot(const GradParts& parts, const GradPair& place, int slot) {
  if (slot == 0) return place;
  GradPair pair;
  int64_t begin = 0;
  for (size_t i = 0; i < place.size() && place[i].present(); ++i) {
    pair[i] = in_shape_of(place[i], parts.sums[slot - 1], begin);
    begin += round_up(place[i].elems(), kAlignElems);
  }
  return pair;
}

Status add_pair(Stream& stream, const GradPair& to, const GradPair& from) {
  for (size_t i = 0; i < to.size(); ++i)
    if (to[i].present()) LLMOPS_TRY(add(stream, {.a = to[i], .b = from[i], .out = to[i]}));
  return {};
}

Status weight_gradient(Stream& stream, const GradParts* parts, const WeightGradient& args) {
  if (!parts) return product(stream, args);
  const int64_t height = args.dweight.dim[0];
  const int64_t at_once = std::max<int64_t>(1, kSumElems / args.dweight.dim[1] / kRowsUnit) * kRowsUnit;
  for (int64_t row = 0; row < height; row += at_once) {
    const int64_t count = std::min(at_once, height - row);
    const auto run = [&](int64_t begin, int64_t n, const GradPair& out, bool add) {
      return product(stream, {columns(rows(args.a, begin, n), row, count), rows(args.b, begin, n), out[0], {}, {}, add});
    };
    LLMOPS_TRY(part_gradients(stream, parts, args.a.dim[0], {rows(args.dweight, row, count)}, args.accumulate, run));
  }
  const TensorView sums = args.a_sums.present() ? args.a_sums : args.b_sums;
  if (!sums.present()) return {};
  const ConstTensorView& of = args.a_sums.present() ? args.a : args.b;
  return part_gradients(stream, parts, of.dim[0], {sums}, args.accumulate,
                        [&](int64_t begin, int64_t n, const GradPair& out, bool add) {
                          return bias_backward(stream, {.dout = rows(of, begin, n), .dbias = out[0], .accumulate = add});
                        });
}

Status fold_embed(Stream& stream, const GradParts& parts) {
  const int64_t elems = parts.embed[0].group_offset(1);
  for (int64_t begin = 0; begin < elems; begin += kSumElems) {
    const int64_t count = std::min(kSumElems, elems - begin);
    const auto part = [&](int i) { return parts.embed[i].range(0, begin, count); };
    for (int apart = 1; apart < parts.count(); apart *= 2)
      for (int i = 0; i < parts.count(); i += 2 * apart)
        LLMOPS_TRY(add(stream, {.a = part(i), .b = part(i + apart), .out = part(i)}));
  }
  return {};
}

}  // namespace llmops
