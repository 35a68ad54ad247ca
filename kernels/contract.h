// The language in which an op states its contract: tensors by name, dtype and axis letters. The first violation is kept
// as one message that names the op, the tensor, what was found and what was expected.
//
//   Contract c("layer_norm", device);
//   c.in("x", a.x, kT, "nd").in("weight", a.weight, kT, "d").out("out", a.out, kT, "nd");
//
// A letter takes its size where it is first seen and must have the same size everywhere else. kT is f32 or bf16, fixed
// by the first kT tensor.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "kernels/ops.h"

namespace llmops {

// A fixed dtype, or one of the two families.
struct TypeRule {
  enum class Kind : uint8_t { fixed, op_type, any_float } kind;
  DType dtype;
};
inline constexpr TypeRule kT = {TypeRule::Kind::op_type, DType::f32};
inline constexpr TypeRule kAnyFloat = {TypeRule::Kind::any_float, DType::f32};
constexpr TypeRule only(DType dtype) { return {TypeRule::Kind::fixed, dtype}; }

// Which axes may have gaps: none (dense), or all but the innermost.
enum class Layout : uint8_t { dense, strided };

class Contract {
 public:
  Contract(const char* op, DeviceId device) : op_(op), device_(device) {}

  Contract& in(const char* name, const ConstTensorView& view, TypeRule type, std::string_view axes,
               Layout layout = Layout::dense);
  Contract& out(const char* name, const ConstTensorView& view, TypeRule type, std::string_view axes,
                Layout layout = Layout::dense);
  // The same for a tensor that may be absent.
  Contract& maybe_in(const char* name, const ConstTensorView& view, TypeRule type, std::string_view axes,
                     Layout layout = Layout::dense);
  Contract& maybe_out(const char* name, const ConstTensorView& view, TypeRule type, std::string_view axes,
                      Layout layout = Layout::dense);

  Contract& bind(char axis, int64_t size);  // a size that does not come from a tensor
  int64_t size(char axis) const { return sizes_[axis - 'A']; }  // 0 when not seen

  // Scalars and relations: when `holds` is false, the message is "op: " + text.
  Contract& require(bool holds, std::string_view text);
  Contract& finite(const char* name, float value);
  Contract& aligned(const char* name, const void* data);  // to 64 bytes, as every Buffer is
  Contract& positive(const char* name, float value);

  // Every output is apart from every other tensor; a pair (output, other) of `same_ok` may also be the very same view.
  struct Pair {
    const char *output, *other;
  };
  Contract& apart(std::initializer_list<Pair> same_ok = {});

  bool ok() const { return error_.empty(); }
  Status status() const { return ok() ? Status() : invalid_error(error_); }
  std::string operands() const;  // "x BF16 [4,64], weight BF16 [64], ..."

 private:
  struct Operand {
    const char* name;
    ConstTensorView view;
    bool output;
  };
  void add(const char* name, const ConstTensorView& view, TypeRule type, std::string_view axes, Layout layout,
           bool output);
  bool check_type(const char* name, const ConstTensorView& view, TypeRule type, std::string_view axes);
  bool check_shape(const char* name, const ConstTensorView& view, std::string_view axes);
  bool check_memory(const char* name, const ConstTensorView& view, Layout layout, bool output);
  std::string expected(std::string_view axes) const;
  bool fail(std::string_view text);  // false

  static constexpr int kOperandsMax = 16;
  static constexpr int kLetters = 'z' - 'A' + 1;
  const char* op_;
  DeviceId device_;
  int64_t sizes_[kLetters] = {};
  bool seen_[kLetters] = {};
  bool type_seen_ = false;
  DType type_ = DType::f32;
  Operand operands_[kOperandsMax];
  int operand_count_ = 0;
  std::string error_;
};

// True when the two views may share an element. Slices of the rows of one matrix (q, k, v of a fused projection) are
// apart.
bool views_overlap(const ConstTensorView& a, const ConstTensorView& b);
bool views_equal(const ConstTensorView& a, const ConstTensorView& b);
std::string text_of(const ConstTensorView& view);  // "BF16 [4,64]", with strides unless dense

// One contract per op: contracts_*.cpp.
#define X(op, Args) Contract contract_of(const Args& args, DeviceId device);
LLMOPS_OPS(X)
#undef X

}  // namespace llmops
