// The harness of the kernel tests: tensors between guard bands, the devices to run on, and comparators that NaN cannot
// pass.
//
//   GuardedTensor x = random_tensor(dtype, {3, 65}, 1, padded_strides({3, 65}, 7));
//   GuardedTensor out(dtype, {3, 65});
//   CHECK(against_reference(gelu, GeluArgs{x, out, Activation::gelu_tanh}, {{&out, {1e-6, 2e-6}}}) == "");
//
// runs the op on the ref table and on every device of devices(), compares, and compares the devices with each other bit
// by bit. Guard bands are checked by the destructor of each tensor.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernels/ops.h"

namespace llmops::test {

using Dimensions = std::vector<int64_t>;

inline Dimensions dense_strides(const Dimensions& dims) {
  Dimensions strides(dims.size());
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0; stride *= dims[i]) strides[i] = stride;
  return strides;
}

// Row-major strides with `gap` unused elements after each step of every axis but the innermost.
inline Dimensions padded_strides(const Dimensions& dims, int64_t gap) {
  Dimensions strides(dims.size());
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0; stride = stride * dims[i] + gap) strides[i] = stride;
  return strides;
}

// A host tensor. Before it, after it and in its stride gaps every byte is 0xff: a NaN when it is read as a float, and a
// broken guard when it was written. Elements start as 0xff too ("never written"). The first element is aligned to its
// own size only, as the contracts allow; bytes (u8: packed panels) are aligned to 64, as theirs ask.
class GuardedTensor {
 public:
  static constexpr size_t kGuardBytes = 256;  // before the first element and after the last

  GuardedTensor(DType dtype, Dimensions dims, Dimensions strides = {}) {
    if (strides.empty()) strides = dense_strides(dims);
    int64_t last = 0;  // index of the last element; -1 when there is none
    for (size_t i = 0; i < dims.size(); ++i) last += (dims[i] - 1) * strides[i];
    if (std::count(dims.begin(), dims.end(), 0) > 0) last = -1;
    view_.dtype = dtype;
    bytes_ = 2 * kGuardBytes + size_t(last + 2) * elem_bytes();
    lines_.resize(bytes_ / sizeof(Line) + 1);
    std::memset(raw(), 0xff, bytes_);
    view_.rank = int8_t(dims.size());
    for (size_t i = 0; i < dims.size(); ++i) view_.dim[int(i)] = dims[i], view_.stride[int(i)] = strides[i];
    view_.data = raw() + first_byte();
  }
  GuardedTensor(const GuardedTensor& other) : lines_(other.lines_), bytes_(other.bytes_), view_(other.view_) {
    view_.data = raw() + first_byte();
  }
  GuardedTensor& operator=(const GuardedTensor&) = delete;
  ~GuardedTensor() {
    const std::string broken = broken_guard();
    if (!broken.empty()) FAIL_CHECK(broken);
  }

  const TensorView& view() const { return view_; }
  operator TensorView() const { return view_; }
  operator ConstTensorView() const { return view_; }
  DType dtype() const { return view_.dtype; }
  int64_t elems() const { return view_.elems(); }

  // Element i in row-major order of the dims, whatever the strides.
  double at(int64_t i) const {
    const void* p = address(i);
    switch (view_.dtype) {
      case DType::f32: return load<float>(p);
      case DType::bf16: return to_f32(load<bf16>(p));
      case DType::f64: return load<double>(p);
      case DType::i32: return load<int32_t>(p);
      case DType::i64: return double(load<int64_t>(p));
      case DType::u8: return load<uint8_t>(p);
      default: return std::numeric_limits<double>::quiet_NaN();
    }
  }
  void set(int64_t i, double x) {
    void* p = address(i);
    switch (view_.dtype) {
      case DType::f32: return store(p, float(x));
      case DType::bf16: return store(p, to_bf16(float(x)));
      case DType::f64: return store(p, x);
      case DType::i32: return store(p, int32_t(x));
      case DType::i64: return store(p, int64_t(x));
      case DType::u8: return store(p, uint8_t(x));
      default: FAIL("GuardedTensor::set: dtype without a rule");
    }
  }
  void fill(double x) {
    for (int64_t i = 0; i < elems(); ++i) set(i, x);
  }
  uint64_t bits(int64_t i) const {
    uint64_t bits = 0;
    std::memcpy(&bits, address(i), elem_bytes());
    return bits;
  }
  bool written(int64_t i) const {
    const uint64_t ones = elem_bytes() == 8 ? ~uint64_t{0} : (uint64_t{1} << 8 * elem_bytes()) - 1;
    return is_integer() || bits(i) != ones;
  }
  std::string index(int64_t i) const {
    Dimensions at(size_t(view_.rank));
    for (size_t axis = at.size(); axis-- > 0; i /= view_.dim[int(axis)]) at[axis] = i % view_.dim[int(axis)];
    return fmt::format("[{}]", fmt::join(at, ","));
  }
  // Elements and guards, to run again from the same start.
  std::vector<uint8_t> contents() const { return {raw(), raw() + bytes_}; }
  void restore(const std::vector<uint8_t>& contents) { std::memcpy(raw(), contents.data(), bytes_); }
  // Of contents(): the first element begins there, and the last one ends there.
  size_t first_byte() const { return kGuardBytes + (view_.dtype == DType::u8 ? 0 : elem_bytes()); }
  size_t end_byte() const { return first_byte() + bytes_ - 2 * kGuardBytes - elem_bytes(); }

  // "" or where a byte that is no element was written.
  std::string broken_guard() const {
    std::vector<bool> used(bytes_);
    for (int64_t i = 0; i < elems(); ++i) {
      const size_t at = size_t(static_cast<const uint8_t*>(address(i)) - raw());
      std::fill_n(used.begin() + std::ptrdiff_t(at), elem_bytes(), true);
    }
    const int64_t first = int64_t(first_byte());
    for (size_t i = 0; i < bytes_; ++i)
      if (!used[i] && raw()[i] != 0xff)
        return fmt::format("guard byte written at element {} of a tensor {} [{}]",
                           (int64_t(i) - first) / int64_t(elem_bytes()), info(view_.dtype).name,
                           fmt::join(view_.dim.v, view_.dim.v + view_.rank, ","));
    return "";
  }

 private:
  struct alignas(64) Line {
    uint8_t bytes[64];
  };
  uint8_t* raw() { return lines_.data()->bytes; }
  const uint8_t* raw() const { return lines_.data()->bytes; }
  template <class T>
  static T load(const void* p) {
    T x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  template <class T>
  static void store(void* p, T x) { std::memcpy(p, &x, sizeof x); }
  size_t elem_bytes() const { return size_t(info(view_.dtype).block_bytes); }
  bool is_integer() const { return view_.dtype >= DType::i64; }
  void* address(int64_t i) const {
    int64_t at = 0;
    for (int axis = view_.rank - 1; axis >= 0; i /= view_.dim[axis], --axis)
      at += i % view_.dim[axis] * view_.stride[axis];
    return static_cast<char*>(view_.data) + at * int64_t(elem_bytes());
  }

  std::vector<Line> lines_;
  size_t bytes_ = 0;
  TensorView view_;
};

// Uniform in [shift - scale, shift + scale), element i a function of (seed, i).
inline GuardedTensor random_tensor(DType dtype, const Dimensions& dims, uint64_t seed, Dimensions strides = {},
                                   double scale = 1, double shift = 0) {
  GuardedTensor x(dtype, dims, std::move(strides));
  for (int64_t i = 0; i < x.elems(); ++i) {
    const Philox draw = philox4x32(seed, uint64_t(i), 0);
    x.set(i, shift + scale * (2 * uniform_f64(draw.v[0], draw.v[1]) - 1));
  }
  return x;
}

// Integers in [low, high).
inline GuardedTensor random_ints(DType dtype, int64_t count, int64_t low, int64_t high, uint64_t seed) {
  GuardedTensor x(dtype, {count});
  for (int64_t i = 0; i < count; ++i) {
    const int64_t draw = philox4x32(seed, uint64_t(i), 1).v[0];
    x.set(i, double(low + draw % (high - low)));
  }
  return x;
}

template <class T>
GuardedTensor tensor_of(DType dtype, const std::vector<T>& values) {
  GuardedTensor x(dtype, {int64_t(values.size())});
  for (size_t i = 0; i < values.size(); ++i) x.set(int64_t(i), double(values[i]));
  return x;
}

// |got - want| <= abs + rel * |want|.
struct Bound {
  double abs, rel;
};

// "" when every element of got is within bound_at(i) of want, or both are NaN or the same infinity. Else the first
// mismatch. An element that nobody wrote is a mismatch even when both sides agree on it.
template <class BoundAt>
std::string difference_at(const GuardedTensor& got, const GuardedTensor& want, BoundAt bound_at) {
  if (got.elems() != want.elems()) return fmt::format("{} elements against {}", got.elems(), want.elems());
  std::string first;
  int64_t bad = 0;
  for (int64_t i = 0; i < got.elems(); ++i) {
    const double g = got.at(i), w = want.at(i), allowed = bound_at(i);
    const bool same = g == w || (std::isnan(g) && std::isnan(w));
    const bool close = std::abs(g - w) <= allowed;  // false when either is NaN
    const bool written = got.written(i) && want.written(i);
    if (written && (same || close)) continue;
    if (bad++ == 0)
      first = fmt::format("at {}: got {:.9g}, want {:.9g}, off by {:.3g}, allowed {:.3g}{}", got.index(i), g, w,
                          std::abs(g - w), allowed, written ? "" : " (never written)");
  }
  return bad == 0 ? "" : fmt::format("{} ({} of {} elements differ)", first, bad, got.elems());
}
inline std::string difference(const GuardedTensor& got, const GuardedTensor& want, Bound bound) {
  return difference_at(got, want, [&](int64_t i) { return bound.abs + bound.rel * std::abs(want.at(i)); });
}
// Bit by bit; NaNs must agree in their bits too.
inline std::string difference_bits(const GuardedTensor& got, const GuardedTensor& want) {
  if (got.elems() != want.elems()) return fmt::format("{} elements against {}", got.elems(), want.elems());
  for (int64_t i = 0; i < got.elems(); ++i)
    if (got.bits(i) != want.bits(i))
      return fmt::format("at {}: bits {:x} ({:.9g}) against {:x} ({:.9g})", got.index(i), got.bits(i), got.at(i),
                         want.bits(i), want.at(i));
  return "";
}

struct TestDevice {
  std::string name;
  std::unique_ptr<Device> device;
};
inline std::unique_ptr<Device> open_device(const Device::Options& options) {
  auto device = Device::open_cpu(options);
  REQUIRE_MESSAGE(device.ok(), device.status().message());
  return device.take();
}
inline Device& reference_device() {
  static const std::unique_ptr<Device> device = open_device({.reference = true});
  return *device;
}
// The cpu table on every instruction set that runs here, with 1 to 4 threads, inline and deferred. Made once.
inline const std::vector<TestDevice>& devices() {
  static const std::vector<TestDevice> all = [] {
    std::vector<TestDevice> made;
    const auto add = [&](Isa isa, int threads, uint64_t seed) {
      if (!isa_runs(isa)) return;
      made.push_back({fmt::format("{} x{}{}", name_of(isa), threads, seed ? fmt::format(" deferred {}", seed) : ""),
                      open_device({.threads = threads, .isa = isa, .deferred_seed = seed})});
    };
    for (int threads = 1; threads <= 4; ++threads) add(isa_best(), threads, 0);
    for (Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
      add(isa, 1, 0);
      add(isa, 3, 0);
    }
    for (uint64_t seed = 1; seed <= 2; ++seed) add(isa_best(), 2, seed);
    return made;
  }();
  return all;
}

template <class Args>
using OpFunction = Status (*)(Stream&, const Args&);

// One op, start to end; the text of the error, or "".
template <class Args>
std::string run_on(Device& device, OpFunction<Args> op, const Args& args) {
  Status status = op(device.compute(), args);
  if (status.ok()) status = device.compute().sync();
  return status.message();
}

struct Output {
  GuardedTensor* tensor;  // a view of it is in the args
  Bound bound;
};

// Runs op(args) on the ref table and on each device, from the same start contents of the outputs. "" or the first
// finding: an error, an output out of bounds of the reference, or a device whose bits differ from the first one's.
// `bits` is false for an op that may differ between instruction sets (BF16 dot products): then only devices of one Isa
// are compared.
template <class Args>
std::string against_reference(OpFunction<Args> op, const std::type_identity_t<Args>& args,
                              const std::vector<Output>& outputs, bool bits = true) {
  std::vector<std::vector<uint8_t>> start, want;
  for (const Output& o : outputs) start.push_back(o.tensor->contents());
  std::string error = run_on(reference_device(), op, args);
  if (!error.empty()) return "ref: " + error;
  std::vector<std::unique_ptr<GuardedTensor>> reference;
  for (const Output& o : outputs) reference.push_back(std::make_unique<GuardedTensor>(*o.tensor));
  std::vector<std::pair<Isa, std::vector<std::unique_ptr<GuardedTensor>>>> firsts;  // one per class of equal bits
  for (const TestDevice& d : devices()) {
    for (size_t i = 0; i < outputs.size(); ++i) outputs[i].tensor->restore(start[i]);
    error = run_on(*d.device, op, args);
    const Isa isa = d.device->isa();
    auto first = firsts.begin();
    while (first != firsts.end() && !bits && first->first != isa) ++first;
    const bool is_first = first == firsts.end();
    if (is_first) first = firsts.emplace(first, isa, std::vector<std::unique_ptr<GuardedTensor>>{});
    for (size_t i = 0; error.empty() && i < outputs.size(); ++i) {
      const GuardedTensor& got = *outputs[i].tensor;
      error = difference(got, *reference[i], outputs[i].bound);
      if (is_first) first->second.push_back(std::make_unique<GuardedTensor>(got));
      if (error.empty() && !is_first) error = difference_bits(got, *first->second[i]);
      if (!error.empty()) error = fmt::format("output {}: {}", i, error);
    }
    if (!error.empty()) return d.name + ": " + error;
  }
  return "";
}

}  // namespace llmops::test
