// SPDX-License-Identifier: Apache-2.0
// Dense layer y = x W + b, optionally followed by ReLU. Bodies for one block of images: x is [in][lane], y is
// [out][lane], weights [in][out]. Order of sums: forward bias, then inputs; data gradient outputs; weight gradient a
// shard's images in order.
#pragma once
#include "kernels/lane_sum.hpp"
#include "kernels/pack.hpp"
#include "kernels/tiles.hpp"

namespace lockstep {

struct Dense {
  std::int64_t in, out;
  bool relu;
};

// `Units` units from `unit` on.
template <class P, int Units>
KOKKOS_FORCEINLINE_FUNCTION void dense_forward_tile(Dense const& d, float const* x, float const* weights,
                                                    float const* bias, std::int64_t unit, float* y) {
  P sums[Units];
  LOCKSTEP_UNROLL
  for (int j = 0; j < Units; ++j) sums[j] = P(bias[unit + j]);
  float const* w = weights + unit;
  for (std::int64_t i = 0; i < d.in; ++i, w += d.out) {
    P const in = P::load(x + i * lanes);
    LOCKSTEP_UNROLL
    for (int j = 0; j < Units; ++j) sums[j] = multiply_add(P(w[j]), in, sums[j]);
  }
  LOCKSTEP_UNROLL
  for (int j = 0; j < Units; ++j) (d.relu ? rectify(sums[j]) : sums[j]).store(y + (unit + j) * lanes);
}

template <class P, int Units>
KOKKOS_FUNCTION void dense_forward_units(Dense const& d, float const* x, float const* weights, float const* bias,
                                         std::int64_t unit_begin, float* y, Share share) {
  std::int64_t unit = unit_begin;
  for (; unit + Units <= d.out; unit += Units) {
    if (!share.has(unit / Units)) continue;
    for (int lane = 0; lane < lanes; lane += P::width)
      dense_forward_tile<P, Units>(d, x + lane, weights, bias, unit, y + lane);
  }
  if constexpr (Units > 1)
    if (unit < d.out) dense_forward_units<P, Units / 2>(d, x, weights, bias, unit, y, share);
}

template <class P>
KOKKOS_FUNCTION void dense_forward(Dense const& d, float const* x, float const* weights, float const* bias, float* y,
                                   Share share = {}) {
  dense_forward_units<P, tiles::dense_units>(d, x, weights, bias, 0, y, share);
}

// `Inputs` inputs from `in` on.
template <class P, int Inputs>
KOKKOS_FORCEINLINE_FUNCTION void dense_data_gradient_tile(Dense const& d, float const* dy, float const* weights,
                                                          std::int64_t in, float* dx) {
  P sums[Inputs];
  LOCKSTEP_UNROLL
  for (int j = 0; j < Inputs; ++j) sums[j] = P(0.0f);
  float const* w = weights + in * d.out;
  for (std::int64_t unit = 0; unit < d.out; ++unit) {
    P const grad = P::load(dy + unit * lanes);
    LOCKSTEP_UNROLL
    for (int j = 0; j < Inputs; ++j) sums[j] = multiply_add(P(w[j * d.out + unit]), grad, sums[j]);
  }
  LOCKSTEP_UNROLL
  for (int j = 0; j < Inputs; ++j) sums[j].store(dx + (in + j) * lanes);
}

template <class P, int Inputs>
KOKKOS_FUNCTION void dense_data_gradient_inputs(Dense const& d, float const* dy, float const* weights,
                                                std::int64_t in_begin, float* dx, Share share) {
  std::int64_t i = in_begin;
  for (; i + Inputs <= d.in; i += Inputs) {
    if (!share.has(i / Inputs)) continue;
    for (int lane = 0; lane < lanes; lane += P::width)
      dense_data_gradient_tile<P, Inputs>(d, dy + lane, weights, i, dx + lane);
  }
  if constexpr (Inputs > 1)
    if (i < d.in) dense_data_gradient_inputs<P, Inputs / 2>(d, dy, weights, i, dx, share);
}

template <class P>
KOKKOS_FUNCTION void dense_data_gradient(Dense const& d, float const* dy, float const* weights, float* dx,
                                         Share share = {}) {
  dense_data_gradient_inputs<P, tiles::dense_units>(d, dy, weights, 0, dx, share);
}

// dy with units innermost: transposed[lane][dense_row(out)], so that a pack is a run of output units of one image.
KOKKOS_INLINE_FUNCTION std::int64_t dense_row(std::int64_t out) {
  return (out + 15) / 16 * 16;
}

// Turns d_out into dy, in place, and transposes it; before the two gradients below.
template <class P>
KOKKOS_FUNCTION void dense_output_gradient(Dense const& d, float const* y, float* d_out, float* transposed,
                                           Share share = {}) {
  std::int64_t const row = dense_row(d.out);
  for (std::int64_t unit = 0; unit < row; ++unit) {
    if (!share.has(unit)) continue;
    float* dy = d_out + unit * lanes;
    if (d.relu && unit < d.out)
      for (int lane = 0; lane < lanes; lane += P::width)
        where_passed(P::load(y + unit * lanes + lane), P::load(dy + lane)).store(dy + lane);
    for (int lane = 0; lane < lanes; ++lane) transposed[lane * row + unit] = unit < d.out ? dy[lane] : 0.0f;
  }
}

// Inputs x (Packs * P::width) weights, of which the first `units` columns exist; the others' dy is zero and nothing is
// stored.
template <class P, int Inputs, int Packs, bool Whole>
KOKKOS_FUNCTION void dense_weight_gradient_tile(std::int64_t out, float const* x, float const* transposed,
                                                int lane_begin, int lane_end, bool add, int units, float* weights) {
  constexpr int columns = Packs * P::width;
  P sums[Inputs][Packs];
  LOCKSTEP_UNROLL
  for (int i = 0; i < Inputs; ++i) {
    float part[columns] = {};
    if (!Whole && add)
      for (int j = 0; j < units; ++j) part[j] = weights[i * out + j];
    LOCKSTEP_UNROLL
    for (int j = 0; j < Packs; ++j)
      sums[i][j] = add ? P::load((Whole ? weights + i * out : part) + j * P::width) : P(0.0f);
  }
  std::int64_t const row = dense_row(out);
  for (int lane = lane_begin; lane < lane_end; ++lane) {
    P grad[Packs];
    LOCKSTEP_UNROLL
    for (int j = 0; j < Packs; ++j) grad[j] = P::load(transposed + lane * row + j * P::width);
    LOCKSTEP_UNROLL
    for (int i = 0; i < Inputs; ++i) {
      P const in(x[i * lanes + lane]);
      LOCKSTEP_UNROLL
      for (int j = 0; j < Packs; ++j) sums[i][j] = multiply_add(in, grad[j], sums[i][j]);
    }
  }
  LOCKSTEP_UNROLL
  for (int i = 0; i < Inputs; ++i) {
    float part[columns];
    LOCKSTEP_UNROLL
    for (int j = 0; j < Packs; ++j) sums[i][j].store((Whole ? weights + i * out : part) + j * P::width);
    if (!Whole)
      for (int j = 0; j < units; ++j) weights[i * out + j] = part[j];
  }
}

template <class P, int Inputs>
KOKKOS_FUNCTION void dense_weight_gradient_inputs(Dense const& d, float const* x, float const* transposed,
                                                  int lane_begin, int lane_end, bool add, std::int64_t in_begin,
                                                  float* weights, Share share) {
  std::int64_t i = in_begin;
  for (; i + Inputs <= d.in; i += Inputs) {
    if (!share.has(i / Inputs)) continue;
    float const* in    = x + i * lanes;
    float* to          = weights + i * d.out;
    std::int64_t j     = 0;
    constexpr int wide = 4 * P::width;
    for (; j + wide <= d.out; j += wide)
      dense_weight_gradient_tile<P, Inputs, 4, true>(d.out, in, transposed + j, lane_begin, lane_end, add, wide,
                                                     to + j);
    for (; j + P::width <= d.out; j += P::width)
      dense_weight_gradient_tile<P, Inputs, 1, true>(d.out, in, transposed + j, lane_begin, lane_end, add, P::width,
                                                     to + j);
    if (j < d.out)
      dense_weight_gradient_tile<P, Inputs, 1, false>(d.out, in, transposed + j, lane_begin, lane_end, add,
                                                      int(d.out - j), to + j);
  }
  if constexpr (Inputs > 1)
    if (i < d.in)
      dense_weight_gradient_inputs<P, Inputs / 2>(d, x, transposed, lane_begin, lane_end, add, i, weights, share);
}

// Writes (or adds to) the weight and bias gradients of one block.
template <class P>
KOKKOS_FUNCTION void dense_weight_gradient(Dense const& d, float const* x, float const* dy, float const* transposed,
                                           int images, GradientRows const& rows, std::int64_t weight, std::int64_t bias,
                                           Share share = {}) {
  for (int shard = 0; shard < rows.shards; ++shard) {
    int const begin = shard * rows.group;
    int const end   = begin + rows.group < images ? begin + rows.group : images;
    float* to       = rows.first + shard * rows.stride;
    dense_weight_gradient_inputs<P, tiles::dense_rows>(d, x, transposed, begin, end, rows.add, 0, to + weight, share);
  }
  if (share.has(0)) add_lane_sums<P>(rows, dy, d.out, bias);
}

}  // namespace lockstep
