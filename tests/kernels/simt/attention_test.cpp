// The cuda table on the SIMT shim: attention against the ref table within the bounds of attention_case.h, and bit for
// bit against the cpu table, whose order of sums it keeps.
#include "support/attention_case.h"
#include "support/cuda_case.h"

namespace llmops::test {
using namespace attention_case;
namespace {

// The tensors of a case for cuda_against_others, and the args from their views there.
std::vector<CaseTensor> forward_tensors(Case& c) {
  const Bound out = {sum_error(c.shape), rounding(c.q.dtype())}, lse = {sum_error(c.shape), kUnit};
  return {{&c.q},      {&c.kv},      {&c.q_begin},  {&c.kv_begin}, {&c.kv_len},
          {&c.q_pos0}, {&c.kv_pos0}, {&c.out, out}, {&c.lse, lse}};
}
AttentionArgs forward_args(const Case& c, const std::vector<TensorView>& t) {
  const int64_t k = c.shape.kv_heads;
  return {t[0],      heads_of(t[1], 0, k), heads_of(t[1], k, k), t[7], t[8], t[2], t[3], t[4], t[5], t[6],
          c.scale(), c.shape.softcap,      c.shape.window};
}
std::vector<CaseTensor> backward_tensors(Case& c) {
  const Bound bound = gradient_bound(c.shape, c.q.dtype());
  return {{&c.q},       {&c.kv},  {&c.q_begin}, {&c.kv_begin}, {&c.kv_len},    {&c.q_pos0},
          {&c.kv_pos0}, {&c.out}, {&c.lse},     {&c.dout},     {&c.dq, bound}, {&c.dkv, bound}};
}
AttentionBackwardArgs backward_args(const Case& c, const std::vector<TensorView>& t) {
  const int64_t k = c.shape.kv_heads;
  return {t[0],
          heads_of(t[1], 0, k),
          heads_of(t[1], k, k),
          t[7],
          t[9],
          t[8],
          t[2],
          t[3],
          t[4],
          t[5],
          t[6],
          t[10],
          heads_of(t[11], 0, k),
          heads_of(t[11], k, k),
          c.scale(),
          c.shape.softcap,
          c.shape.window};
}

template <class Check>
void for_cases(Check check) {
  for (const Shape& shape : shapes())
    for (DType dtype : {DType::f32, DType::bf16})
      for (int64_t gap : {3, 8}) {  // 8: rows that start on 16 bytes, where the head size is a multiple of it
        CAPTURE(shape.e);
        CAPTURE(shape.sequences.size());
        CAPTURE(info(dtype).name);
        CAPTURE(gap);
        Case c(shape, dtype, 1, gap);
        check(c);
      }
}

TEST_CASE("attention: every shape, ragged, grouped, windows, softcap, one walk and spread over blocks") {
  for_cases([](Case& c) {
    CHECK(cuda_against_others(attention, forward_tensors(c), [&](auto& t) { return forward_args(c, t); }) == "");
  });
}

// The same from the blocks of a paged cache.
std::vector<CaseTensor> paged_tensors(Case& c, Paged& p) {
  std::vector<CaseTensor> tensors = forward_tensors(c);
  tensors[1] = {&p.pool};
  tensors.push_back({&p.table});
  return tensors;
}
AttentionArgs paged_args(const Case& c, const std::vector<TensorView>& t) {
  AttentionArgs args = forward_args(c, t);
  args.kv_begin = {};
  args.block_table = t[9];
  return args;
}

TEST_CASE("attention: a paged cache gives the bits of a contiguous one") {
  for (const Shape& shape : paged_shapes())
    for (DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(shape.e);
      Case c(shape, dtype);
      Paged paged(c);
      const auto args = [&](auto& t) { return paged_args(c, t); };
      CHECK(cuda_against_others(attention, paged_tensors(c, paged), args) == "");
    }
}

TEST_CASE("attention_backward: every shape; rows and keys of no sequence have no gradient") {
  for_cases([](Case& c) {
    REQUIRE(run_on(*devices().front().device, attention, c.forward()) == "");
    // With more than 64 query heads to a KV head the cpu sums a longer chain.
    const Bits bits = c.shape.heads / c.shape.kv_heads > 64 ? Bits::own : Bits::of_cpu;
    const auto args = [&](auto& t) { return backward_args(c, t); };
    CHECK(cuda_against_others(attention_backward, backward_tensors(c), args, schedules(), bits) == "");
  });
}

// The error of a case on the device; the message of the stream or of the call.
std::string error_of(Case& c, Paged* paged = nullptr) {
  const std::vector<CaseTensor> tensors = paged ? paged_tensors(c, *paged) : forward_tensors(c);
  auto device = open_cuda_device();
  std::vector<std::unique_ptr<Mirror>> mirrors;
  std::vector<TensorView> views;
  for (const CaseTensor& t : tensors) {
    mirrors.push_back(std::make_unique<Mirror>(*device, *t.tensor));
    views.push_back(mirrors.back()->view());
  }
  Status status = attention(device->compute(), paged ? paged_args(c, views) : forward_args(c, views));
  const Status done = device->compute().sync();
  simt::reset();
  return status.ok() ? done.message() : status.message();
}

TEST_CASE("attention: offsets outside the tensors end the launch, those of a sequence without queries too") {
  const auto error = [](GuardedTensor Case::*tensor, int64_t at, double value) {
    Case c({4, 1, 1, {{3, 3, 0, 0}, {0, 2, 0, 0}, {2, 2, 0, 0}}}, DType::f32);
    (c.*tensor).set(at, value);
    return error_of(c);
  };
  CHECK(error(&Case::q_begin, 0, 0) == "");
  for (const std::string& message :
       {error(&Case::q_begin, 3, 6), error(&Case::q_begin, 1, 6), error(&Case::q_begin, 3, 1),
        error(&Case::q_begin, 0, -1), error(&Case::kv_len, 1, 6), error(&Case::kv_len, 2, 3),
        error(&Case::kv_len, 0, -1), error(&Case::kv_begin, 1, -1)}) {
    CAPTURE(message);
    CHECK(message.find("__trap") != std::string::npos);
  }
}

TEST_CASE("attention: blocks outside the pool end the launch") {
  const auto error = [](int64_t at, double value) {
    Case c({4, 1, 1, {{3, 3, 0, 0}, {20, 20, 0, 0}}}, DType::f32);
    Paged paged(c);
    paged.table.set(at, value);
    return error_of(c, &paged);
  };
  CHECK(error(5, 77) == "");  // behind the last key
  CHECK(error(4, 6).find("__trap") != std::string::npos);
  CHECK(error(3, -1).find("__trap") != std::string::npos);
}

TEST_CASE("attention: heads beyond what the kernels have room for are refused") {
  Case c({257, 1, 1, {{1, 1, 0, 0}}}, DType::f32);
  CHECK(error_of(c).find("heads of 257 elements found, at most 256 expected on a CUDA device") != std::string::npos);
}

}  // namespace
}  // namespace llmops::test
