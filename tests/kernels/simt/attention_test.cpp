// The cuda table on the SIMT shim: attention against the ref table within the bounds of attention_case.h, and bit for
// bit against the cpu table, whose order of sums it keeps; on tensor cores, bit for bit against itself, with bounds
// that have room for weights in bf16.
#include "support/attention_case.h"
#include "support/cuda_case.h"

namespace llmops::test {
using namespace attention_case;
namespace {

// Tensor cores have bf16 heads of whole 16 bytes; their sums are not the cpu table's.
bool on_tensor_cores(const Case& c) { return c.q.dtype() == DType::bf16 && c.shape.e % 8 == 0 && c.shape.e <= 128; }
Bits forward_bits(const Case& c) { return on_tensor_cores(c) ? Bits::own : Bits::of_cpu; }

// The tensors of a case for cuda_against_others, and the args from their views there. On tensor cores each weight is
// rounded to bf16, relative error 2^-8, so an output, a mean of values in [-1, 1), is off by as much.
std::vector<CaseTensor> forward_tensors(Case& c) {
  const double weights = on_tensor_cores(c) ? 0x1p-8 : 0;
  const Bound out = {sum_error(c.shape) + weights, rounding(c.q.dtype())}, lse = {sum_error(c.shape), kUnit};
  return {{&c.q},      {&c.kv},      {&c.q_begin},  {&c.kv_begin}, {&c.kv_len},
          {&c.q_pos0}, {&c.kv_pos0}, {&c.out, out}, {&c.lse, lse}};
}
AttentionArgs forward_args(const Case& c, const std::vector<TensorView>& t) {
  const int64_t k = c.shape.kv_heads;
  return {t[0],      heads_of(t[1], 0, k), heads_of(t[1], k, k), t[7], t[8], t[2], t[3], t[4], t[5], t[6],
          c.scale(), c.shape.softcap,      c.shape.window};
}
// On tensor cores p and ds are rounded to bf16 before they weigh dout, q and k: each is off by at most 2^-8 of itself,
// of either sign. With elements in [-1, 1), whose root mean square is 1 / sqrt(3), as is that of the rounding in 2^-8:
//   dq_i, a sum over one row of ds_ij * k_j: the p_ij sum to 1 and |ds_ij| < 2 p_ij (gradient_bound), so it is off by
//   at
//     most 2 * 2^-8;
//   dk_j and dv_j, sums over a column: its weight W is below 16 for each head of the group, and as no p exceeds 1 the
//     squares of its p sum to at most W too. At 4 sigma dv_j is off by 4 * sqrt(W) * 2^-8 / 3, dk_j by twice that.
struct GradientBounds {
  Bound dq, dkv;
};
GradientBounds gradient_bounds(const Case& c) {
  const Bound bound = gradient_bound(c.shape, c.q.dtype());
  if (!on_tensor_cores(c)) return {bound, bound};
  const double weight = 16 * double(c.shape.heads / c.shape.kv_heads);
  return {{bound.abs + 2 * 0x1p-8, bound.rel}, {bound.abs + 8 * std::sqrt(weight) * 0x1p-8 / 3, bound.rel}};
}
std::vector<CaseTensor> backward_tensors(Case& c) {
  const auto [dq, dkv] = gradient_bounds(c);
  return {{&c.q},       {&c.kv},  {&c.q_begin}, {&c.kv_begin}, {&c.kv_len}, {&c.q_pos0},
          {&c.kv_pos0}, {&c.out}, {&c.lse},     {&c.dout},     {&c.dq, dq}, {&c.dkv, dkv}};
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
void for_cases(const std::vector<Shape>& shapes, Check check) {
  for (const Shape& shape : shapes)
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
  for_cases(shapes(), [](Case& c) {
    const auto args = [&](auto& t) { return forward_args(c, t); };
    CHECK(cuda_against_others(attention, forward_tensors(c), args, schedules(), forward_bits(c)) == "");
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
      CHECK(cuda_against_others(attention, paged_tensors(c, paged), args, schedules(), forward_bits(c)) == "");
    }
}

void check_backward(Case& c) {
  REQUIRE(run_on(*devices().front().device, attention, c.forward()) == "");
  // With more than 64 query heads to a KV head the cpu sums a longer chain.
  const bool own = on_tensor_cores(c) || c.shape.heads / c.shape.kv_heads > 64;
  const auto args = [&](auto& t) { return backward_args(c, t); };
  CHECK(cuda_against_others(attention_backward, backward_tensors(c), args, schedules(),
                            own ? Bits::own : Bits::of_cpu) == "");
}

TEST_CASE("attention_backward: every shape; rows and keys of no sequence have no gradient") {
  for_cases(shapes(), check_backward);
}

// Around the tiles of the tensor cores, 64 owned and 32 others: one less, as many, one more; primes; caches that begin
// within a tile; windows that end within one, or that the next tile has left; blocks of queries that see nothing; both
// widths of heads, and one that fills neither.
TEST_CASE("attention_backward: tiles that are full, short by one and just begun") {
  const std::vector<Seq> edges = {{31, 31, 0, 0}, {32, 32, 0, 0}, {0, 0, 0, 0}, {33, 33, 0, 0}, {1, 65, 64, 0, 2}};
  for_cases(
      {
          {128, 3, 1, edges},
          {64, 2, 2, edges, 32},
          {64, 4, 2, {{97, 97, 0, 0}, {37, 101, 64, 0}, {0, 3, 0, 0}}, 1, 2.0f},
          {128, 2, 1, {{67, 131, 77, 13}, {5, 0, 0, 0}}, 33, 4.0f},
          {72, 5, 1, {{129, 129, 0, 0}}, 64},
          {8, 1, 1, {{63, 64, 1, 0}, {40, 90, 500, 443}, {3, 5, 0, 2}}},
          {16, 2, 1, {{3, 5, 0, 9}, {70, 4, 0, 75}, {4, 0, 5, 7}}},
      },
      check_backward);
}

// Runs a case on the device, in the order of the last schedule; out and lse are downloaded. The message of the call or
// of the stream.
std::string run_cuda(Case& c, Paged* paged = nullptr, int64_t kv_max = 0) {
  const std::vector<CaseTensor> tensors = paged ? paged_tensors(c, *paged) : forward_tensors(c);
  auto device = open_cuda_device();
  std::vector<std::unique_ptr<Mirror>> mirrors;
  std::vector<TensorView> views;
  for (const CaseTensor& t : tensors) {
    mirrors.push_back(std::make_unique<Mirror>(*device, *t.tensor));
    views.push_back(mirrors.back()->view());
  }
  AttentionArgs args = paged ? paged_args(c, views) : forward_args(c, views);
  args.kv_max = kv_max;
  Status status = attention(device->compute(), args);
  for (auto& mirror : mirrors) mirror->enqueue_download(*device);
  if (status.ok()) status = device->compute().sync();
  if (status.ok()) c.out.restore(mirrors[7]->bytes()), c.lse.restore(mirrors[8]->bytes());
  return status.message();
}

TEST_CASE("attention on tensor cores: chunked prefill, decode and pages give the bits of the full pass") {
  for (const Shape& shape : {Shape{24, 6, 2, {{530, 530, 0, 0}}}, Shape{72, 1, 1, {{530, 530, 0, 0}}, 0, 3.0f},
                             Shape{16, 4, 1, {{530, 530, 0, 0}}, 300}}) {
    CAPTURE(shape.e);
    Case whole(shape, DType::bf16), strided(shape, DType::bf16, 1, 8);  // rows that start on 16 bytes, and that do not
    REQUIRE(run_cuda(whole) == "");
    REQUIRE(run_cuda(strided) == "");
    CHECK(difference_bits(strided.out, whole.out) == "");
    // With fewer than 512 keys the walk is not spread over blocks.
    for (auto [begin, end] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {100, 357}, {255, 256}, {256, 258}, {529, 530}}) {
      CAPTURE(begin);
      const auto part = slice(whole, begin, end, 0);
      REQUIRE(run_cuda(*part) == "");
      CHECK(rows_differ(part->out, 0, whole.out, begin, end - begin) == "");
      CHECK(rows_differ(part->lse, 0, whole.lse, begin, end - begin) == "");
      const auto again = slice(whole, begin, end, 0);
      Paged paged(*again);
      REQUIRE(run_cuda(*again, &paged) == "");
      CHECK(difference_bits(again->out, part->out) == "");
    }
  }
}

// With the 8 * 8192 rows of all sequences the partials of a spread walk would not fit; with those of one they do.
TEST_CASE("attention: the walk of a cache of several sequences is spread by kv_max, with the bits of one walk") {
  constexpr int64_t kCapacity = 8192;
  Shape shape{16, 512, 1, {}};
  for (int64_t keys : {520, 1, 17, 300, 2, 3, 4, 5})
    shape.sequences.push_back({1, keys, keys - 1, 0, kCapacity - keys});
  for (DType dtype : {DType::f32, DType::bf16}) {
    Case one(shape, dtype), spread(shape, dtype);
    const int64_t before = simt::launches();
    REQUIRE(run_cuda(one) == "");
    if (simt::emulated()) CHECK(simt::launches() - before == 1);
    REQUIRE(run_cuda(spread, nullptr, kCapacity) == "");
    if (simt::emulated()) CHECK(simt::launches() - before == 3);  // and the merge
    CHECK(difference_bits(spread.out, one.out) == "");
    CHECK(difference_bits(spread.lse, one.lse) == "");
  }
}

TEST_CASE("attention on tensor cores: batch mates change no bits") {
  Case batch({16, 4, 2, {{90, 90, 0, 0}, {31, 31, 0, 0}, {1, 64, 63, 0}}}, DType::bf16);
  REQUIRE(run_cuda(batch) == "");
  int64_t row = 0, key = 0;
  for (const Seq& seq : batch.shape.sequences) {
    Case alone({16, 4, 2, {seq}}, DType::bf16);
    for (int64_t i = 0; i < alone.q.elems(); ++i) alone.q.set(i, batch.q.at(row * 64 + i));
    for (int64_t i = 0; i < alone.kv.elems(); ++i) alone.kv.set(i, batch.kv.at(key * 64 + i));
    REQUIRE(run_cuda(alone) == "");
    CHECK(rows_differ(alone.out, 0, batch.out, row, seq.q_count) == "");
    row += seq.q_count;
    key += seq.kv_count;
  }
}

TEST_CASE("attention_backward on tensor cores: batch mates and strides change no bits") {
  const auto run = [](Case& c) {
    REQUIRE(run_on(*devices().front().device, attention, c.forward()) == "");
    const auto args = [&](auto& t) { return backward_args(c, t); };
    auto device = open_cuda_device();
    std::vector<std::unique_ptr<Mirror>> mirrors;
    std::vector<TensorView> views;
    for (const CaseTensor& t : backward_tensors(c)) {
      mirrors.push_back(std::make_unique<Mirror>(*device, *t.tensor));
      views.push_back(mirrors.back()->view());
    }
    REQUIRE(attention_backward(device->compute(), args(views)).message() == "");
    for (auto& mirror : mirrors) mirror->enqueue_download(*device);
    REQUIRE(device->compute().sync().message() == "");
    c.dq.restore(mirrors[10]->bytes()), c.dkv.restore(mirrors[11]->bytes());
  };
  Case batch({16, 4, 2, {{90, 90, 0, 0}, {31, 31, 0, 0}, {7, 64, 57, 0}}}, DType::bf16);
  run(batch);
  int64_t row = 0, key = 0;
  for (const Seq& seq : batch.shape.sequences)
    for (int64_t gap : {3, 8}) {
      Case alone({16, 4, 2, {seq}}, DType::bf16, 1, gap);
      for (int64_t i = 0; i < alone.q.elems(); ++i) {
        alone.q.set(i, batch.q.at(row * 64 + i));
        alone.dout.set(i, batch.dout.at(row * 64 + i));
      }
      for (int64_t i = 0; i < alone.kv.elems(); ++i) alone.kv.set(i, batch.kv.at(key * 64 + i));
      run(alone);
      CHECK(rows_differ(alone.dq, 0, batch.dq, row, seq.q_count) == "");
      CHECK(rows_differ(alone.dkv, 0, batch.dkv, key, seq.kv_count) == "");
      if (gap == 8) row += seq.q_count, key += seq.kv_count;
    }
}

TEST_CASE("attention: offsets outside the tensors are errors that name the sequence, one without queries too") {
  const auto error = [](GuardedTensor Case::*tensor, int64_t at, double value) {
    Case c({4, 1, 1, {{3, 3, 0, 0}, {0, 2, 0, 0}, {2, 2, 0, 0}}}, DType::f32);
    (c.*tensor).set(at, value);
    return run_cuda(c);
  };
  const auto names = [](const std::string& message, int sequence) {
    return message.find(fmt::format("attention: sequence {}: rows of q, or of k and v", sequence)) != std::string::npos;
  };
  CHECK(error(&Case::q_begin, 0, 0) == "");
  CHECK(names(error(&Case::q_begin, 3, 6), 2));
  CHECK(names(error(&Case::q_begin, 1, 6), 0));
  CHECK(names(error(&Case::q_begin, 3, 1), 2));
  CHECK(names(error(&Case::q_begin, 0, -1), 0));
  CHECK(names(error(&Case::kv_len, 1, 6), 1));
  CHECK(names(error(&Case::kv_len, 2, 3), 2));
  CHECK(names(error(&Case::kv_len, 0, -1), 0));
  CHECK(names(error(&Case::kv_begin, 1, -1), 1));
  Case c({4, 1, 1, {{3, 3, 0, 0}, {5, 5, 0, 0}}}, DType::f32);
  CHECK(run_cuda(c, nullptr, 5) == "");
  CHECK(names(run_cuda(c, nullptr, 4), 1));
  Paged paged(c);
  CHECK(run_cuda(c, &paged, 5) == "");
  CHECK(names(run_cuda(c, &paged, 4), 1));
}

TEST_CASE("attention: blocks outside the pool are errors that name the sequence") {
  const auto error = [](int64_t at, double value) {
    Case c({4, 1, 1, {{3, 3, 0, 0}, {20, 20, 0, 0}}}, DType::f32);
    Paged paged(c);
    paged.table.set(at, value);
    return run_cuda(c, &paged);
  };
  CHECK(error(5, 77) == "");  // behind the last key
  CHECK(error(4, 6).find("attention: sequence 1: rows of q, or of k and v") != std::string::npos);
  CHECK(error(3, -1).find("attention: sequence 1:") != std::string::npos);
}

TEST_CASE("attention: heads beyond what the kernels have room for are refused") {
  Case c({257, 1, 1, {{1, 1, 0, 0}}}, DType::f32);
  CHECK(run_cuda(c).find("heads of 257 elements found, at most 256 expected on a CUDA device") != std::string::npos);
}

}  // namespace
}  // namespace llmops::test
