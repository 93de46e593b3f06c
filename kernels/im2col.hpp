// SPDX-License-Identifier: Apache-2.0
// What stands around a matrix product that computes a convolution or a dense layer. Bodies for one block of images, as
// in conv2d.hpp. Columns: [input channel][kernel row][kernel column][row][column][lane], for every element of y the
// elements of x that it is a sum of:
//   y = W columns(x);  dW = dy columns(x)^T;  dx = the sum of what columns^-1 puts of W^T dy on each element.
#pragma once
#include "kernels/conv2d.hpp"
#include "kernels/dense.hpp"

namespace lockstep {

KOKKOS_INLINE_FUNCTION std::int64_t im2col_rows(Conv2d const& c) {
  return std::int64_t(c.in_channels) * c.taps();
}

template <class P>
KOKKOS_FUNCTION void im2col(Conv2d const& c, float const* x, float* columns, Share share = {}) {
  std::int64_t const run = std::int64_t(c.out_width) * lanes;
  for (std::int64_t r = 0; r < im2col_rows(c); ++r) {
    if (!share.has(r)) continue;
    int const v = int(r % c.kernel), u = int(r / c.kernel % c.kernel), i = int(r / c.taps());
    for (int row = 0; row < c.out_height; ++row) {
      float const* from = x + i * c.in_plane() + (std::int64_t(row + u) * c.in_width + v) * lanes;
      float* to         = columns + r * c.out_plane() + row * run;
      for (std::int64_t at = 0; at < run; at += P::width) P::load(from + at).store(to + at);
    }
  }
}

// dx: every element is summed in the order of kernel rows, then kernel columns.
template <class P>
KOKKOS_FUNCTION void col2im(Conv2d const& c, float const* columns, float* dx, Share share = {}) {
  for (int i = 0; i < c.in_channels; ++i)
    for (int row = 0; row < c.in_height; ++row) {
      if (!share.has(std::int64_t(i) * c.in_height + row)) continue;
      float* to = dx + i * c.in_plane() + std::int64_t(row) * c.in_width * lanes;
      for (std::int64_t at = 0; at < std::int64_t(c.in_width) * lanes; at += P::width) P(0.0f).store(to + at);
      for (int u = 0; u < c.kernel; ++u) {
        if (row - u < 0 || row - u >= c.out_height) continue;
        for (int v = 0; v < c.kernel; ++v) {
          std::int64_t const tap = (std::int64_t(i) * c.kernel + u) * c.kernel + v;
          float const* from      = columns + tap * c.out_plane() + std::int64_t(row - u) * c.out_width * lanes;
          float* sums            = to + v * lanes;
          for (std::int64_t at = 0; at < std::int64_t(c.out_width) * lanes; at += P::width)
            (P::load(sums + at) + P::load(from + at)).store(sums + at);
        }
      }
    }
}

// From sums without bias to the layer's output, see conv2d_forward.
template <class P>
KOKKOS_FUNCTION void conv2d_epilogue(Conv2d const& c, float const* sums, float const* bias, float* out,
                                     std::uint8_t* flags, Share share = {}) {
  int const rows = c.pool ? 2 : 1;
  for (int channel = 0; channel < c.out_channels; ++channel)
    for (int row = 0; row < c.out_height; row += rows) {
      if (!share.has((std::int64_t(channel) * c.out_height + row) / rows)) continue;
      float const* from = sums + channel * c.out_plane() + std::int64_t(row) * c.out_width * lanes;
      P const b(bias[channel]);
      if (!c.pool) {
        float* to = out + (from - sums);
        for (std::int64_t at = 0; at < std::int64_t(c.out_width) * lanes; at += P::width) {
          P const y = P::load(from + at) + b;
          (c.relu ? rectify(y) : y).store(to + at);
        }
        continue;
      }
      for (int column = 0; column < c.out_width; column += 2)
        for (int lane = 0; lane < lanes; lane += P::width) {
          std::int64_t const at =
              channel * (c.out_plane() / 4) + (std::int64_t(row / 2) * (c.out_width / 2) + column / 2) * lanes + lane;
          P y[4];
          auto passed = P::no_flags();
          LOCKSTEP_UNROLL
          for (int n = 0; n < 4; ++n) {
            y[n] = P::load(from + (std::int64_t(n / 2) * c.out_width + column + n % 2) * lanes + lane) + b;
            if (c.relu) y[n] = rectify(y[n], passed, n);
          }
          if (c.relu) P::store_flags(flags + at, passed);
          (((y[0] + y[1]) + (y[2] + y[3])) * P(0.25f)).store(out + at);
        }
    }
}

// Writes (or adds to, by `rows`) the bias gradient. work: [16][lane].
template <class P>
KOKKOS_FUNCTION void conv2d_bias_gradient(Conv2d const& c, float const* dy, float* work, GradientRows const& rows,
                                          std::int64_t bias) {
  for (int channel = 0; channel < c.out_channels; channel += 16) {
    int const count = c.out_channels - channel < 16 ? c.out_channels - channel : 16;
    for (int o = 0; o < count; ++o)
      for (int lane = 0; lane < lanes; lane += P::width) {
        P sum(0.0f);
        for (std::int64_t at = 0; at < c.out_plane(); at += lanes)
          sum = sum + P::load(dy + (channel + o) * c.out_plane() + at + lane);
        sum.store(work + o * lanes + lane);
      }
    add_lane_sums<P>(rows, work, count, bias + channel);
  }
}

template <class P>
KOKKOS_FUNCTION void dense_epilogue(Dense const& d, float const* bias, float* y, Share share = {}) {
  for (std::int64_t unit = 0; unit < d.out; ++unit) {
    if (!share.has(unit)) continue;
    for (int lane = 0; lane < lanes; lane += P::width) {
      P const sum = P::load(y + unit * lanes + lane) + P(bias[unit]);
      (d.relu ? rectify(sum) : sum).store(y + unit * lanes + lane);
    }
  }
}

}  // namespace lockstep
