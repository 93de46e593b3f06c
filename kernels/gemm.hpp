// SPDX-License-Identifier: Apache-2.0
// Matrix products by Kokkos Kernels: by the BLAS that it was built with, else by its own kernels.
#pragma once
#include "kernels/types.hpp"

namespace lockstep {

// rows x columns, row-major, in the execution space's memory.
template <class T>
struct Matrix {
  T* data;
  std::int64_t rows, columns;
};

enum class Transpose { no, yes };

// c = op(a) op(b) + (add ? c : 0). Which product is added when is the library's choice: the bits are a function of the
// operands for a fixed shape and number of library threads, see use_one_blas_thread().
void gemm(Space const& space, Transpose transpose_a, Matrix<const float> a, Transpose transpose_b,
          Matrix<const float> b, bool add, Matrix<float> c);

// OpenBLAS splits sums among its threads, as many as there are cores. Other libraries are left as they are.
void use_one_blas_thread();

}  // namespace lockstep
