// The harness finds what it is there to find.
#include "support/kernel_case.h"

namespace llmops::test {
namespace {

const double kNan = std::numeric_limits<double>::quiet_NaN();
const double kInf = std::numeric_limits<double>::infinity();

GuardedTensor of(std::vector<double> values) { return tensor_of(DType::f32, values); }

TEST_CASE("difference: within the bound, outside, and the words of a finding") {
  CHECK(difference(of({1, 2, 3}), of({1, 2, 3}), {0, 0}) == "");
  CHECK(difference(of({1, 2, 3.5}), of({1, 2, 3}), {0.5, 0}) == "");
  CHECK(difference(of({1, 2, 330}), of({1, 2, 300}), {0, 0.1}) == "");
  const std::string finding = difference(of({1, 2.5, 4}), of({1, 2, 3}), {0.25, 0});
  CHECK(finding == "at [1]: got 2.5, want 2, off by 0.5, allowed 0.25 (2 of 3 elements differ)");
  CHECK(difference(of({1, 2}), of({1, 2, 3}), {9, 9}) == "2 elements against 3");
}

TEST_CASE("difference: NaN and infinity never pass by accident") {
  CHECK(difference(of({kNan}), of({1}), {1e30, 1e30}) != "");
  CHECK(difference(of({1}), of({kNan}), {1e30, 1e30}) != "");
  CHECK(difference(of({kNan}), of({kNan}), {0, 0}) == "");
  CHECK(difference(of({kInf}), of({kInf}), {0, 0}) == "");
  CHECK(difference(of({kInf}), of({-kInf}), {1, 0}) != "");
  CHECK(difference(of({1}), of({kInf}), {1, 0}) != "");
  CHECK(difference(of({1}), of({1.5}), {kNan, 0}) != "");  // a broken bound is not a pass
}

TEST_CASE("difference: an element that nobody wrote is a finding on both sides") {
  for (DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    GuardedTensor got(dtype, {2}), want(dtype, {2});
    got.set(0, 1), want.set(0, 1);
    CHECK(difference(got, want, {0, 0}).find("never written") != std::string::npos);
    got.set(1, kNan), want.set(1, kNan);
    CHECK(difference(got, want, {0, 0}) == "");
  }
}

TEST_CASE("difference_bits: tells signed zeros and neighbours apart") {
  CHECK(difference_bits(of({1, -2}), of({1, -2})) == "");
  CHECK(difference_bits(of({0.0}), of({-0.0})) != "");
  CHECK(difference_bits(of({1}), of({std::nextafter(1.0f, 2.0f)})) != "");
}

TEST_CASE("guard bands: before, after and in the gaps") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    GuardedTensor x = random_tensor(dtype, {3, 5}, 1, padded_strides({3, 5}, 2));
    CHECK(x.view().stride[0] == 7);
    CHECK(x.broken_guard() == "");
    char* const first = static_cast<char*>(x.view().data);
    const int bytes = info(dtype).block_bytes;
    for (int at : {-1, 5, 13, 19}) {  // before, in two gaps, after the last
      const std::vector<uint8_t> before = x.contents();
      first[at * bytes] = 0;
      CHECK(x.broken_guard().find(fmt::format("element {} ", at)) != std::string::npos);
      x.restore(before);
      CHECK(x.broken_guard() == "");
    }
  }
}

TEST_CASE("random tensors depend on the seed and on nothing else") {
  CHECK(difference_bits(random_tensor(DType::f32, {4, 4}, 7), random_tensor(DType::f32, {4, 4}, 7)) == "");
  CHECK(difference_bits(random_tensor(DType::f32, {4, 4}, 7, padded_strides({4, 4}, 3)),
                        random_tensor(DType::f32, {4, 4}, 7)) == "");
  CHECK(difference_bits(random_tensor(DType::f32, {4, 4}, 7), random_tensor(DType::f32, {4, 4}, 8)) != "");
}

}  // namespace
}  // namespace llmops::test
