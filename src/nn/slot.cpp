#include "nn/slot.h"

#include "base/checked.h"

namespace llmops {

Result<Slot> Slot::make(Device& device, const std::vector<ActRow>& table, DType dtype, Category category) {
  constexpr int64_t kAlignBytes = 64;
  int64_t bytes = 0;
  std::vector<int64_t> offsets;
  for (const ActRow& row : table) {
    offsets.push_back(bytes);
    const auto size = bytes_of(row.f32 ? DType::f32 : dtype, elems_of(row.dims));
    if (!size) return io_error("activations: sizes overflow");
    bytes += round_up(*size, kAlignBytes);
  }
  Slot slot;
  LLMOPS_ASSIGN(slot.memory_, device.alloc(bytes, category));
  for (size_t i = 0; i < table.size(); ++i) {
    const ActRow& row = table[i];
    void* data = slot.memory_.as<char>() + offsets[i];
    const DType type = row.f32 ? DType::f32 : dtype;
    slot.views_[static_cast<size_t>(row.act)] = row.dims.size() == 1
                                                    ? dense_view(data, type, {row.dims[0]}, device.id())
                                                    : dense_view(data, type, {row.dims[0], row.dims[1]}, device.id());
  }
  return slot;
}

TensorView Slot::operator()(Act act, int64_t n) const {
  const TensorView& view = views_[static_cast<size_t>(act)];
  return view.present() ? rows(view, 0, n) : view;
}

}  // namespace llmops
