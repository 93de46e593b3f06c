// SPDX-License-Identifier: Apache-2.0
// Register tiles of the kernels by target: the number of accumulators has to hide the multiply-add's latency (8 to 10
// of them in flight) and to leave registers for operands. Bits do not depend on tiles: every element is summed in the
// same order.
#pragma once
#include "kernels/pack.hpp"

namespace lockstep::tiles {

#if defined(KOKKOS_ENABLE_CUDA) || defined(KOKKOS_ENABLE_HIP) || defined(KOKKOS_ENABLE_SYCL)
// A thread holds one image: weights are broadcast loads, one for each multiply-add's lanes together, so that tiles are
// large in channels; small in units, since a step of few images has few threads.
constexpr int forward_channels = 10;
KOKKOS_INLINE_FUNCTION constexpr int weight_channels(int kernel) {
  return kernel == 0 ? 1 : 10;
}
constexpr int data_channels = 2;
constexpr int data_columns  = 8;
constexpr int dense_units   = 4;
constexpr int dense_rows    = 4;
#elif defined(__AVX512F__)  // 32 registers, broadcasts from memory inside the multiply-add
constexpr int forward_channels = 5;  // x 2 x 2 positions
KOKKOS_INLINE_FUNCTION constexpr int weight_channels(int) {
  return 5;
}  // x kernel columns
constexpr int data_channels = 2;  // x (data_columns + kernel - 1) columns
constexpr int data_columns  = 8;
constexpr int dense_units   = 16;
constexpr int dense_rows    = 6;  // weight gradient: inputs x 4 vectors of units
#else                       // 16 registers
constexpr int forward_channels = 3;
KOKKOS_INLINE_FUNCTION constexpr int weight_channels(int kernel) {
  return kernel == 3 ? 4 : 2;
}
constexpr int data_channels = 1;
constexpr int data_columns  = 8;
constexpr int dense_units   = 10;
constexpr int dense_rows    = 3;
#endif
constexpr int most_weight_channels = weight_channels(5) > weight_channels(3) ? weight_channels(5) : weight_channels(3);

}  // namespace lockstep::tiles
