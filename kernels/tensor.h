// Non-owning views of device memory. POD: they are copied into op arguments and recorded by value.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "base/dtype.h"

namespace llmops {

constexpr int kRankMax = 5;

struct Dims {
  int64_t v[kRankMax] = {};
  int64_t& operator[](int i) { return v[i]; }
  int64_t operator[](int i) const { return v[i]; }
};

// Memory of the host (cpu and ref tables) or of CUDA device `index`.
struct DeviceId {
  int8_t cuda = -1;  // -1: host
  friend bool operator==(DeviceId, DeviceId) = default;
};

// stride is in elements. The innermost stride is 1; each op's contract names the outer axes that may be strided.
// data == nullptr means "absent" where an op has an optional tensor.
template <class Void>
struct BasicView {
  Void* data = nullptr;
  Dims dim, stride;
  int8_t rank = 0;
  DType dtype = DType::f32;
  DeviceId device;

  bool present() const { return data != nullptr; }
  int64_t elems() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dim[i];
    return n;
  }
  bool contiguous() const {
    int64_t expect = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (dim[i] != 1 && stride[i] != expect) return false;
      expect *= dim[i];
    }
    return true;
  }
  operator BasicView<const void>() const { return {data, dim, stride, rank, dtype, device}; }
};
using TensorView = BasicView<void>;
using ConstTensorView = BasicView<const void>;

// A dense row-major view.
template <class Void>
BasicView<Void> dense_view(Void* data, DType dtype, std::initializer_list<int64_t> dims, DeviceId device = {}) {
  BasicView<Void> view;
  view.data = data;
  view.dtype = dtype;
  view.device = device;
  for (int64_t d : dims) view.dim[view.rank++] = d;
  int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.stride[i] = stride;
    stride *= view.dim[i];
  }
  return view;
}

// Rows [begin, begin + count) of the outermost axis.
template <class Void>
BasicView<Void> rows(BasicView<Void> view, int64_t begin, int64_t count) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  const DTypeInfo& t = info(view.dtype);
  view.data = static_cast<Byte*>(view.data) + begin * view.stride[0] / t.block_elems * t.block_bytes;
  view.dim[0] = count;
  return view;
}

// How the weight of a matmul is stored. `plain` is a dense matrix; `panels` is what matmul_pack() writes: the layout of
// the CPU kernel, made once per load (inference) or once per step (training).
enum class Pack : uint8_t { plain, panels };

struct WeightView {
  ConstTensorView data;
  Pack pack = Pack::plain;
  ConstTensorView scales;  // quantised weights: one scale per group; absent otherwise
  int group = 0;
};

}  // namespace llmops
