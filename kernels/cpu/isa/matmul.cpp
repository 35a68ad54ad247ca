// The packed matmul. Every element of out is the same chain of fma whatever the tile, thread or instruction set (ops.h); all
// that is chosen here is the order in which tiles are computed and where their operands lie in the caches.
#include "kernels/cpu/entries.h"
#include "kernels/cpu/matmul_blocks.h"
#include "kernels/cpu/tasks.h"
#include "kernels/cpu/vec.h"

#include "kernels/cpu/gelu.h"
#include "kernels/cpu/lanes.h"

#include "kernels/cpu/matmul_kernel.h"
#include "kernels/cpu/matmul_pack.h"

namespace llmops::LLMOPS_ISA {
namespace {

using Kernel = void (*)(const Tile&);

// Kernels for 1 .. kTileRows rows of a that lie where they are. Template arguments: panels, then rows - 1 as a pack.
template <int kPanels, int... kRow>
constexpr Kernel row_kernel(int rows, std::integer_sequence<int, kRow...>) {
  constexpr Kernel kTable[] = {run_tile<kRow + 1, kPanels, 1>...};
  return kTable[rows - 1];
}
LLMOPS_INLINE Kernel kernel_for(bool packed_a, int rows, int panels) {
  constexpr auto kRows = std::make_integer_sequence<int, kTileRows>();
  if (packed_a) return panels == 1 ? run_tile<kTileRows, 1, kTileRows> : run_tile<kTileRows, kTilePanels, kTileRows>;
  return panels == 1 ? row_kernel<1>(rows, kRows) : row_kernel<kTilePanels>(rows, kRows);
}

// One matmul, with what a task needs to know. T: the dtype of a and b.
template <class T>
struct Matmul {
  const MatmulArgs& args;
  MatmulBlocks blocks;
  const float* panels;  // all of b packed as f32, or null
  std::byte* scratch;   // of the workers
  bool bare;
  Finish finish;

  void task(int64_t index, int worker) const;
  void pack_b(int64_t k0, int64_t kc, int64_t n0, int64_t columns, int64_t panel_elems, float* out) const;
  void rows_block(Tile& tile, int64_t k0, int64_t m0, int64_t rows, int64_t n0, int64_t columns, float* packed) const;
};

// Panels of b[k0 .. k0 + kc, n0 .. n0 + columns], panel_elems apart.
template <class T>
void Matmul<T>::pack_b(int64_t k0, int64_t kc, int64_t n0, int64_t columns, int64_t panel_elems, float* out) const {
  const ConstTensorView& b = args.b.data;
  if (args.b.pack == Pack::plain && !args.b_trans)
    return pack_columns(at<const T>(b, k0, n0), b.stride[0], columns, kc, panel_elems, out);
  for (int64_t n = 0; n < columns; n += kLanes, out += panel_elems) {
    if (args.b.pack == Pack::panels) {
      const int64_t pairs = ceil_div(blocks.k, 2);
      widen_pairs(static_cast<const bf16*>(b.data) + ((n0 + n) / kLanes * pairs + k0 / 2) * 2 * kLanes, kc, out);
    } else {
      const int part = static_cast<int>(std::min<int64_t>(kLanes, columns - n));
      pack_rows(at<const T>(b, n0 + n, k0), b.stride[0], part, kc, out);
    }
  }
}

// The tiles of rows [m0, m0 + rows) x columns [n0, n0 + columns); tile.b is the first panel.
template <class T>
void Matmul<T>::rows_block(Tile& tile, int64_t k0, int64_t m0, int64_t rows, int64_t n0, int64_t columns, float* packed) const {
  const float* a = packed;
  if (args.a_trans) {
    pack_tiles(at<const T>(args.a, k0, m0), args.a.stride[0], rows, tile.k, packed);
  } else if constexpr (std::is_same_v<T, bf16>) {
    widen_rows(at<const T>(args.a, m0, k0), args.a.stride[0], rows, tile.k, packed);
  } else {
    a = at<const float>(args.a, m0, k0);
  }
  tile.a_row = std::is_same_v<T, bf16> ? tile.k : args.a.stride[0];
  const int64_t a_tile = args.a_trans ? tile_elems(tile.k) : kTileRows * tile.a_row;
  const float* b = tile.b;
  float* const partial = tile.partial;
  for (int64_t n = 0; n < columns; n += kTileCols) {
    tile.b = b + n / kLanes * tile.b_panel;
    tile.n = n0 + n;
    tile.cols = static_cast<int>(std::min<int64_t>(kTileCols, columns - n));
    for (int64_t m = 0; m < rows; m += kTileRows) {
      tile.a = a + m / kTileRows * a_tile;
      tile.m = m0 + m;
      tile.rows = static_cast<int>(std::min<int64_t>(kTileRows, rows - m));
      kernel_for(args.a_trans, tile.rows, static_cast<int>(ceil_div(tile.cols, kLanes)))(tile);
      if (blocks.chains > 1) tile.partial += kTileRows * kTileCols;
    }
  }
  tile.b = b;
  if (blocks.chains == 1) tile.partial = partial;
}

template <class T>
void Matmul<T>::task(int64_t index, int worker) const {
  const int64_t m0 = index % blocks.m_tasks * blocks.m_task, m1 = std::min(blocks.m, m0 + blocks.m_task);
  const int64_t n0 = index / blocks.m_tasks * blocks.n_task, columns = std::min(blocks.n - n0, blocks.n_task);
  auto* const partial = reinterpret_cast<float*>(scratch + worker * blocks.worker_bytes);
  float* const packed_b = partial + blocks.partial_elems;
  float* const packed_a = packed_b + blocks.b_elems;

  Tile tile = {};
  tile.args = &args;
  tile.finish = finish;
  tile.bare = bare;
  for (int64_t chain = 0; chain < blocks.chains; ++chain) {
    const int64_t k0 = chain * kChain;
    tile.k = std::min(kChain, blocks.k - k0);
    tile.first = chain == 0;
    tile.last = chain + 1 == blocks.chains;
    tile.partial = partial;
    if (panels != nullptr) {
      tile.b_panel = blocks.k * kLanes;
      tile.b = panels + n0 / kLanes * tile.b_panel + k0 * kLanes;
    } else {
      tile.b_panel = tile.k * kLanes;
      pack_b(k0, tile.k, n0, columns, tile.b_panel, packed_b);
      tile.b = packed_b;
    }
    for (int64_t m = m0; m < m1; m += blocks.m_block)
      rows_block(tile, k0, m, std::min(blocks.m_block, m1 - m), n0, columns, packed_a);
  }
}

template <class T>
Finish finish_for(DType out) {
  return out == DType::f32 ? finish_tile<T, float> : finish_tile<T, bf16>;
}

// Packs all of b[k,n] into f32 panels, where several tasks read the same columns.
template <class T>
void pack_all(Pool& pool, const Matmul<T>& matmul, float* out) {
  constexpr int64_t kColumns = 4 * kLanes;
  const int64_t k = matmul.blocks.k, n = matmul.blocks.n;
  pool.parallel_for(ceil_div(n, kColumns), [&](int64_t group, int) {
    const int64_t n0 = group * kColumns;
    for (int64_t k0 = 0; k0 < k; k0 += kChain)
      matmul.pack_b(k0, std::min(kChain, k - k0), n0, std::min(kColumns, n - n0), k * kLanes, out + n0 * k + k0 * kLanes);
  });
}

template <class T>
Status run(Stream& stream, const MatmulArgs& args) {
  const int64_t k = args.a.dim[args.a_trans ? 0 : 1];
  const bool ready = args.b.pack == Pack::panels && std::is_same_v<T, float>;
  const MatmulBlocks blocks = matmul_blocks({.m = args.out.dim[0], .n = args.out.dim[1], .k = k, .tile_rows = kTileRows,
                                             .tile_cols = kTileCols, .copies_a = args.a_trans || !std::is_same_v<T, float>,
                                             .b_ready = ready});
  if (blocks.m == 0 || blocks.n == 0) return {};
  Pool& pool = stream.device().pool();
  LLMOPS_ASSIGN(void* memory, stream.workspace(blocks.shared_bytes + pool.threads() * blocks.worker_bytes));
  auto* const shared = static_cast<float*>(memory);
  const bool bare = args.out.dtype == DType::f32 && !args.bias.present() && !args.residual.present() &&
                    args.act == Activation::none && !args.act_backward.present();
  Matmul<T> matmul = {args, blocks, nullptr, static_cast<std::byte*>(memory) + blocks.shared_bytes, bare,
                      finish_for<T>(args.out.dtype)};
  if (blocks.shared_bytes > 0) pack_all(pool, matmul, shared);
  matmul.panels = ready ? static_cast<const float*>(args.b.data.data) : blocks.shared_bytes > 0 ? shared : nullptr;
  pool.parallel_for(blocks.m_tasks * blocks.n_tasks, [&](int64_t index, int worker) { matmul.task(index, worker); });
  return {};
}

// The panels of one group of columns; f32 as the kernel reads them, bf16 in pairs of k.
void pack_group(const MatmulPackArgs& args, int64_t k, int64_t n0, int64_t columns, float* out) {
  for (int64_t k0 = 0; k0 < k; k0 += kChain, out += kChain * kLanes) {
    const int64_t kc = std::min(kChain, k - k0);
    if (!args.b_trans) {
      pack_columns(at<const float>(args.b, k0, n0), args.b.stride[0], columns, kc, k * kLanes, out);
      continue;
    }
    for (int64_t n = 0; n < columns; n += kLanes)
      pack_rows(at<const float>(args.b, n0 + n, k0), args.b.stride[0], static_cast<int>(std::min<int64_t>(kLanes, columns - n)),
                kc, out + n * k);
  }
}
void pack_group(const MatmulPackArgs& args, int64_t k, int64_t n0, int64_t columns, bf16* out) {
  const int64_t pairs = ceil_div(k, 2);
  for (int64_t n = 0; n < round_up(columns, kLanes); ++n)
    for (int64_t i = 0; i < 2 * pairs; ++i)
      out[((n / kLanes * pairs + i / 2) * kLanes + n % kLanes) * 2 + i % 2] =
          i >= k || n >= columns ? bf16{0} : args.b_trans ? *at<const bf16>(args.b, n0 + n, i) : *at<const bf16>(args.b, i, n0 + n);
}

template <class T>
Status run_pack(Stream& stream, const MatmulPackArgs& args) {
  constexpr int64_t kColumns = 4 * kLanes;
  const int64_t k = args.b.dim[args.b_trans ? 1 : 0], n = args.b.dim[args.b_trans ? 0 : 1];
  const int64_t column_elems = std::is_same_v<T, float> ? k : round_up(k, 2);
  stream.device().pool().parallel_for(ceil_div(n, kColumns), [&](int64_t group, int) {
    const int64_t n0 = group * kColumns;
    pack_group(args, k, n0, std::min(kColumns, n - n0), static_cast<T*>(args.out.data) + n0 * column_elems);
  });
  return {};
}

}  // namespace

Status matmul(Stream& stream, const MatmulArgs& args) {
  return args.a.dtype == DType::f32 ? run<float>(stream, args) : run<bf16>(stream, args);
}

Status matmul_pack(Stream& stream, const MatmulPackArgs& args) {
  return args.b.dtype == DType::f32 ? run_pack<float>(stream, args) : run_pack<bf16>(stream, args);
}

}  // namespace llmops::LLMOPS_ISA

#include "kernels/cpu/vec_end.h"
