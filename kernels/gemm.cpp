// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm.hpp"

#include <KokkosBlas3_gemm.hpp>

#include "kernels/kokkos_compat.hpp"

// Null unless the BLAS in use is OpenBLAS.
extern "C" void openblas_set_num_threads(int threads) __attribute__((weak));

namespace lockstep {

void gemm(Space const& space, Transpose transpose_a, Matrix<const float> a, Transpose transpose_b,
          Matrix<const float> b, bool add, Matrix<float> c) {
  using Device    = Kokkos::Device<Space, Memory>;
  using Operand   = Kokkos::View<const float**, Kokkos::LayoutRight, Device, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  using Result    = Kokkos::View<float**, Kokkos::LayoutRight, Device, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  auto const name = [](Transpose transpose) { return transpose == Transpose::yes ? "T" : "N"; };
  call_on(
      space,
      [](auto const&... arguments) -> decltype(KokkosBlas::gemm(arguments...)) { KokkosBlas::gemm(arguments...); },
      name(transpose_a), name(transpose_b), 1.0f, Operand(a.data, a.rows, a.columns),
      Operand(b.data, b.rows, b.columns), add ? 1.0f : 0.0f, Result(c.data, c.rows, c.columns));
}

void use_one_blas_thread() {
  if (openblas_set_num_threads) openblas_set_num_threads(1);
}

}  // namespace lockstep
