// Contracts: each op accepts good arguments, and says which tensor is wrong, what it found and what it expected.
#include "kernels/contract.h"

#include <functional>

#include "support/kernel_case.h"

namespace llmops::test {
namespace {

constexpr DType kF32 = DType::f32, kBf16 = DType::bf16, kI32 = DType::i32, kI64 = DType::i64, kF64 = DType::f64;

// A view of memory of its own; contracts never read it.
TensorView tensor(DType dtype, std::initializer_list<int64_t> dims) {
  alignas(64) static char memory[1 << 20];
  static int64_t used = 0;
  const TensorView view = dense_view(static_cast<void*>(memory + used), dtype, dims);
  used = (used + (view.elems() + 1) * info(dtype).block_bytes + 63) / 64 * 64;
  REQUIRE(used < int64_t(sizeof memory));
  return view;
}

template <class Args>
std::string message(const Args& args) {
  return contract_of(args, DeviceId{}).status().message();
}

// `good` passes; after `spoil` the message holds every part.
template <class Args>
void refused(const Args& good, const std::function<void(Args&)>& spoil, std::initializer_list<const char*> parts) {
  CHECK(message(good) == "");
  Args bad = good;
  spoil(bad);
  const std::string text = message(bad);
  for (const char* part : parts) CHECK_MESSAGE(text.find(part) != std::string::npos, text, " lacks: ", part);
}

EmbeddingArgs embedding_args() {
  return {tensor(kI32, {3}), tensor(kI32, {3}), tensor(kF32, {9, 4}), tensor(kF32, {5, 4}), tensor(kF32, {3, 4})};
}
LayerNormArgs layer_norm_args() {
  return {tensor(kBf16, {3, 8}), tensor(kBf16, {3, 8}), tensor(kBf16, {8}),   tensor(kBf16, {8}), tensor(kBf16, {3, 8}),
          tensor(kBf16, {3, 8}), tensor(kF32, {3}),     tensor(kF32, {3}),    1e-5f};
}
RmsNormArgs rms_norm_args() {
  return {tensor(kF32, {3, 2, 8}), {}, tensor(kF32, {8}), {}, tensor(kF32, {3, 2, 8}), tensor(kF32, {3, 2}), 1e-5f};
}
MatmulArgs matmul_args() {
  MatmulArgs a = {};
  a.a = tensor(kF32, {3, 5});
  a.b.data = tensor(kF32, {7, 5});
  a.b_trans = true;
  a.out = tensor(kF32, {3, 7});
  a.bias = tensor(kF32, {7});
  return a;
}
AttentionArgs attention_args() {
  return {tensor(kF32, {6, 4, 8}), tensor(kF32, {9, 2, 8}), tensor(kF32, {9, 2, 8}), tensor(kF32, {6, 4, 8}),
          tensor(kF32, {6, 4}),    tensor(kI32, {3}),       tensor(kI32, {2}),       tensor(kI32, {2}),
          tensor(kI32, {2}),       tensor(kI32, {2}),       0.5f, 0, 0};
}
AttentionBackwardArgs attention_backward_args() {
  const AttentionArgs f = attention_args();
  return {f.q, f.k, f.v, f.out, tensor(kF32, {6, 4, 8}), f.lse, f.q_begin, f.kv_begin, f.kv_len, f.q_pos0, f.kv_pos0,
          tensor(kF32, {6, 4, 8}), tensor(kF32, {9, 2, 8}), tensor(kF32, {9, 2, 8}), 0.5f, 0, 0};
}
AdamwArgs adamw_args() {
  return {tensor(kF32, {5}), tensor(kF32, {5}), tensor(kF32, {5}), tensor(kF32, {5}), tensor(kBf16, {5}),
          tensor(kF32, {4}), 1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1};
}

TEST_CASE("contract: embedding and its gradient") {
  refused<EmbeddingArgs>(embedding_args(), [](auto& a) { a.ids = tensor(kI64, {3}); },
                         {"embedding: ids is I64 [3]", "I32"});
  refused<EmbeddingArgs>(embedding_args(), [](auto& a) { a.pos_table = {}; }, {"positions and pos_table"});
  refused<EmbeddingArgs>(embedding_args(), [](auto& a) { a.out = tensor(kF32, {3, 5}); },
                         {"embedding: out is F32 [3,5]", "[n=3,d=4]"});
  const EmbeddingBackwardArgs back = {
      tensor(kI32, {3}), {}, tensor(kBf16, {3, 4}), tensor(kF32, {9, 4}), {}, false, false};
  refused<EmbeddingBackwardArgs>(back, [](auto& a) { a.dtable = tensor(kBf16, {9, 4}); },
                                 {"embedding_backward: dtable is BF16 [9,4]", "F32"});
}

TEST_CASE("contract: the norms") {
  refused<LayerNormArgs>(layer_norm_args(), [](auto& a) { a.weight = tensor(kBf16, {9}); },
                         {"layer_norm: weight is BF16 [9]", "[d=8]"});
  refused<LayerNormArgs>(layer_norm_args(), [](auto& a) { a.sum = {}; }, {"layer_norm: delta and sum"});
  refused<LayerNormArgs>(layer_norm_args(), [](auto& a) { a.rstd = {}; }, {"layer_norm: mean and rstd"});
  refused<LayerNormArgs>(layer_norm_args(), [](auto& a) { a.eps = 0; }, {"layer_norm: eps is 0"});
  refused<LayerNormArgs>(layer_norm_args(), [](auto& a) { a.eps = NAN; }, {"layer_norm: eps is nan"});
  const LayerNormBackwardArgs back = {tensor(kF32, {3, 8}), tensor(kF32, {3, 8}), tensor(kF32, {8}), tensor(kF32, {3}),
                                      tensor(kF32, {3}),    {},                   tensor(kF32, {3, 8}),
                                      tensor(kF32, {8}),    tensor(kF32, {8}),    false};
  refused<LayerNormBackwardArgs>(back, [](auto& a) { a.mean = {}; }, {"layer_norm_backward: mean is absent"});
  refused<LayerNormBackwardArgs>(back, [](auto& a) { a.dx.data = const_cast<void*>(a.x.data); },
                                 {"layer_norm_backward: dx overlaps x"});
  LayerNormBackwardArgs in_place = back;
  in_place.dout = in_place.dx;
  CHECK(message(in_place) == "");

  refused<RmsNormArgs>(rms_norm_args(), [](auto& a) { a.rstd = tensor(kF32, {6}); },
                       {"rms_norm: rstd is F32 [6]", "[n=3,h=2]"});
  refused<RmsNormArgs>(rms_norm_args(),
                       [](auto& a) {
                         a.out = tensor(kBf16, {3, 2, 8});
                       },
                       {"rms_norm: out is BF16", "F32"});
  const RmsNormBackwardArgs rms = {tensor(kF32, {3, 8}), tensor(kF32, {3, 8}), tensor(kF32, {8}), tensor(kF32, {3}),
                                   {},                   tensor(kF32, {3, 8}), tensor(kF32, {8}), false};
  refused<RmsNormBackwardArgs>(rms, [](auto& a) { a.dweight = tensor(kF32, {7}); },
                               {"rms_norm_backward: dweight", "[d=8]"});
}

TEST_CASE("contract: matmul, packing and the bias gradient") {
  const MatmulArgs good = matmul_args();
  refused<MatmulArgs>(good, [](auto& a) { a.b_trans = false; }, {"matmul: b is F32 [7,5]", "[k=5,n=7]"});
  refused<MatmulArgs>(good, [](auto& a) { a.a = tensor(DType::f16, {3, 5}); }, {"matmul: a is F16", "F32 or BF16"});
  refused<MatmulArgs>(good, [](auto& a) { a.accumulate = true, a.act = Activation::gelu_erf; }, {"matmul: accumulate"});
  refused<MatmulArgs>(good,
                      [](auto& a) {
                        a.accumulate = true, a.residual = tensor(kF32, {3, 7});
                      },
                      {"matmul: accumulate"});
  refused<MatmulArgs>(good, [](auto& a) { a.aux = tensor(kF32, {3, 7}); }, {"matmul: aux"});
  refused<MatmulArgs>(good, [](auto& a) { a.act_backward = tensor(kF32, {3, 7}); }, {"matmul: act_backward"});
  refused<MatmulArgs>(good, [](auto& a) { a.b.pack = Pack::panels; }, {"matmul: b (panels)", "U8"});
  refused<MatmulArgs>(good, [](auto& a) { a.b.group = 32; }, {"matmul: b has scales"});
  refused<MatmulArgs>(good, [](auto& a) { a.a.stride[1] = 2; }, {"matmul: a is", "innermost stride 1"});
  refused<MatmulArgs>(good, [](auto& a) { a.out.stride[0] = 3; }, {"matmul: out is", "share memory"});
  refused<MatmulArgs>(good, [](auto& a) { a.residual = a.out; }, {"matmul: out overlaps residual"});
  refused<MatmulArgs>(good, [](auto& a) { a.b.data.device.cuda = 0; }, {"matmul: b is on another device"});
  refused<MatmulArgs>(good, [](auto& a) { a.a_sums = tensor(kF32, {3}); }, {"matmul: a_sums", "[k,m]"});
  refused<MatmulArgs>(good, [](auto& a) { a.b_sums = tensor(kF32, {7}); }, {"matmul: b_sums", "[k,n]"});
  MatmulArgs gradient = good;
  gradient.a = tensor(kF32, {5, 3}), gradient.a_trans = true;
  gradient.b.data = tensor(kF32, {5, 7}), gradient.b_trans = false;
  refused<MatmulArgs>(gradient, [](auto& a) { a.b_sums = tensor(kF32, {3}); }, {"matmul: b_sums is F32 [3]", "[n=7]"});
  refused<MatmulArgs>(gradient, [](auto& a) { a.a_sums = tensor(kF32, {3}), a.b_sums = tensor(kF32, {7}); },
                      {"matmul: both a_sums and b_sums"});

  const MatmulPackArgs pack = {tensor(kF32, {7, 5}), tensor(DType::u8, {matmul_pack_bytes(kF32, 5, 7)}), true};
  refused<MatmulPackArgs>(pack, [](auto& a) { a.out = tensor(DType::u8, {4}); }, {"matmul_pack: out is U8 [4]"});
  refused<MatmulPackArgs>(pack, [](auto& a) { a.out.data = static_cast<char*>(a.out.data) + 4; },
                          {"matmul_pack: out is not aligned to 64 bytes"});
  const BiasBackwardArgs bias = {tensor(kBf16, {3, 7}), tensor(kF32, {7}), false};
  refused<BiasBackwardArgs>(bias, [](auto& a) { a.dbias = tensor(kF32, {3}); },
                            {"bias_backward: dbias is F32 [3]", "[n=7]"});
}

TEST_CASE("contract: rope and attention") {
  const RopeArgs rope = {tensor(kF32, {3, 2, 8}), tensor(kI32, {3}), tensor(kF32, {10, 4, 2}), tensor(kF32, {3, 2, 8}),
                         false, false};
  refused<RopeArgs>(rope, [](auto& a) { a.cos_sin = tensor(kF32, {10, 5, 2}); }, {"rope: cos_sin", "e of x"});
  refused<RopeArgs>(rope, [](auto& a) { a.positions = tensor(kI32, {4}); }, {"rope: positions is I32 [4]", "[n=3]"});
  const AttentionArgs forward = attention_args();
  refused<AttentionArgs>(forward, [](auto& a) { a.q_begin = tensor(kI32, {2}); },
                         {"attention: q_begin is I32 [2]", "S=3"});
  refused<AttentionArgs>(forward, [](auto& a) { a.scale = INFINITY; }, {"attention: scale is inf"});
  refused<AttentionArgs>(forward, [](auto& a) { a.softcap = -1; }, {"attention: softcap"});
  refused<AttentionArgs>(forward, [](auto& a) { a.window = -1; }, {"attention: window"});
  refused<AttentionArgs>(forward, [](auto& a) { a.kv_max = -1; }, {"attention: kv_max is below 0"});
  refused<AttentionArgs>(forward, [](auto& a) { a.k = tensor(kF32, {9, 3, 8}), a.v = tensor(kF32, {9, 3, 8}); },
                         {"attention: the query heads"});
  AttentionArgs paged = forward;
  paged.k = paged.v = tensor(kF32, {32, 2, 8});
  paged.kv_begin = {};
  paged.block_table = tensor(kI32, {2, 3});
  refused<AttentionArgs>(paged, [](auto& a) { a.kv_begin = a.kv_len; },
                         {"attention: kv_begin and block_table are both given"});
  refused<AttentionArgs>(paged, [](auto& a) { a.block_table = {}; }, {"attention: kv_begin is absent, expected [s=2]"});
  refused<AttentionArgs>(paged, [](auto& a) { a.k = a.v = tensor(kF32, {30, 2, 8}); }, {"m is not a multiple of 16"});
  refused<AttentionArgs>(paged, [](auto& a) { a.block_table = tensor(kI32, {3, 3}); }, {"block_table is I32 [3,3]"});
  refused<AttentionBackwardArgs>(attention_backward_args(), [](auto& a) { a.dk = tensor(kF32, {9, 4, 8}); },
                                 {"attention_backward: dk is F32 [9,4,8]", "[m=9,k=2,e=8]"});
  refused<AttentionBackwardArgs>(attention_backward_args(), [](auto& a) { a.dv = a.dk; },
                                 {"attention_backward: dk overlaps dv"});
}

TEST_CASE("contract: q, k and v may be slices of one fused buffer, and their gradients too") {
  const auto slice = [](const TensorView& fused, int64_t head, int64_t heads) {
    TensorView view = dense_view(static_cast<void*>(static_cast<float*>(fused.data) + head * 8), kF32, {6, heads, 8});
    view.stride[0] = fused.dim[1];
    return view;
  };
  AttentionBackwardArgs a = attention_backward_args();
  const TensorView fused = tensor(kF32, {6, 64}), gradient = tensor(kF32, {6, 64});
  a.q = slice(fused, 0, 4), a.k = slice(fused, 4, 2), a.v = slice(fused, 6, 2);
  a.dq = slice(gradient, 0, 4), a.dk = slice(gradient, 4, 2), a.dv = slice(gradient, 6, 2);
  CHECK(message(a) == "");
  a.dv = slice(gradient, 5, 2);
  CHECK(message(a).find("attention_backward: dk overlaps dv") == 0);
}

TEST_CASE("contract: elementwise ops") {
  const SwigluArgs swiglu = {tensor(kF32, {3, 10}), tensor(kF32, {3, 5})};
  refused<SwigluArgs>(swiglu, [](auto& a) { a.x = tensor(kF32, {3, 9}); }, {"swiglu: x is F32 [3,9]", "F=10"});
  const SwigluBackwardArgs swiglu_back = {tensor(kF32, {3, 10}), tensor(kF32, {3, 5}), tensor(kF32, {3, 10})};
  refused<SwigluBackwardArgs>(swiglu_back, [](auto& a) { a.dx = tensor(kF32, {3, 5}); }, {"swiglu_backward: dx"});
  const GeluArgs gelu = {tensor(kF32, {3, 5}), tensor(kF32, {3, 5}), Activation::gelu_erf};
  refused<GeluArgs>(gelu, [](auto& a) { a.act = Activation::none; }, {"gelu: act is none"});
  const GeluBackwardArgs gelu_back = {tensor(kF32, {3}), tensor(kF32, {3}), tensor(kF32, {3}), Activation::gelu_erf};
  refused<GeluBackwardArgs>(gelu_back, [](auto& a) { a.dout = tensor(kF32, {4}); }, {"gelu_backward: dout", "[a=3]"});
  const AddArgs add = {tensor(kF32, {3, 5}), tensor(kF32, {3, 5}), tensor(kF32, {3, 5})};
  refused<AddArgs>(add, [](auto& a) { a.b.stride[0] = 6; }, {"add: b is", "dense"});
  AddArgs in_place = add;
  in_place.out.data = const_cast<void*>(in_place.b.data);
  CHECK(message(in_place) == "");
  refused<AddArgs>(add, [](auto& a) { a.out.data = static_cast<char*>(const_cast<void*>(a.a.data)) + 4; },
                   {"add: out overlaps a"});
  refused<AddArgs>(add, [](auto& a) { a.out.data = static_cast<char*>(a.out.data) + 2; }, {"add: out is not aligned"});
  const CastArgs cast = {tensor(kF32, {3}), tensor(kBf16, {3})};
  refused<CastArgs>(cast, [](auto& a) { a.out = tensor(kF32, {3}); }, {"cast: x and out have the same dtype"});
  refused<CastArgs>(cast, [](auto& a) { a.x.rank = 6; }, {"cast: x has rank 6"});
}

TEST_CASE("contract: loss, optimizer, sampler") {
  const CrossEntropyArgs loss = {tensor(kBf16, {3, 8}), tensor(kI32, {3}), tensor(kF32, {3}), {}, 7, 1};
  refused<CrossEntropyArgs>(loss, [](auto& a) { a.vocab = 9; }, {"cross_entropy: vocab"});
  refused<CrossEntropyArgs>(loss, [](auto& a) { a.losses = tensor(kBf16, {3}); },
                            {"cross_entropy: losses is BF16 [3]", "F32"});
  const SquareSumsArgs squares = {tensor(kF32, {5000}), tensor(kF64, {2})};
  refused<SquareSumsArgs>(squares, [](auto& a) { a.sums = tensor(kF64, {1}); },
                          {"square_sums: sums is F64 [1]", "[B=2]"});
  const ClipScaleArgs clip = {tensor(kF64, {2}), tensor(kF32, {4}), 1};
  refused<ClipScaleArgs>(clip, [](auto& a) { a.clip = NAN; }, {"clip_scale: clip is nan"});
  refused<ClipScaleArgs>(clip, [](auto& a) { a.control = tensor(kF32, {3}); }, {"clip_scale: control", "[C=4]"});
  refused<AdamwArgs>(adamw_args(), [](auto& a) { a.step = 0; }, {"adamw: step"});
  refused<AdamwArgs>(adamw_args(), [](auto& a) { a.beta2 = 1; }, {"adamw: beta2"});
  refused<AdamwArgs>(adamw_args(), [](auto& a) { a.lr = NAN; }, {"adamw: lr is nan"});
  refused<AdamwArgs>(adamw_args(), [](auto& a) { a.first_element = 12; }, {"adamw: first_element"});
  refused<AdamwArgs>(adamw_args(), [](auto& a) { a.stochastic = true, a.param_bf16 = {}; }, {"adamw: stochastic"});
  refused<AdamwArgs>(adamw_args(), [](auto& a) { a.grad = a.m; }, {"adamw: m overlaps grad"});
  const SampleArgs sample = {tensor(kF32, {2, 9}), tensor(kF32, {2}), tensor(kI32, {2}), tensor(kF32, {2}),
                             tensor(kI64, {2}),    tensor(kI64, {2}), tensor(kI32, {2}), 9};
  refused<SampleArgs>(sample, [](auto& a) { a.key = tensor(kI32, {2}); }, {"sample: key is I32 [2]", "I64"});
  refused<SampleArgs>(sample, [](auto& a) { a.vocab = 0; }, {"sample: vocab"});
}

TEST_CASE("contract: the KV cache store and the sum") {
  const KvStoreArgs store = {tensor(kF32, {3, 2, 8}), tensor(kF32, {3, 2, 8}), tensor(kI32, {3}),
                             tensor(kF32, {9, 2, 8}), tensor(kF32, {9, 2, 8})};
  refused<KvStoreArgs>(store, [](auto& a) { a.rows = tensor(kI32, {4}); }, {"kv_store: rows is I32 [4]", "[n=3]"});
  KvStoreArgs turned = store;
  turned.q = tensor(kF32, {3, 4, 8}), turned.positions = tensor(kI32, {3}), turned.cos_sin = tensor(kF32, {10, 4, 2});
  refused<KvStoreArgs>(turned, [](auto& a) { a.q = tensor(kF32, {3, 4, 6}); }, {"kv_store: q is F32 [3,4,6]", "e=8"});
  refused<KvStoreArgs>(turned, [](auto& a) { a.cos_sin = tensor(kF32, {10, 5, 2}); }, {"kv_store: cos_sin", "e of k"});
  refused<KvStoreArgs>(turned, [](auto& a) { a.positions = tensor(kI32, {4}); }, {"positions is I32 [4]", "[n=3]"});
  refused<KvStoreArgs>(turned, [](auto& a) { a.q.data = const_cast<void*>(a.k.data); }, {"q overlaps k"});
  for (auto lose : {+[](KvStoreArgs& a) { a.q = {}; }, +[](KvStoreArgs& a) { a.positions = {}; },
                    +[](KvStoreArgs& a) { a.cos_sin = {}; }})
    refused<KvStoreArgs>(turned, lose, {"kv_store: q, positions and cos_sin are not given together"});
  const SumArgs sum = {tensor(kF32, {3}), tensor(kF64, {1}), false};
  refused<SumArgs>(sum, [](auto& a) { a.out = tensor(kF32, {1}); }, {"sum: out is F32 [1]", "F64"});
}

TEST_CASE("the free functions refuse at the call and run nothing") {
  auto device = open_device({});
  GuardedTensor x = random_tensor(DType::f32, {4}, 1), out(DType::f32, {5});
  const Status status = gelu(device->compute(), {x, out, Activation::gelu_erf});
  CHECK(status.code() == Code::invalid);
  CHECK(status.message() == "gelu: out is F32 [5], expected [a=4]");
  CHECK(device->compute().sync().ok());
}

TEST_CASE("an error of the work itself comes at sync, with op and shapes") {
  for (const bool reference : {false, true}) {
    auto device = open_device({.reference = reference});
    GuardedTensor ids = tensor_of<int>(DType::i32, {1, 7}), table = random_tensor(DType::f32, {5, 2}, 1);
    GuardedTensor out(DType::f32, {2, 2});
    CHECK(embedding(device->compute(), {ids, {}, table, {}, out}).ok());
    const Status status = device->compute().sync();
    CHECK(status.code() == Code::invalid);
    for (const char* part : {"embedding", "ids I32 [2]", "table F32 [5,2]", "7"})
      CHECK_MESSAGE(status.message().find(part) != std::string::npos, status.message());
  }
}

}  // namespace
}  // namespace llmops::test
