#include "kernels/contract.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

namespace llmops {
namespace {

int64_t elem_bytes(const ConstTensorView& view) { return info(view.dtype).block_bytes; }

// Elements from the first to the last, both included, over axes [from, rank).
int64_t span_elems(const ConstTensorView& view, int from) {
  int64_t last = 0;
  for (int i = from; i < view.rank; ++i) last += (view.dim[i] - 1) * view.stride[i];
  return last + 1;
}

// No two indices reach one element: with axes sorted by stride, each stride is past the span of the smaller ones.
bool self_apart(const ConstTensorView& view) {
  if (view.contiguous()) return true;
  std::vector<int> axes;
  for (int i = 0; i < view.rank; ++i)
    if (view.dim[i] > 1) axes.push_back(i);
  std::sort(axes.begin(), axes.end(), [&](int a, int b) { return view.stride[a] < view.stride[b]; });
  int64_t span = 1;
  for (int axis : axes) {
    if (view.stride[axis] < span) return false;
    span += (view.dim[axis] - 1) * view.stride[axis];
  }
  return true;
}

std::span<const int64_t> dims_of(const ConstTensorView& view) {
  return {view.dim.v, size_t(view.rank)};
}

}  // namespace

std::string text_of(const ConstTensorView& view) {
  std::string text = fmt::format("{} [{}]", info(view.dtype).name, fmt::join(dims_of(view), ","));
  if (!view.contiguous())
    text += fmt::format(" with strides [{}]", fmt::join(std::span(view.stride.v, size_t(view.rank)), ","));
  return text;
}

bool views_equal(const ConstTensorView& a, const ConstTensorView& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; ++i)
    if (a.dim[i] != b.dim[i] || (a.dim[i] > 1 && a.stride[i] != b.stride[i])) return false;
  return true;
}

bool views_overlap(const ConstTensorView& a, const ConstTensorView& b) {
  if (a.elems() == 0 || b.elems() == 0) return false;
  const char* const a0 = static_cast<const char*>(a.data);
  const char* const b0 = static_cast<const char*>(b.data);
  if (a0 + span_elems(a, 0) * elem_bytes(a) <= b0 || b0 + span_elems(b, 0) * elem_bytes(b) <= a0) return false;
  // Slices of the rows of one matrix: equal row strides, and within a row the two intervals are apart.
  if (a.rank < 2 || b.rank < 2) return true;
  const int64_t row = a.stride[0] * elem_bytes(a);
  const int64_t a_bytes = span_elems(a, 1) * elem_bytes(a), b_bytes = span_elems(b, 1) * elem_bytes(b);
  if (row <= 0 || row != b.stride[0] * elem_bytes(b)) return true;
  const int64_t from = ((b0 - a0) % row + row) % row;
  return from < a_bytes || from + b_bytes > row;
}

bool Contract::fail(std::string_view text) {
  if (ok()) error_ = fmt::format("{}: {}", op_, text);
  return false;
}

// "[n=4,d=64]", the sizes that are known; a letter alone may have any size.
std::string Contract::expected(std::string_view axes) const {
  std::string text = "[";
  for (char axis : axes) {
    if (text.size() > 1) text += ',';
    text += axis;
    if (seen_[axis - 'A']) text += fmt::format("={}", sizes_[axis - 'A']);
  }
  return text + "]";
}

bool Contract::check_type(const char* name, const ConstTensorView& view, TypeRule type, std::string_view axes) {
  using Kind = TypeRule::Kind;
  const bool takes_any = type.kind == Kind::any_float || (type.kind == Kind::op_type && !type_seen_);
  if (takes_any && view.dtype != DType::f32 && view.dtype != DType::bf16)
    return fail(fmt::format("{} is {}, expected F32 or BF16", name, text_of(view)));
  if (type.kind == Kind::op_type && !type_seen_) {
    type_ = view.dtype;
    type_seen_ = true;
  }
  const DType want = type.kind == Kind::fixed ? type.dtype : type_;
  if (takes_any || view.dtype == want) return true;
  return fail(fmt::format("{} is {}, expected {} {}", name, text_of(view), info(want).name, expected(axes)));
}

bool Contract::check_shape(const char* name, const ConstTensorView& view, std::string_view axes) {
  bool fits = static_cast<size_t>(view.rank) == axes.size();
  for (int i = 0; fits && i < view.rank; ++i) {
    const int axis = axes[size_t(i)] - 'A';
    fits = view.dim[i] >= 0 && (!seen_[axis] || sizes_[axis] == view.dim[i]);
    if (fits) bind(axes[size_t(i)], view.dim[i]);
  }
  return fits || fail(fmt::format("{} is {}, expected {}", name, text_of(view), expected(axes)));
}

bool Contract::check_memory(const char* name, const ConstTensorView& view, Layout layout, bool output) {
  if (!(view.device == device_))
    return fail(fmt::format("{} is on another device than the stream (cuda index {}, stream {}; -1 is the host)", name,
                            view.device.cuda, device_.cuda));
  if (reinterpret_cast<uintptr_t>(view.data) % uintptr_t(elem_bytes(view)) != 0)
    return fail(fmt::format("{} is not aligned to its {} byte elements", name, elem_bytes(view)));
  if (view.elems() == 0) return true;
  if (layout == Layout::dense && !view.contiguous())
    return fail(fmt::format("{} is {}, expected it dense", name, text_of(view)));
  if (view.rank > 0 && view.dim[view.rank - 1] > 1 && view.stride[view.rank - 1] != 1)
    return fail(fmt::format("{} is {}, expected innermost stride 1", name, text_of(view)));
  for (int i = 0; i < view.rank; ++i)
    if (view.dim[i] > 1 && view.stride[i] < 1)
      return fail(fmt::format("{} is {}, expected strides of at least 1", name, text_of(view)));
  return !output || self_apart(view) ||
         fail(fmt::format("{} is {}: two of its elements share memory", name, text_of(view)));
}

void Contract::add(const char* name, const ConstTensorView& view, TypeRule type, std::string_view axes, Layout layout,
                   bool output) {
  if (view.rank < 0 || view.rank > kRankMax) {
    fail(fmt::format("{} has rank {}, expected 0 to {}", name, view.rank, kRankMax));
    return;
  }
  if (view.present() && operand_count_ < kOperandsMax) operands_[operand_count_++] = {name, view, output};
  if (!ok()) return;
  if (!view.present()) {
    fail(fmt::format("{} is absent, expected {}", name, expected(axes)));
    return;
  }
  if (check_type(name, view, type, axes) && check_shape(name, view, axes)) check_memory(name, view, layout, output);
}

Contract& Contract::in(const char* name, const ConstTensorView& view, TypeRule type, std::string_view axes,
                       Layout layout) {
  add(name, view, type, axes, layout, false);
  return *this;
}
Contract& Contract::out(const char* name, const ConstTensorView& view, TypeRule type, std::string_view axes,
                        Layout layout) {
  add(name, view, type, axes, layout, true);
  return *this;
}
Contract& Contract::maybe_in(const char* name, const ConstTensorView& view, TypeRule type, std::string_view axes,
                             Layout layout) {
  return view.present() ? in(name, view, type, axes, layout) : *this;
}
Contract& Contract::maybe_out(const char* name, const ConstTensorView& view, TypeRule type, std::string_view axes,
                              Layout layout) {
  return view.present() ? out(name, view, type, axes, layout) : *this;
}

Contract& Contract::bind(char axis, int64_t size) {
  seen_[axis - 'A'] = true;
  sizes_[axis - 'A'] = size;
  return *this;
}

Contract& Contract::require(bool holds, std::string_view text) {
  if (!holds) fail(text);
  return *this;
}
Contract& Contract::finite(const char* name, float value) {
  if (!std::isfinite(value)) fail(fmt::format("{} is {}, expected a finite number", name, value));
  return *this;
}
Contract& Contract::aligned(const char* name, const void* data) {
  if (reinterpret_cast<uintptr_t>(data) % 64 != 0) fail(fmt::format("{} is not aligned to 64 bytes", name));
  return *this;
}
Contract& Contract::positive(const char* name, float value) {
  if (!(std::isfinite(value) && value > 0))
    fail(fmt::format("{} is {}, expected a finite number above 0", name, value));
  return *this;
}

Contract& Contract::apart(std::initializer_list<Pair> same_ok) {
  for (int i = 0; ok() && i < operand_count_; ++i) {
    const Operand& a = operands_[i];
    for (int j = 0; a.output && j < operand_count_; ++j) {
      const Operand& b = operands_[j];
      if (j == i || (b.output && j < i) || !views_overlap(a.view, b.view)) continue;
      const bool same = std::any_of(same_ok.begin(), same_ok.end(), [&](const Pair& pair) {
        return (!std::strcmp(pair.output, a.name) && !std::strcmp(pair.other, b.name)) ||
               (!std::strcmp(pair.output, b.name) && !std::strcmp(pair.other, a.name));
      });
      if (same && views_equal(a.view, b.view)) continue;
      fail(fmt::format("{} overlaps {}, expected them {}", a.name, b.name, same ? "apart or the same view" : "apart"));
    }
  }
  return *this;
}

std::string Contract::operands() const {
  std::string text;
  for (int i = 0; i < operand_count_; ++i)
    text += fmt::format("{}{} {}", i == 0 ? "" : ", ", operands_[i].name, text_of(operands_[i].view));
  return text;
}

}  // namespace llmops
