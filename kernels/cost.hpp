// SPDX-License-Identifier: Apache-2.0
// What kernels need to do for one block of images: floating-point operations (a multiply-add is two) and bytes that
// must be read or written at least once. Only needed work counts: what the floor of pooling drops is not there (see
// Plan).
#pragma once
#include "kernels/conv2d.hpp"
#include "kernels/dense.hpp"
#include "kernels/pool2d.hpp"

namespace lockstep {

struct Cost {
  double flops = 0, bytes = 0;
  friend Cost operator+(Cost a, Cost b) { return {a.flops + b.flops, a.bytes + b.bytes}; }
};

inline double conv2d_input_bytes(Conv2d const& c) {
  return 4.0 * c.in_channels * double(c.in_plane());
}
inline double conv2d_dy_bytes(Conv2d const& c) {
  return 4.0 * c.out_channels * double(c.out_plane());
}
inline double conv2d_weight_bytes(Conv2d const& c) {
  return 4.0 * c.out_channels * (1.0 + double(c.in_channels) * c.taps());
}
// The stored output and, for pooling with ReLU, a byte of flags for each of its lanes.
inline double conv2d_stored_bytes(Conv2d const& c) {
  return conv2d_dy_bytes(c) * (c.pool ? 0.25 : 1.0) * (c.pool && c.relu ? 1.25 : 1.0);
}
inline double conv2d_flops(Conv2d const& c) {
  return 2.0 * c.out_channels * double(c.out_plane()) * c.in_channels * c.taps();
}

inline Cost conv2d_forward_cost(Conv2d const& c) {
  return {conv2d_flops(c), conv2d_input_bytes(c) + conv2d_weight_bytes(c) + conv2d_stored_bytes(c)};
}
inline Cost conv2d_output_gradient_cost(Conv2d const& c) {
  return {0, conv2d_stored_bytes(c) + conv2d_dy_bytes(c)};
}
inline Cost conv2d_weight_gradient_cost(Conv2d const& c, bool dy_is_stored) {
  return {conv2d_flops(c), conv2d_input_bytes(c) + (dy_is_stored ? conv2d_dy_bytes(c) : conv2d_stored_bytes(c)) +
                               conv2d_weight_bytes(c)};
}
inline Cost conv2d_data_gradient_cost(Conv2d const& c) {
  return {conv2d_flops(c), conv2d_dy_bytes(c) + conv2d_weight_bytes(c) + conv2d_input_bytes(c)};
}

// Any of the three: one of x, y, weights is written, the other two are read.
inline Cost dense_cost(Dense const& d) {
  double const in = double(d.in), out = double(d.out);
  return {2.0 * lanes * in * out, 4.0 * (lanes * (in + out) + (in + 1) * out)};
}

inline Cost average_pool2d_cost(Pool2d const& p) {
  double const out = double(p.channels) * p.out_height * p.out_width * lanes;
  return {out * p.window * p.window, 4.0 * out * (1.0 + p.window * p.window)};
}

}  // namespace lockstep
