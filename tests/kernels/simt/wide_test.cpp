// Offsets past 2^31 elements: tensors whose rows lie that far apart, in an address range of which only the pages that are
// touched exist. An index that is an int somewhere lands in another page, and the values are wrong.
#include <sys/mman.h>

#include "support/cuda_case.h"

namespace llmops::test {
namespace {

constexpr int64_t kFar = (int64_t{1} << 31) + 8;  // elements

// Host memory, which kernels of the shim reach; a device's in name.
class Sparse {
 public:
  explicit Sparse(int64_t bytes) : bytes_(size_t(bytes)) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(data_ != MAP_FAILED);
  }
  ~Sparse() { munmap(data_, bytes_); }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  TensorView view(DType t, std::initializer_list<int64_t> dims, DeviceId device) const { return dense_view(data_, t, dims, device); }
  // The same with rows that are kFar apart.
  TensorView far_rows(DType t, std::initializer_list<int64_t> dims, DeviceId device) const {
    TensorView v = view(t, dims, device);
    v.stride[0] = kFar;
    return v;
  }
  bf16& at(int64_t i) const { return static_cast<bf16*>(data_)[i]; }
  float& f32_at(int64_t i) const { return static_cast<float*>(data_)[i]; }

 private:
  void* data_;
  size_t bytes_;
};

bf16 value(int64_t i) { return to_bf16(float(i % 31) - 15); }

TEST_CASE("cuda: embedding and its gradient, a table of more than 2^31 elements") {
  const auto device = open_cuda_device();
  Stream& stream = device->compute();
  const int64_t v = 70'000, d = 32'768, last = v - 1;
  REQUIRE(v * d > kFar);
  Sparse table(v * d * 2), gradient(v * d * 4), small(1 << 20);
  for (int64_t i = 0; i < d; ++i) table.at(last * d + i) = value(i);
  const auto ids = small.view(DType::i32, {1}, device->id());
  *static_cast<int32_t*>(ids.data) = int32_t(last);
  TensorView out = small.view(DType::bf16, {1, d}, device->id());
  out.data = &small.at(4096);
  REQUIRE(embedding(stream, {ids, {}, table.view(DType::bf16, {v, d}, device->id()), {}, out}).ok());
  REQUIRE(embedding_backward(stream, {ids, {}, out, gradient.view(DType::f32, {v, d}, device->id()), {}, true, false}).ok());
  REQUIRE(stream.sync().message() == "");
  for (int64_t i = 0; i < d; ++i) {
    REQUIRE(small.at(4096 + i).bits == value(i).bits);
    REQUIRE(gradient.f32_at(last * d + i) == to_f32(value(i)));
  }
}

TEST_CASE("cuda: rms_norm, rope and kv_store over rows that are 2^31 elements apart") {
  const auto device = open_cuda_device();
  Stream& stream = device->compute();
  const int64_t e = 16, last = 2 * kFar;
  const auto dims = {int64_t{3}, int64_t{1}, e};
  Sparse x((last + e) * 2), y((last + e) * 2), z((last + e) * 2), small(4096);
  for (int64_t i = 0; i < e; ++i) x.at(last + i) = value(i);
  const auto id = device->id();
  TensorView ids = small.view(DType::i32, {3}, id), weight = small.view(DType::bf16, {e}, id), angles = small.view(DType::f32, {1, 8, 2}, id);
  weight.data = &small.at(512), angles.data = &small.f32_at(512);
  for (int64_t i = 0; i < e; ++i) small.at(512 + i) = to_bf16(2);
  for (int64_t i = 0; i < 8; ++i) small.f32_at(512 + 2 * i) = -1;  // half a turn: cos -1, sin 0
  REQUIRE(rope(stream, {x.far_rows(DType::bf16, dims, id), ids, angles, y.far_rows(DType::bf16, dims, id), false, false}).ok());
  REQUIRE(rms_norm(stream, {x.far_rows(DType::bf16, dims, id), {}, weight, {}, z.far_rows(DType::bf16, dims, id), {}, 1e-5f}).ok());
  REQUIRE(stream.sync().message() == "");
  double squares = 0;
  for (int64_t i = 0; i < e; ++i) squares += double(to_f32(value(i))) * double(to_f32(value(i)));
  for (int64_t i = 0; i < e; ++i) {
    const double v = double(to_f32(value(i)));
    REQUIRE(double(to_f32(y.at(last + i))) == -v);
    REQUIRE(double(to_f32(z.at(last + i))) == doctest::Approx(2 * v / std::sqrt(squares / double(e))).epsilon(0.01));
  }
  auto* rows_of_cache = static_cast<int32_t*>(ids.data);
  rows_of_cache[0] = 1, rows_of_cache[1] = 0, rows_of_cache[2] = 2;
  REQUIRE(kv_store(stream, {x.far_rows(DType::bf16, dims, id), x.far_rows(DType::bf16, dims, id), ids,
                            y.far_rows(DType::bf16, dims, id), z.far_rows(DType::bf16, dims, id)}).ok());
  REQUIRE(stream.sync().message() == "");
  for (int64_t i = 0; i < e; ++i) {
    REQUIRE(y.at(last + i).bits == value(i).bits);
    REQUIRE(z.at(last + i).bits == value(i).bits);
  }
  TensorView positions = ids;
  positions.data = rows_of_cache + 8;  // all 0
  Sparse q((last + e) * 2);
  for (int64_t i = 0; i < e; ++i) q.at(last + i) = value(i);
  REQUIRE(kv_store(stream, {x.far_rows(DType::bf16, dims, id), x.far_rows(DType::bf16, dims, id), ids,
                            y.far_rows(DType::bf16, dims, id), z.far_rows(DType::bf16, dims, id),
                            q.far_rows(DType::bf16, dims, id), positions, angles, false}).ok());
  REQUIRE(stream.sync().message() == "");
  for (int64_t i = 0; i < e; ++i) {
    REQUIRE(double(to_f32(y.at(last + i))) == -double(to_f32(value(i))));
    REQUIRE(double(to_f32(q.at(last + i))) == -double(to_f32(value(i))));
  }
}

}  // namespace
}  // namespace llmops::test
