#include "ckpt/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace llmops {
namespace {

constexpr int64_t kPieceBytes = 4 << 20;

// A box as rows and columns; a vector is one row.
struct Plane {
  int64_t row, rows, column, columns;
  explicit Plane(const Box& box) {
    const size_t rank = box.extent.size();
    row = rank > 1 ? box.offset[0] : 0;
    rows = rank > 1 ? box.extent[0] : 1;
    column = rank > 0 ? box.offset.back() : 0;
    columns = rank > 0 ? box.extent.back() : 1;
  }
};

template <class From, class To>
void convert(const From* from, To* to, int64_t count) {
  if constexpr (std::is_same_v<From, To>) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(To));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<To, float>)
      to[i] = to_f32(from[i]);
    else
      to[i] = to_bf16(to_f32(from[i]));
  }
}

template <class To>
void convert_row(DType dtype, const std::byte* from, To* to, int64_t count) {
  if (dtype == DType::f32)
    convert(reinterpret_cast<const float*>(from), to, count);
  else if (dtype == DType::bf16)
    convert(reinterpret_cast<const bf16*>(from), to, count);
  else
    convert(reinterpret_cast<const f16*>(from), to, count);
}

}  // namespace

Status read_region(const StoredRegion& region, const Box& wanted, DType to, void* out, int64_t row_stride) {
  if (region.dtype != DType::f32 && region.dtype != DType::bf16 && region.dtype != DType::f16)
    return invalid_error(fmt::format("{}: weights of dtype {} cannot be read as {}", region.file->path(),
                                     info(region.dtype).name, info(to).name));
  const Plane have(region.box), want(wanted);
  const int64_t row0 = std::max(have.row, want.row), row1 = std::min(have.row + have.rows, want.row + want.rows);
  const int64_t col0 = std::max(have.column, want.column),
                col1 = std::min(have.column + have.columns, want.column + want.columns);
  if (row0 >= row1 || col0 >= col1) return {};
  const int64_t size = info(region.dtype).block_bytes, row_bytes = have.columns * size;
  const int64_t rows_per_piece = std::max<int64_t>(1, kPieceBytes / row_bytes);
  std::vector<std::byte> piece;
  for (int64_t row = row0; row < row1; row += rows_per_piece) {
    const int64_t count = std::min(rows_per_piece, row1 - row);
    piece.resize(static_cast<size_t>(count * row_bytes));
    LLMOPS_TRY(region.file->read_at(region.begin + (row - have.row) * row_bytes, piece));
    for (int64_t i = 0; i < count; ++i) {
      const std::byte* from = piece.data() + i * row_bytes + (col0 - have.column) * size;
      const int64_t at = (row + i - want.row) * row_stride + col0 - want.column;
      if (to == DType::f32)
        convert_row(region.dtype, from, static_cast<float*>(out) + at, col1 - col0);
      else
        convert_row(region.dtype, from, static_cast<bf16*>(out) + at, col1 - col0);
    }
  }
  return {};
}

}  // namespace llmops
