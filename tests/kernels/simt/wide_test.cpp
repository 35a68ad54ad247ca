// Offsets past 2^31 elements: tensors whose rows lie that far apart, in an address range of which only the pages that are
// touched exist. An index that is an int somewhere lands in another page, and the values are wrong.
// The contracts of layer_norm, bias_backward, swiglu, gelu, add, cast, cross_entropy and sample take dense tensors only:
// there, such an offset comes with as many elements, too many to run here.
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

// The tensors of a call, near or far: with random elements, whose rows lie side by side or kFar apart.
class Tensors {
 public:
  Tensors(bool far, DeviceId device) : far_(far), device_(device) {}
  TensorView rows(DType t, std::initializer_list<int64_t> dims) { return add(t, dims, far_); }
  TensorView dense(DType t, std::initializer_list<int64_t> dims) { return add(t, dims, false); }
  TensorView ints(std::initializer_list<int32_t> values) {
    TensorView v = dense(DType::i32, {int64_t(values.size())});
    std::copy(values.begin(), values.end(), static_cast<int32_t*>(v.data));
    return v;
  }
  std::vector<GuardedTensor> contents() const {
    std::vector<GuardedTensor> all;
    for (const TensorView& v : views_) all.push_back(to_host(v));
    return all;
  }

 private:
  static int64_t elem_bytes(const TensorView& v) { return info(v.dtype).block_bytes; }
  static char* address(const TensorView& v, int64_t i) {
    int64_t at = 0;
    for (int axis = v.rank - 1; axis >= 0; i /= v.dim[axis], --axis) at += i % v.dim[axis] * v.stride[axis];
    return static_cast<char*>(v.data) + at * elem_bytes(v);
  }
  static GuardedTensor to_host(const TensorView& v) {
    GuardedTensor host(v.dtype, {v.dim.v, v.dim.v + v.rank});
    for (int64_t i = 0; i < v.elems(); ++i)
      std::memcpy(address(host, i), address(v, i), size_t(elem_bytes(v)));
    return host;
  }
  TensorView add(DType t, std::initializer_list<int64_t> dims, bool far) {
    const int64_t rows = *dims.begin();
    memory_.push_back(std::make_unique<Sparse>(far ? (rows * kFar + 4096) * info(t).block_bytes : 1 << 16));
    TensorView v = far ? memory_.back()->far_rows(t, dims, device_) : memory_.back()->view(t, dims, device_);
    if (t == DType::f32 || t == DType::bf16) {
      const GuardedTensor random = random_tensor(t, dims, memory_.size());
      for (int64_t i = 0; i < v.elems(); ++i)
        std::memcpy(address(v, i), address(random, i), size_t(elem_bytes(v)));
    }
    views_.push_back(v);
    return v;
  }

  bool far_;
  DeviceId device_;
  std::vector<std::unique_ptr<Sparse>> memory_;
  std::vector<TensorView> views_;
};

// make(tensors) makes the args of a call. Far rows change no bit of any of its tensors.
template <class Args, class Make>
void check_far(OpFunction<Args> op, const Make& make) {
  const auto device = open_cuda_device();
  Tensors near(false, device->id()), far(true, device->id());
  for (Tensors* tensors : {&near, &far}) {
    const Args args = make(*tensors);
    REQUIRE(op(device->compute(), args).message() == "");
    REQUIRE(device->compute().sync().message() == "");
  }
  const std::vector<GuardedTensor> got = far.contents(), want = near.contents();
  for (size_t i = 0; i < got.size(); ++i) CHECK_MESSAGE(difference_bits(got[i], want[i]) == "", "tensor ", i);
}

TEST_CASE("cuda: matmul and matmul_pack, every operand with rows that are 2^31 elements apart") {
  for (DType t : {DType::f32, DType::bf16})
    for (int form = 0; form < 4; ++form) {
      CAPTURE(info(t).name);
      CAPTURE(form);
      const int64_t m = 3, n = 5, k = 4;
      const bool a_trans = form % 2 == 1, b_trans = form / 2 == 1;
      const auto product = [&](Tensors& tensors) {
        MatmulArgs args = {.a = a_trans ? tensors.rows(t, {k, m}) : tensors.rows(t, {m, k}),
                           .b = {b_trans ? tensors.rows(t, {n, k}) : tensors.rows(t, {k, n})},
                           .out = tensors.rows(t, {m, n})};
        args.a_trans = a_trans, args.b_trans = b_trans;
        return args;
      };
      check_far<MatmulArgs>(matmul, [&](Tensors& tensors) {
        MatmulArgs args = product(tensors);
        args.accumulate = true;
        return args;
      });
      check_far<MatmulArgs>(matmul, [&](Tensors& tensors) {
        MatmulArgs args = product(tensors);
        args.act = Activation::gelu_tanh;
        args.aux = tensors.rows(t, {m, n});
        args.residual = tensors.rows(t, {m, n});
        return args;
      });
      check_far<MatmulArgs>(matmul, [&](Tensors& tensors) {
        MatmulArgs args = product(tensors);
        args.act = Activation::gelu_tanh;
        args.act_backward = tensors.rows(t, {m, n});
        return args;
      });
      check_far<MatmulPackArgs>(matmul_pack, [&](Tensors& tensors) {
        const ConstTensorView b = b_trans ? tensors.rows(t, {n, k}) : tensors.rows(t, {k, n});
        return MatmulPackArgs{b, tensors.dense(DType::u8, {matmul_pack_bytes(t, k, n)}), b_trans};
      });
    }
}

TEST_CASE("cuda: rms_norm_backward over rows that are 2^31 elements apart") {
  for (DType t : {DType::f32, DType::bf16})
    check_far<RmsNormBackwardArgs>(rms_norm_backward, [&](Tensors& tensors) {
      const auto rows = [&] { return tensors.rows(t, {3, 16}); };
      return RmsNormBackwardArgs{.dout = rows(), .x = rows(), .weight = tensors.dense(t, {16}),
                                 .rstd = tensors.dense(DType::f32, {3}), .dresidual = rows(), .dx = rows(),
                                 .dweight = tensors.dense(DType::f32, {16}), .accumulate = false};
    });
}

TEST_CASE("cuda: attention and its gradient, rows of q, k and v that are 2^31 elements apart") {
  for (DType t : {DType::f32, DType::bf16})
    for (int64_t e : {16, 136}) {
      CAPTURE(info(t).name);
      CAPTURE(e);
      const int64_t n = 3, h = 2;
      check_far<AttentionArgs>(attention, [&](Tensors& x) {
        return AttentionArgs{.q = x.rows(t, {n, h, e}), .k = x.rows(t, {n, 1, e}), .v = x.rows(t, {n, 1, e}),
                             .out = x.dense(t, {n, h, e}), .lse = x.dense(DType::f32, {n, h}), .q_begin = x.ints({0, 3}),
                             .kv_begin = x.ints({0}), .kv_len = x.ints({3}), .q_pos0 = x.ints({0}), .kv_pos0 = x.ints({0}),
                             .scale = 0.25f, .softcap = 0, .window = 0, .block_table = {}};
      });
      check_far<AttentionBackwardArgs>(attention_backward, [&](Tensors& x) {
        return AttentionBackwardArgs{
            .q = x.rows(t, {n, h, e}), .k = x.rows(t, {n, 1, e}), .v = x.rows(t, {n, 1, e}), .out = x.dense(t, {n, h, e}),
            .dout = x.dense(t, {n, h, e}), .lse = x.dense(DType::f32, {n, h}), .q_begin = x.ints({0, 3}),
            .kv_begin = x.ints({0}), .kv_len = x.ints({3}), .q_pos0 = x.ints({0}), .kv_pos0 = x.ints({0}),
            .dq = x.rows(t, {n, h, e}), .dk = x.rows(t, {n, 1, e}), .dv = x.rows(t, {n, 1, e}), .scale = 0.25f,
            .softcap = 0, .window = 0};
      });
    }
}

TEST_CASE("cuda: attention from blocks of a paged cache that lie past 2^31 elements") {
  const auto device = open_cuda_device();
  const int64_t n = 3, e = 16, block = kFar / (kKvBlock * e) + 1;
  for (DType t : {DType::f32, DType::bf16}) {
    Tensors x(false, device->id());
    Sparse pool((block + 1) * kKvBlock * e * 4);
    AttentionArgs args = {.q = x.dense(t, {n, 1, e}), .k = x.dense(t, {n, 1, e}), .v = {}, .out = x.dense(t, {n, 1, e}),
                          .lse = x.dense(DType::f32, {n, 1}), .q_begin = x.ints({0, 3}), .kv_begin = x.ints({0}),
                          .kv_len = x.ints({3}), .q_pos0 = x.ints({0}), .kv_pos0 = x.ints({0}), .scale = 0.25f,
                          .softcap = 0, .window = 0, .block_table = {}};
    args.v = args.k;
    const auto out_of_run = [&] {
      REQUIRE(attention(device->compute(), args).message() == "");
      REQUIRE(device->compute().sync().message() == "");
      return x.contents();
    };
    const std::vector<GuardedTensor> want = out_of_run();
    const TensorView cache = pool.view(t, {(block + 1) * kKvBlock, 1, e}, device->id());
    const int64_t bytes = e * info(t).block_bytes;
    std::memcpy(static_cast<char*>(cache.data) + block * kKvBlock * bytes, args.k.data, size_t(n * bytes));
    args.k = args.v = cache;
    args.kv_begin = {};
    args.block_table = x.ints({int32_t(block)});
    args.block_table.rank = 2, args.block_table.dim[1] = args.block_table.stride[1] = 1;
    const std::vector<GuardedTensor> got = out_of_run();
    for (size_t i = 0; i < want.size(); ++i) CHECK_MESSAGE(difference_bits(got[i], want[i]) == "", "tensor ", i);
  }
}

}  // namespace
}  // namespace llmops::test
