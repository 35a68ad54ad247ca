// matmul and matmul_pack: which kernel runs. Packed weights of this table are the dense matrix [n,k], which our kernels
// read as they read a plain one: 16 bytes along k.
#include "kernels/cuda/matmul.h"

#include "base/checked.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/entries.h"
#include "kernels/cuda/matmul_epilogue.h"

namespace llmops::cuda {
namespace {

constexpr int kPackTile = 32, kPackRows = 8;  // a block of 32 x 8 threads turns a tile of 32 x 32

template <class T>
struct PackTile {
  T v[kPackTile][kPackTile + 1];
};

// out[n,k] = b[k,n], or b[n,k] when b_trans.
template <class T>
__global__ void __launch_bounds__(kPackTile * kPackRows) pack(Matrix<const T> b, T* out, int64_t n, int64_t k,
                                                              bool b_trans) {
  PackTile<T>& tile = block_shared<PackTile<T>>();
  const int64_t n0 = int64_t{blockIdx.x} * kPackTile, k0 = int64_t{blockIdx.y} * kPackTile;
  const int x = static_cast<int>(threadIdx.x) % kPackTile, y = static_cast<int>(threadIdx.x) / kPackTile;
  for (int i = y; i < kPackTile; i += kPackRows) {
    if (b_trans && n0 + i < n && k0 + x < k) tile.v[x][i] = *b.at(n0 + i, k0 + x);
    if (!b_trans && k0 + i < k && n0 + x < n) tile.v[i][x] = *b.at(k0 + i, n0 + x);
  }
  __syncthreads();
  for (int i = y; i < kPackTile; i += kPackRows)
    if (n0 + i < n && k0 + x < k) out[(n0 + i) * k + k0 + x] = tile.v[x][i];
}

template <class T>
Status run_pack(Stream& stream, const MatmulPackArgs& a) {
  const int64_t k = a.b.dim[a.b_trans ? 1 : 0], n = a.b.dim[a.b_trans ? 0 : 1];
  const dim3 grid(static_cast<unsigned>(ceil_div(n, int64_t{kPackTile})),
                  static_cast<unsigned>(ceil_div(k, int64_t{kPackTile})));
  return launch(stream.native(), grid, kPackTile * kPackRows, sizeof(PackTile<T>), "matmul_pack", pack<T>,
                matrix_of<const T>(a.b), static_cast<T*>(a.out.data), n, k, a.b_trans);
}

// True: the sums on the side are done too.
Result<bool> run_product(Stream& stream, const MatmulArgs& args) {
  MatmulArgs plain = args;
  if (args.b.pack == Pack::panels) {
    const int64_t k = args.a.dim[args.a_trans ? 0 : 1];
    plain.b = {dense_view(args.b.data.data, args.a.dtype, {args.out.dim[1], k}, args.b.data.device)};
    plain.b_trans = true;
  }
  const auto by_library = [&](const MatmulArgs& a) -> Result<bool> {
    return stream.device().fast_matmul() && cublaslt_takes(a) ? cublaslt_matmul(stream, a) : Result<bool>(false);
  };
  if (sums_of(args).dbias.present()) {
    LLMOPS_ASSIGN(const bool done, by_library(plain));
    if (done) return true;
    plain.a_sums = plain.b_sums = {};
  }
  LLMOPS_ASSIGN(const bool done, by_library(plain));
  if (done) return false;
  LLMOPS_TRY(args.a.dtype == DType::f32 ? matmul_f32(stream, plain) : matmul_bf16(stream, plain));
  return false;
}

}  // namespace

Status matmul(Stream& stream, const MatmulArgs& args) {
  const BiasBackwardArgs sums = sums_of(args);
  if (args.out.elems() > 0) {
    LLMOPS_ASSIGN(const bool summed, run_product(stream, args));
    if (summed) return {};
  }
  return sums.dbias.present() ? cuda::bias_backward(stream, sums) : Status();
}

Status matmul_pack(Stream& stream, const MatmulPackArgs& args) {
  if (args.b.elems() == 0) return {};
  return args.b.dtype == DType::f32 ? run_pack<float>(stream, args) : run_pack<bf16>(stream, args);
}

}  // namespace llmops::cuda
