// One matmul from its arguments to its tasks. Comes after matmul_kernel.h and matmul_pack.h.
#pragma once

namespace llmops::LLMOPS_ISA {

using Kernel = void (*)(const Tile&);

// Kernels for 1 .. kTileRows rows of a.
template <class Product, int kPanels, bool kByStep, int... kRow>
Kernel row_kernel(int rows, std::integer_sequence<int, kRow...>) {
  static constexpr Kernel kTable[] = {run_tile<Product, kRow + 1, kPanels, kByStep>...};
  return kTable[rows - 1];
}
template <class Product>
Kernel kernel_for(bool by_step, int rows, int panels) {
  constexpr auto kRows = std::make_integer_sequence<int, kTileRows>();
  if (panels > kTilePanels) return by_step ? run_tile<Product, 1, kFlatPanels, true> : run_tile<Product, 1, kFlatPanels, false>;
  if (panels == 1) return by_step ? row_kernel<Product, 1, true>(rows, kRows) : row_kernel<Product, 1, false>(rows, kRows);
  return by_step ? row_kernel<Product, kTilePanels, true>(rows, kRows) : row_kernel<Product, kTilePanels, false>(rows, kRows);
}

inline Ends ends_of(const MatmulArgs& args) {
  const auto elem_bytes = [](const ConstTensorView& x) { return info(x.dtype).block_bytes; };
  ConstTensorView other = args.act_backward.present() ? args.act_backward : args.residual;
  if (!other.present()) other = args.aux.present() ? ConstTensorView(args.aux) : ConstTensorView(args.out);
  const int64_t out_elem = elem_bytes(args.out), other_elem = elem_bytes(other);
  return {static_cast<const char*>(args.out.data), static_cast<const char*>(other.data), args.out.stride[0] * out_elem,
          other.stride[0] * other_elem, out_elem, other_elem};
}

// What a task needs to know.
template <class Kind>
struct Matmul {
  using In = typename Kind::In;

  const MatmulArgs& args;
  int64_t k;
  MatmulBlocks blocks;
  const float* panels;  // all of b as the kernel reads it, or null: tasks pack their columns
  std::byte* scratch;   // of the workers
  bool b_in_place;
  bool bare;
  Finish finish;

  // Panels of the columns from n0 on (a multiple of 16) in a chain that begins at k0 and has `steps`, within all of b.
  int64_t panel_at(int64_t k0, int64_t steps, int64_t n0) const {
    return k0 / Kind::kPerStep * round_up(blocks.n, kLanes) + n0 * steps;
  }
  void task(int64_t index, int worker) const;
  void copy_a(int64_t k0, int64_t kc, int64_t m0, int64_t rows, float* packed) const;
  void place_a(Tile& tile, int64_t k0, int64_t m0, int64_t m, const float* packed) const;
  void look_ahead(Tile& tile, int64_t k0, int64_t m, int64_t index) const;
  void rows_block(Tile& tile, int64_t k0, int64_t kc, int64_t m0, int64_t rows, int64_t n0, int64_t columns,
                  float* packed) const;
  void pack_b(int64_t k0, int64_t kc, int64_t n0, int64_t columns, int64_t panel_elems, float* out) const;
  void pack_all(Pool& pool, float* out) const;
};

// Panels of b[k0 .. k0 + kc, n0 .. n0 + columns], panel_elems apart.
template <class Kind>
void Matmul<Kind>::pack_b(int64_t k0, int64_t kc, int64_t n0, int64_t columns, int64_t panel_elems, float* out) const {
  const ConstTensorView& b = args.b.data;
  if (args.b.pack == Pack::plain && !args.b_trans)
    return Kind::b_columns(at<const In>(b, k0, n0), b.stride[0], columns, kc, panel_elems, out);
  for (int64_t n = 0; n < columns; n += kLanes, out += panel_elems) {
    if (args.b.pack == Pack::plain) {
      const int part = static_cast<int>(std::min<int64_t>(kLanes, columns - n));
      Kind::b_rows(at<const In>(b, n0 + n, k0), b.stride[0], part, kc, out);
    } else if constexpr (!Kind::kReadsPanels) {
      const int64_t pairs = k0 / 2 * round_up(blocks.n, kLanes) + (n0 + n) * ceil_div(kc, 2);
      Kind::widen_panel(static_cast<const float*>(b.data) + pairs, kc, out);
    }
  }
}

// Packs all of b, where several tasks read the same columns.
template <class Kind>
void Matmul<Kind>::pack_all(Pool& pool, float* out) const {
  constexpr int64_t kColumns = 4 * kLanes;
  const int64_t n = blocks.n;
  pool.parallel_for(ceil_div(n, kColumns), [&](int64_t group, int) {
    const int64_t n0 = group * kColumns;
    for (int64_t k0 = 0; k0 < k; k0 += kChain) {
      const int64_t kc = std::min(kChain, k - k0), steps = ceil_div(kc, Kind::kPerStep);
      pack_b(k0, kc, n0, std::min(kColumns, n - n0), steps * kLanes, out + panel_at(k0, steps, n0));
    }
  });
}

// The rows of a block, for kinds that do not read a where it lies.
template <class Kind>
void Matmul<Kind>::copy_a(int64_t k0, int64_t kc, int64_t m0, int64_t rows, float* packed) const {
  const ConstTensorView& a = args.a;
  if constexpr (Kind::kCopiesA) {
    if (args.a_trans) Kind::a_tiles(at<const In>(a, k0, m0), a.stride[0], rows, kc, packed);
    else Kind::a_rows(at<const In>(a, m0, k0), a.stride[0], rows, kc, packed);
  }
}

// Where the tile of row m0 + m finds a.
template <class Kind>
void Matmul<Kind>::place_a(Tile& tile, int64_t k0, int64_t m0, int64_t m, const float* packed) const {
  const ConstTensorView& a = args.a;
  if constexpr (Kind::kCopiesA) {
    tile.a = packed + (args.a_trans ? m / kTileRows * tile_elems(tile.k) : m * tile.k);
    tile.a_row = tile.k;
    tile.a_step = kTileRows;
  } else {
    tile.a = args.a_trans ? at<float>(a, k0, m0 + m) : at<float>(a, m0 + m, k0);
    tile.a_row = tile.a_step = a.stride[0];
  }
}

// What tile number `index` of a block fetches of the a of the next block, which begins at row m: a line of each step, or
// of rows without gaps a line for each step.
template <class Kind>
void Matmul<Kind>::look_ahead(Tile& tile, int64_t k0, int64_t m, int64_t index) const {
  constexpr int64_t kLine = 64;
  const ConstTensorView& a = args.a;
  const int64_t row_bytes = a.stride[0] * static_cast<int64_t>(sizeof(In));
  tile.ahead = reinterpret_cast<const char*>(tile.a);
  tile.ahead_step = 0;
  if (m >= blocks.m) return;
  if (args.a_trans) {
    if (index * kLine >= blocks.m_block * static_cast<int64_t>(sizeof(In))) return;
    tile.ahead = reinterpret_cast<const char*>(at<const In>(a, k0, m)) + index * kLine;
    tile.ahead_step = row_bytes * Kind::kPerStep;
  } else if (a.stride[0] == k && blocks.chains == 1 && index * kLine * tile.k < blocks.m_block * row_bytes) {
    tile.ahead = reinterpret_cast<const char*>(at<const In>(a, m, k0)) + index * kLine * tile.k;
    tile.ahead_step = kLine;
  }
}

// The tiles of rows [m0, m0 + rows) x columns [n0, n0 + columns) for k in [k0, k0 + kc); tile.b is the first panel.
template <class Kind>
void Matmul<Kind>::rows_block(Tile& tile, int64_t k0, int64_t kc, int64_t m0, int64_t rows, int64_t n0, int64_t columns,
                              float* packed) const {
  copy_a(k0, kc, m0, rows, packed);
  const float* const b = tile.b;
  int64_t index = 0;
  for (int64_t n = 0; n < columns; n += tile.cols) {
    tile.b = b + n / kLanes * tile.b_panel;
    tile.n = n0 + n;
    const bool flat = rows == 1 && columns - n >= kFlatCols;
    tile.cols = flat ? kFlatCols : static_cast<int>(std::min<int64_t>(kTileCols, columns - n));
    for (int64_t m = 0; m < rows; m += kTileRows) {
      tile.m = m0 + m;
      tile.rows = static_cast<int>(std::min<int64_t>(kTileRows, rows - m));
      place_a(tile, k0, m0, m, packed);
      look_ahead(tile, k0, m0 + rows, index++);
      kernel_for<typename Kind::Product>(args.a_trans, tile.rows, static_cast<int>(ceil_div(tile.cols, kLanes)))(tile);
      if (blocks.chains > 1) tile.partial += kTileRows * kTileCols;
    }
  }
  tile.b = b;
}

template <class Kind>
void Matmul<Kind>::task(int64_t index, int worker) const {
  const int64_t m0 = index % blocks.m_tasks * blocks.m_task, m1 = std::min(blocks.m, m0 + blocks.m_task);
  const int64_t n0 = index / blocks.m_tasks * blocks.n_task, columns = std::min(blocks.n - n0, blocks.n_task);
  auto* const partial = reinterpret_cast<float*>(scratch + worker * blocks.worker_bytes);
  float* const packed_b = partial + blocks.partial_elems;
  float* const packed_a = packed_b + blocks.b_elems;

  Tile tile = {};
  tile.args = &args;
  tile.finish = finish;
  tile.bare = bare;
  tile.ends = ends_of(args);
  for (int64_t chain = 0; chain < blocks.chains; ++chain) {
    const int64_t k0 = chain * kChain, kc = std::min(kChain, k - k0);
    tile.k = ceil_div(kc, Kind::kPerStep);
    tile.first = chain == 0;
    tile.last = chain + 1 == blocks.chains;
    tile.partial = partial;
    tile.b_panel = tile.k * kLanes;
    tile.b_step = kLanes;
    if (b_in_place) {
      tile.b = at<const float>(args.b.data, k0, n0);
      tile.b_panel = kLanes;
      tile.b_step = args.b.data.stride[0];
    } else if (panels != nullptr) {
      tile.b = panels + panel_at(k0, tile.k, n0);
    } else {
      tile.b = packed_b;
      pack_b(k0, kc, n0, columns, tile.b_panel, packed_b);
    }
    for (int64_t m = m0; m < m1; m += blocks.m_block)
      rows_block(tile, k0, kc, m, std::min(blocks.m_block, m1 - m), n0, columns, packed_a);
  }
}

// Rows of a stored [k,n] that a chain passes over stay together in L2 up to this size; further apart they would meet in
// its sets, and b is packed.
constexpr int64_t kInPlaceBytesMax = 256 << 10;

// Whether tiles read b where it lies: f32, stored [k,n], whole panels.
template <class Kind>
bool reads_b_in_place(const MatmulArgs& args, int64_t k) {
  const ConstTensorView& b = args.b.data;
  return !Kind::kCopiesA && args.b.pack == Pack::plain && !args.b_trans && b.dim[1] % kLanes == 0 &&
         std::min(k, kChain) * b.stride[0] * static_cast<int64_t>(sizeof(float)) <= kInPlaceBytesMax;
}

template <class Kind>
Status run_matmul(Stream& stream, const MatmulArgs& args) {
  using In = typename Kind::In;
  if (args.out.elems() == 0) return {};
  const int64_t k = args.a.dim[args.a_trans ? 0 : 1];
  const bool ready = args.b.pack == Pack::panels && Kind::kReadsPanels, in_place = reads_b_in_place<Kind>(args, k);
  const MatmulBlocks blocks = matmul_blocks({.m = args.out.dim[0],
                                             .n = args.out.dim[1],
                                             .steps = ceil_div(k, Kind::kPerStep),
                                             .chain_steps = kChain / Kind::kPerStep,
                                             .tile_rows = kTileRows,
                                             .tile_cols = kTileCols,
                                             .a_trans = args.a_trans,
                                             .copies_a = Kind::kCopiesA,
                                             .b_ready = ready || in_place});
  Pool& pool = stream.device().pool();
  LLMOPS_ASSIGN(void* memory, stream.workspace(blocks.shared_bytes + pool.threads() * blocks.worker_bytes));
  const bool bare = args.out.dtype == DType::f32 && !args.bias.present() && !args.residual.present() &&
                    args.act == Activation::none && !args.act_backward.present();
  Matmul<Kind> matmul = {args, k, blocks, nullptr, static_cast<std::byte*>(memory) + blocks.shared_bytes, in_place, bare,
                         args.out.dtype == DType::f32 ? finish_tile<In, float> : finish_tile<In, bf16>};
  if (ready) matmul.panels = static_cast<const float*>(args.b.data.data);
  if (blocks.shared_bytes > 0) {
    matmul.pack_all(pool, static_cast<float*>(memory));
    matmul.panels = static_cast<const float*>(memory);
  }
  pool.parallel_for(blocks.m_tasks * blocks.n_tasks, [&](int64_t index, int worker) { matmul.task(index, worker); });
  return {};
}

}  // namespace llmops::LLMOPS_ISA
