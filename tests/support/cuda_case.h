// The kernel tests' harness for the cuda table: each tensor of a case is mirrored in device memory, with its strides and
// between guards, and the result is held against the ref table within bounds and against the cpu table bit by bit.
#pragma once

#include "support/kernel_case.h"
#include "support/simt.h"

namespace llmops::test {

// Those of the shim. A GPU has its own, so there every case runs once.
inline const std::vector<simt::Schedule>& schedules() {
  static const std::vector<simt::Schedule> all = {
      {simt::Order::forward, 0}, {simt::Order::reverse, 0}, {simt::Order::seeded, 1}, {simt::Order::seeded, 2}};
  static const std::vector<simt::Schedule> first = {all.front()};
  return simt::emulated() ? all : first;
}

inline const bool kDeviceIsThere = (simt::set_device_count(1), true);

inline std::unique_ptr<Device> open_cuda_device() {
  auto device = Device::open_cuda(0);
  REQUIRE_MESSAGE(device.ok(), device.status().message());
  return device.take();
}

// A GuardedTensor on a device, its first element on 16 bytes: rows without gaps take the path of whole vectors where
// their size allows. On the shim it is an allocation of its elements alone, beside which lie the guards of the device;
// under AddressSanitizer they find a read as well. A GPU has none, so there the tensor's guard bands come along.
class Mirror {
 public:
  Mirror(Device& device, const GuardedTensor& host) : bytes_(host.contents()), view_(host.view()) {
    const size_t first = host.first_byte();
    if (simt::emulated()) begin_ = first, end_ = host.end_byte();
    else end_ = bytes_.size();
    const auto shift = int64_t((kAlign - (first - begin_) % kAlign) % kAlign);
    buffer_ = device.alloc(shift + int64_t(end_ - begin_), Category::transient).take();
    start_ = buffer_.as<char>() + shift;
    device.compute().copy(start_, bytes_.data() + begin_, int64_t(end_ - begin_));
    view_.data = start_ + (first - begin_);
    view_.device = device.id();
  }
  const TensorView& view() const { return view_; }
  // What is on the device now; after sync().
  void enqueue_download(Device& device) {
    device.compute().copy(bytes_.data() + begin_, start_, int64_t(end_ - begin_));
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }  // GuardedTensor::contents() with it

 private:
  static constexpr size_t kAlign = 16;
  std::vector<uint8_t> bytes_;
  size_t begin_ = 0, end_ = 0;  // of bytes_, what is on the device
  Buffer buffer_;
  char* start_;
  TensorView view_;
};

// A tensor of a case; with a bound it is an output.
struct CaseTensor {
  GuardedTensor* tensor;
  std::optional<Bound> bound = {};
};

// Whose bits the outputs have: the cpu table's, or those of the first schedule (an op whose order of sums is its own).
enum class Bits : uint8_t { of_cpu, own };

// Runs op on ref, on cpu and on cuda under every schedule of `orders`. make(views) makes the args from the tensors' views.
template <class Args, class Make>
std::string cuda_against_others(OpFunction<Args> op, const std::vector<CaseTensor>& tensors, Make make,
                                const std::vector<simt::Schedule>& orders = schedules(), Bits bits = Bits::of_cpu) {
  std::vector<TensorView> host_views;
  std::vector<std::vector<uint8_t>> start;
  for (const CaseTensor& t : tensors) host_views.push_back(t.tensor->view()), start.push_back(t.tensor->contents());
  const auto outputs = [&](Device& device) {
    std::vector<std::unique_ptr<GuardedTensor>> copies;
    const std::string error = run_on(device, op, make(host_views));
    for (size_t i = 0; i < tensors.size(); ++i) {
      copies.push_back(std::make_unique<GuardedTensor>(*tensors[i].tensor));
      tensors[i].tensor->restore(start[i]);
    }
    if (!error.empty()) FAIL(error);
    return copies;
  };
  const auto want = outputs(reference_device());
  auto same = outputs(*devices().front().device);
  bool first = true;
  for (const simt::Schedule schedule : orders) {
    simt::set_schedule(schedule);
    auto device = open_cuda_device();
    std::vector<std::unique_ptr<Mirror>> mirrors;
    std::vector<TensorView> views;
    for (const CaseTensor& t : tensors) {
      mirrors.push_back(std::make_unique<Mirror>(*device, *t.tensor));
      views.push_back(mirrors.back()->view());
    }
    const Status called = op(device->compute(), make(views));
    for (auto& mirror : mirrors) mirror->enqueue_download(*device);
    const Status done = device->compute().sync();
    std::string error = !called.ok() ? called.message() : done.message();
    for (size_t i = 0; i < tensors.size() && error.empty(); ++i) {
      GuardedTensor got(*tensors[i].tensor);
      got.restore(mirrors[i]->bytes());
      error = got.broken_guard();
      if (!error.empty()) got.restore(start[i]);  // said once
      if (error.empty() && tensors[i].bound) error = difference(got, *want[i], *tensors[i].bound);
      if (first && bits == Bits::own && tensors[i].bound) same[i]->restore(mirrors[i]->bytes());
      if (error.empty()) error = difference_bits(got, *same[i]);
      if (!error.empty()) error = fmt::format("tensor {}: {}", i, error);
    }
    first = false;
    mirrors.clear();
    if (!error.empty()) return fmt::format("cuda, order {} {}: {}", int(schedule.order), schedule.seed, error);
  }
  return "";
}

}  // namespace llmops::test
