// SPDX-License-Identifier: Apache-2.0
// Average pooling, window x window, stride = window, and ReLU, where they are not fused into a convolution. Bodies for
// one block.
#pragma once
#include "kernels/pack.hpp"

namespace lockstep {

struct Pool2d {
  int channels, out_height, out_width, window;  // input extents are exactly window times the output's
};

// Element (row, column) of y, rows numbered through all channels.
template <class P>
KOKKOS_FORCEINLINE_FUNCTION void average_pool2d_forward_element(Pool2d const& p, float const* x, std::int64_t row,
                                                                int column, float* y) {
  std::int64_t const in_row = std::int64_t(p.out_width) * p.window * lanes;
  P sum(0.0f);
  for (int u = 0; u < p.window; ++u)
    for (int v = 0; v < p.window; ++v)
      sum = sum + P::load(x + (row * p.window + u) * in_row + (column * p.window + v) * lanes);
  (sum / P(float(p.window * p.window))).store(y + (row * p.out_width + column) * lanes);
}

template <class P>
KOKKOS_FORCEINLINE_FUNCTION void average_pool2d_backward_element(Pool2d const& p, float const* dy, std::int64_t row,
                                                                 int column, float* dx) {
  std::int64_t const in_row = std::int64_t(p.out_width) * p.window * lanes;
  P const part              = P::load(dy + (row * p.out_width + column) * lanes) / P(float(p.window * p.window));
  for (int u = 0; u < p.window; ++u)
    for (int v = 0; v < p.window; ++v) part.store(dx + (row * p.window + u) * in_row + (column * p.window + v) * lanes);
}

template <class P>
KOKKOS_FUNCTION void average_pool2d_forward(Pool2d const& p, float const* x, float* y, Share share = {}) {
  for (std::int64_t row = 0; row < std::int64_t(p.channels) * p.out_height; ++row) {
    if (!share.has(row)) continue;
    for (int column = 0; column < p.out_width; ++column)
      for (int lane = 0; lane < lanes; lane += P::width)
        average_pool2d_forward_element<P>(p, x + lane, row, column, y + lane);
  }
}

template <class P>
KOKKOS_FUNCTION void average_pool2d_backward(Pool2d const& p, float const* dy, float* dx, Share share = {}) {
  for (std::int64_t row = 0; row < std::int64_t(p.channels) * p.out_height; ++row) {
    if (!share.has(row)) continue;
    for (int column = 0; column < p.out_width; ++column)
      for (int lane = 0; lane < lanes; lane += P::width)
        average_pool2d_backward_element<P>(p, dy + lane, row, column, dx + lane);
  }
}

// n: floats. A NaN passes.
template <class P>
KOKKOS_FUNCTION void relu_forward(std::int64_t n, float const* x, float* y) {
  for (std::int64_t i = 0; i < n; i += P::width) rectify(P::load(x + i)).store(y + i);
}

template <class P>
KOKKOS_FUNCTION void relu_backward(std::int64_t n, float const* y, float const* dy, float* dx) {
  for (std::int64_t i = 0; i < n; i += P::width) where_passed(P::load(y + i), P::load(dy + i)).store(dx + i);
}

}  // namespace lockstep
