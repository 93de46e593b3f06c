// SPDX-License-Identifier: Apache-2.0
// Convolution (cross-correlation, stride 1, no padding) with bias, ReLU and 2 x 2 average pooling fused. Bodies for one
// block of images; a block's activations are [channel][row][column][lane]. x: input, y: output before ReLU and pooling,
// dy: gradient of y. Every element is summed in a fixed order: forward bias, then (input channel, kernel row, kernel
// column); data gradient (column segment, output channel, kernel row, column); weight gradient (row, column), then
// lanes.
#pragma once
#include "kernels/lane_sum.hpp"
#include "kernels/pack.hpp"
#include "kernels/tiles.hpp"

namespace lockstep {

struct Conv2d {
  int in_channels, in_height, in_width;
  int out_channels, out_height, out_width;  // of y: in - kernel + 1
  int kernel;
  bool relu, pool;  // pool: 2 x 2, y's extents are even

  KOKKOS_FUNCTION std::int64_t in_plane() const { return std::int64_t(in_height) * in_width * lanes; }
  KOKKOS_FUNCTION std::int64_t out_plane() const { return std::int64_t(out_height) * out_width * lanes; }
  KOKKOS_FUNCTION int taps() const { return kernel * kernel; }
};

// ---- forward ----

// One tile: `Channels` output channels from `channel` on, Rows x Columns elements of y from (row, column) on. K: kernel
// size, or 0 when it is known at run time only.
template <class P, int K, int Channels, int Rows, int Columns>
KOKKOS_FORCEINLINE_FUNCTION void conv2d_forward_sums(Conv2d const& c, float const* x, float const* weights,
                                                     float const* bias, int channel, int row, int column,
                                                     P (&sums)[Channels][Rows * Columns]) {
  int const k            = K ? K : c.kernel;
  std::int64_t const per = std::int64_t(c.in_channels) * k * k;
  LOCKSTEP_UNROLL
  for (int o = 0; o < Channels; ++o) {
    LOCKSTEP_UNROLL
    for (int n = 0; n < Rows * Columns; ++n) sums[o][n] = P(bias[channel + o]);
  }
  float const* w = weights + channel * per;
  for (int i = 0; i < c.in_channels; ++i) {
    float const* in = x + i * c.in_plane() + (std::int64_t(row) * c.in_width + column) * lanes;
    for (int u = 0; u < k; ++u) {
      LOCKSTEP_UNROLL
      for (int v = 0; v < k; ++v) {
        P weight[Channels];
        LOCKSTEP_UNROLL
        for (int o = 0; o < Channels; ++o) weight[o] = P(w[o * per + v]);
        LOCKSTEP_UNROLL
        for (int n = 0; n < Rows * Columns; ++n) {
          P const in_pack = P::load(in + (std::int64_t(n / Columns) * c.in_width + n % Columns + v) * lanes);
          LOCKSTEP_UNROLL
          for (int o = 0; o < Channels; ++o) sums[o][n] = multiply_add(weight[o], in_pack, sums[o][n]);
        }
      }
      in += std::int64_t(c.in_width) * lanes;
      w += k;
    }
  }
}

template <class P, int K, int Channels>
KOKKOS_FUNCTION void conv2d_forward_pooled_tile(Conv2d const& c, float const* x, float const* weights,
                                                float const* bias, int channel, int row, int column, float* out,
                                                std::uint8_t* flags) {
  P sums[Channels][4];
  conv2d_forward_sums<P, K, Channels, 2, 2>(c, x, weights, bias, channel, row, column, sums);
  std::int64_t const plane = c.out_plane() / 4;
  std::int64_t const at    = (std::int64_t(row / 2) * (c.out_width / 2) + column / 2) * lanes;
  LOCKSTEP_UNROLL
  for (int o = 0; o < Channels; ++o) {
    if (c.relu) {
      auto passed = P::no_flags();
      LOCKSTEP_UNROLL
      for (int n = 0; n < 4; ++n) sums[o][n] = rectify(sums[o][n], passed, n);
      P::store_flags(flags + (channel + o) * plane + at, passed);
    }
    P const mean = ((sums[o][0] + sums[o][1]) + (sums[o][2] + sums[o][3])) * P(0.25f);
    mean.store(out + (channel + o) * plane + at);
  }
}

template <class P, int K, int Channels, int Columns>
KOKKOS_FUNCTION void conv2d_forward_plain_tile(Conv2d const& c, float const* x, float const* weights, float const* bias,
                                               int channel, int row, int column, float* out) {
  P sums[Channels][Columns];
  conv2d_forward_sums<P, K, Channels, 1, Columns>(c, x, weights, bias, channel, row, column, sums);
  LOCKSTEP_UNROLL
  for (int o = 0; o < Channels; ++o) {
    float* to = out + (channel + o) * c.out_plane() + (std::int64_t(row) * c.out_width + column) * lanes;
    LOCKSTEP_UNROLL
    for (int q = 0; q < Columns; ++q) (c.relu ? rectify(sums[o][q]) : sums[o][q]).store(to + q * lanes);
  }
}

// All columns and rows of `Channels` output channels; channels left over go to smaller tiles.
template <class P, int K, int Channels>
KOKKOS_FUNCTION void conv2d_forward_channels(Conv2d const& c, float const* x, float const* weights, float const* bias,
                                             int channel_begin, float* out, std::uint8_t* flags, Share share) {
  int channel = channel_begin;
  for (; channel + Channels <= c.out_channels; channel += Channels)
    for (int row = 0; row < c.out_height; row += c.pool ? 2 : 1) {
      if (!share.has((std::int64_t(channel / Channels) * c.out_height + row) / (c.pool ? 2 : 1))) continue;
      if (c.pool) {
        for (int column = 0; column < c.out_width; column += 2)
          for (int lane = 0; lane < lanes; lane += P::width)
            conv2d_forward_pooled_tile<P, K, Channels>(c, x + lane, weights, bias, channel, row, column, out + lane,
                                                       flags + lane);
      } else {
        int column = 0;
        for (; column + 4 <= c.out_width; column += 4)
          for (int lane = 0; lane < lanes; lane += P::width)
            conv2d_forward_plain_tile<P, K, Channels, 4>(c, x + lane, weights, bias, channel, row, column, out + lane);
        for (; column < c.out_width; ++column)
          for (int lane = 0; lane < lanes; lane += P::width)
            conv2d_forward_plain_tile<P, K, Channels, 1>(c, x + lane, weights, bias, channel, row, column, out + lane);
      }
    }
  if constexpr (Channels > 1)
    if (channel < c.out_channels)
      conv2d_forward_channels<P, K, Channels / 2>(c, x, weights, bias, channel, out, flags, share);
}

// out: y after ReLU and pooling; flags [as out], one byte a lane: which of the four elements passed the ReLU (pool and
// relu only).
template <class P>
KOKKOS_FUNCTION void conv2d_forward(Conv2d const& c, float const* x, float const* weights, float const* bias,
                                    float* out, std::uint8_t* flags, Share share = {}) {
  constexpr int channels = tiles::forward_channels;
  if (c.kernel == 3)
    conv2d_forward_channels<P, 3, channels>(c, x, weights, bias, 0, out, flags, share);
  else if (c.kernel == 5)
    conv2d_forward_channels<P, 5, channels>(c, x, weights, bias, 0, out, flags, share);
  else
    conv2d_forward_channels<P, 0, channels>(c, x, weights, bias, 0, out, flags, share);
}

// ---- backward through pooling and ReLU ----

// dy of channels [channel_begin, channel_end) and rows [row_begin, row_end), packed as [channel][row][column][lane]
// with `plane` floats a channel; out and d_out are the layer's output and its gradient.
template <class P>
KOKKOS_FUNCTION void conv2d_output_gradient(Conv2d const& c, float const* out, std::uint8_t const* flags,
                                            float const* d_out, int channel_begin, int channel_end, int row_begin,
                                            int row_end, float* dy, std::int64_t plane) {
  for (int channel = channel_begin; channel < channel_end; ++channel) {
    float* to = dy + (channel - channel_begin) * plane;
    if (c.pool) {
      std::int64_t const row_size = std::int64_t(c.out_width) * lanes;
      for (int row = row_begin; row < row_end; row += 2, to += 2 * row_size) {
        std::int64_t const at = channel * (c.out_plane() / 4) + std::int64_t(row / 2) * (c.out_width / 2) * lanes;
        for (int column = 0; column < c.out_width / 2; ++column)
          for (int lane = 0; lane < lanes; lane += P::width) {
            P const quarter   = P::load(d_out + at + column * lanes + lane) * P(0.25f);
            auto const passed = c.relu ? P::load_flags(flags + at + column * lanes + lane) : P::no_flags();
            LOCKSTEP_UNROLL
            for (int n = 0; n < 4; ++n) {
              P const d = c.relu ? where_flag(passed, n, quarter) : quarter;
              d.store(to + n / 2 * row_size + (2 * column + n % 2) * lanes + lane);
            }
          }
      }
    } else {
      std::int64_t const at = channel * c.out_plane() + std::int64_t(row_begin) * c.out_width * lanes;
      std::int64_t const n  = std::int64_t(row_end - row_begin) * c.out_width * lanes;
      for (std::int64_t i = 0; i < n; i += P::width) {
        P d = P::load(d_out + at + i);
        if (c.relu) d = where_passed(P::load(out + at + i), d);
        d.store(to + i);
      }
    }
  }
}

// ---- weight gradient ----

// Adds to packs kernel row u of one input channel over rows [row_begin, row_end); dy holds these rows, from the tile's
// first channel on, `plane` floats a channel.
template <class P, int K, int Channels>
KOKKOS_FORCEINLINE_FUNCTION void conv2d_weight_gradient_packs(Conv2d const& c, float const* x, int u, float const* dy,
                                                              std::int64_t plane, int row_begin, int row_end,
                                                              P (&packs)[Channels][K]) {
  for (int row = row_begin; row < row_end; ++row) {
    float const* in   = x + std::int64_t(row + u) * c.in_width * lanes;
    float const* grad = dy + std::int64_t(row - row_begin) * c.out_width * lanes;
    for (int column = 0; column < c.out_width; ++column, in += lanes, grad += lanes) {
      P d[Channels];
      LOCKSTEP_UNROLL
      for (int o = 0; o < Channels; ++o) d[o] = P::load(grad + o * plane);
      LOCKSTEP_UNROLL
      for (int v = 0; v < K; ++v) {
        P const in_pack = P::load(in + v * lanes);
        LOCKSTEP_UNROLL
        for (int o = 0; o < Channels; ++o) packs[o][v] = multiply_add(d[o], in_pack, packs[o][v]);
      }
    }
  }
}

// Adds to sums [Channels][K][lane] (stride taps * lanes between channels) kernel row u of one input channel over rows
// [row_begin, row_end); dy holds these rows, from the tile's first channel on, `plane` floats a channel.
template <class P, int K, int Channels>
KOKKOS_FUNCTION void conv2d_weight_gradient_row(Conv2d const& c, float const* x, int u, float const* dy,
                                                std::int64_t plane, int row_begin, int row_end, bool first,
                                                float* sums) {
  P packs[Channels][K];
  LOCKSTEP_UNROLL
  for (int o = 0; o < Channels; ++o) {
    LOCKSTEP_UNROLL
    for (int v = 0; v < K; ++v) packs[o][v] = first ? P(0.0f) : P::load(sums + (o * K * K + v) * lanes);
  }
  conv2d_weight_gradient_packs<P, K, Channels>(c, x, u, dy, plane, row_begin, row_end, packs);
  LOCKSTEP_UNROLL
  for (int o = 0; o < Channels; ++o) {
    LOCKSTEP_UNROLL
    for (int v = 0; v < K; ++v) packs[o][v].store(sums + (o * K * K + v) * lanes);
  }
}

// The same for a kernel size known at run time only: one tap of one channel at a time.
template <class P>
KOKKOS_FUNCTION void conv2d_weight_gradient_tap(Conv2d const& c, float const* x, int u, int v, float const* dy,
                                                int row_begin, int row_end, bool first, float* sums) {
  P pack = first ? P(0.0f) : P::load(sums);
  for (int row = row_begin; row < row_end; ++row)
    for (int column = 0; column < c.out_width; ++column)
      pack = multiply_add(P::load(dy + (std::int64_t(row - row_begin) * c.out_width + column) * lanes),
                          P::load(x + (std::int64_t(row + u) * c.in_width + column + v) * lanes), pack);
  pack.store(sums);
}

// Rows of dy at a time: about 20 KiB, so that they stay in the first-level cache; even for pooling's sake.
KOKKOS_INLINE_FUNCTION int conv2d_chunk_rows(Conv2d const& c) {
  std::int64_t const row = std::int64_t(tiles::most_weight_channels) * c.out_width * lanes * 4;
  int const rows         = int((20 * 1024) / row) & ~1;
  return rows < 2 ? 2 : rows < c.out_height ? rows : c.out_height;
}

// Work space of the weight gradient of one tile of channels.
struct Conv2dWork {
  float* sums;     // [channel][tap][lane]
  float* bias;     // [channel][lane]
  float* results;  // [shard][channel][tap]
  float* chunk;    // dy of a chunk of rows

  KOKKOS_FUNCTION static std::int64_t size(Conv2d const& c) { return Conv2dWork(c, nullptr).m_size; }
  KOKKOS_FUNCTION Conv2dWork(Conv2d const& c, float* work) {
    int const count = lane_sums_pitch(tiles::most_weight_channels * c.taps());
    sums            = place(work, std::int64_t(count) * lanes);
    bias            = place(work, 16 * lanes);
    results         = place(work, std::int64_t(count) * lanes);
    chunk = place(work, std::int64_t(tiles::most_weight_channels) * conv2d_chunk_rows(c) * c.out_width * lanes);
  }

 private:
  std::int64_t m_size = 0;
  KOKKOS_FUNCTION float* place(float* work, std::int64_t floats) {
    float* const at = work ? work + m_size : nullptr;
    m_size += floats;
    return at;
  }
};

// Writes (or adds to, by `rows`) the weight and bias gradients of one block. dy: all of it, or null: then it is made
// from out, flags and d_out, a chunk of rows at a time (dearer for each further input channel).
template <class P, int K, int Channels>
KOKKOS_FUNCTION void conv2d_weight_gradient_channels(Conv2d const& c, float const* x, float const* dy, float const* out,
                                                     std::uint8_t const* flags, float const* d_out, int channel_begin,
                                                     Conv2dWork const& work, GradientRows const& rows,
                                                     std::int64_t weight, std::int64_t bias, Share share) {
  int const taps       = c.taps();
  int const chunk_rows = conv2d_chunk_rows(c);
  int channel          = channel_begin;
  for (; channel + Channels <= c.out_channels; channel += Channels) {
    for (int i = 0; i < c.in_channels; ++i) {
      if (!share.has(std::int64_t(channel / Channels) * c.in_channels + i)) continue;
      float const* in = x + i * c.in_plane();
      for (int row = 0; row < c.out_height; row += chunk_rows) {
        int const row_end  = row + chunk_rows < c.out_height ? row + chunk_rows : c.out_height;
        std::int64_t plane = c.out_plane();
        float const* grad;
        if (dy) {
          grad = dy + channel * plane + std::int64_t(row) * c.out_width * lanes;
        } else {
          plane = std::int64_t(row_end - row) * c.out_width * lanes;
          conv2d_output_gradient<P>(c, out, flags, d_out, channel, channel + Channels, row, row_end, work.chunk, plane);
          grad = work.chunk;
        }
        for (int lane = 0; lane < lanes; lane += P::width) {
          if constexpr (K > 0) {
            for (int u = 0; u < K; ++u)
              conv2d_weight_gradient_row<P, K, Channels>(c, in + lane, u, grad + lane, plane, row, row_end, row == 0,
                                                         work.sums + u * K * lanes + lane);
          } else {
            for (int o = 0; o < Channels; ++o)
              for (int u = 0; u < c.kernel; ++u)
                for (int v = 0; v < c.kernel; ++v)
                  conv2d_weight_gradient_tap<P>(c, in + lane, u, v, grad + o * plane + lane, row, row_end, row == 0,
                                                work.sums + (o * taps + u * c.kernel + v) * lanes + lane);
          }
        }
        if (i == 0) {  // the bias on the way
          for (int o = 0; o < Channels; ++o)
            for (int lane = 0; lane < lanes; lane += P::width) {
              float* at = work.bias + o * lanes + lane;
              P pack    = row == 0 ? P(0.0f) : P::load(at);
              for (std::int64_t j = 0; j < std::int64_t(row_end - row) * c.out_width; ++j)
                pack = pack + P::load(grad + o * plane + j * lanes + lane);
              pack.store(at);
            }
        }
      }
      int const pitch = lane_sums_pitch(Channels * taps);
      lane_sums<P>(rows.group, work.sums, Channels * taps, work.results, pitch);
      for (int shard = 0; shard < rows.shards; ++shard)
        for (int o = 0; o < Channels; ++o)
          rows.put(shard, weight + (std::int64_t(channel + o) * c.in_channels + i) * taps,
                   work.results + shard * pitch + o * taps, K ? K * K : taps);
      if (i == 0) add_lane_sums<P>(rows, work.bias, Channels, bias + channel);
    }
  }
  if constexpr (Channels > 1)
    if (channel < c.out_channels)
      conv2d_weight_gradient_channels<P, K, Channels / 2>(c, x, dy, out, flags, d_out, channel, work, rows, weight,
                                                          bias, share);
}

// weight, bias: offsets in a row.
template <class P>
KOKKOS_FUNCTION void conv2d_weight_gradient(Conv2d const& c, float const* x, float const* dy, float const* out,
                                            std::uint8_t const* flags, float const* d_out, Conv2dWork const& work,
                                            GradientRows const& rows, std::int64_t weight, std::int64_t bias,
                                            Share share = {}) {
  if (c.kernel == 3)
    conv2d_weight_gradient_channels<P, 3, tiles::weight_channels(3)>(c, x, dy, out, flags, d_out, 0, work, rows, weight,
                                                                     bias, share);
  else if (c.kernel == 5)
    conv2d_weight_gradient_channels<P, 5, tiles::weight_channels(5)>(c, x, dy, out, flags, d_out, 0, work, rows, weight,
                                                                     bias, share);
  else
    conv2d_weight_gradient_channels<P, 0, tiles::weight_channels(0)>(c, x, dy, out, flags, d_out, 0, work, rows, weight,
                                                                     bias, share);
}

// ---- data gradient ----

// Adds to dx, `Channels` input channels from `channel` on, row `row`, what columns [column, column + Columns) of dy
// give. The first `kept` of these Columns + K - 1 columns of dx hold sums already; the others start at zero.
template <class P, int K, int Channels, int Columns>
KOKKOS_FUNCTION void conv2d_data_gradient_tile(Conv2d const& c, float const* dy, float const* weights, int channel,
                                               int row, int column, int kept, int out_begin, int out_end, float* dx) {
  constexpr int wide = Columns + K - 1;
  P packs[Channels][wide];
  float* to = dx + channel * c.in_plane() + (std::int64_t(row) * c.in_width + column) * lanes;
  LOCKSTEP_UNROLL
  for (int i = 0; i < Channels; ++i) {
    LOCKSTEP_UNROLL
    for (int q = 0; q < wide; ++q) packs[i][q] = q < kept ? P::load(to + i * c.in_plane() + q * lanes) : P(0.0f);
  }
  int const u_begin = row >= c.out_height ? row - c.out_height + 1 : 0;
  int const u_end   = row < K - 1 ? row + 1 : K;
  for (int o = out_begin; o < out_end; ++o) {
    float const* w    = weights + (std::int64_t(o) * c.in_channels + channel) * K * K;
    float const* grad = dy + o * c.out_plane() + column * lanes;
    for (int u = u_begin; u < u_end; ++u) {
      float const* from = grad + std::int64_t(row - u) * c.out_width * lanes;
      LOCKSTEP_UNROLL
      for (int q = 0; q < Columns; ++q) {
        P const d = P::load(from + q * lanes);
        LOCKSTEP_UNROLL
        for (int v = 0; v < K; ++v) {
          LOCKSTEP_UNROLL
          for (int i = 0; i < Channels; ++i)
            packs[i][q + v] = multiply_add(P(w[(i * K + u) * K + v]), d, packs[i][q + v]);
        }
      }
    }
  }
  LOCKSTEP_UNROLL
  for (int i = 0; i < Channels; ++i) {
    LOCKSTEP_UNROLL
    for (int q = 0; q < wide; ++q) packs[i][q].store(to + i * c.in_plane() + q * lanes);
  }
}

// Output channels at a time: their rows of dy stay in the first-level cache while the input channels pass.
constexpr int data_gradient_chunk = 10;

// One row of `Channels` input channels of dx from output channels [out, out_end).
template <class P, int K, int Channels>
KOKKOS_FORCEINLINE_FUNCTION void conv2d_data_gradient_row(Conv2d const& c, float const* dy, float const* weights,
                                                          int channel, int row, int out, int out_end, float* dx) {
  constexpr int columns = tiles::data_columns;
  int column            = 0;
  for (; column + columns <= c.out_width; column += columns)
    conv2d_data_gradient_tile<P, K, Channels, columns>(c, dy, weights, channel, row, column,
                                                       out > 0      ? columns + K - 1
                                                       : column > 0 ? K - 1
                                                                    : 0,
                                                       out, out_end, dx);
  for (; column < c.out_width; ++column)
    conv2d_data_gradient_tile<P, K, Channels, 1>(c, dy, weights, channel, row, column,
                                                 out > 0      ? K
                                                 : column > 0 ? K - 1
                                                              : 0,
                                                 out, out_end, dx);
}

template <class P, int K, int Channels>
KOKKOS_FUNCTION void conv2d_data_gradient_channels(Conv2d const& c, float const* dy, float const* weights,
                                                   int channel_begin, float* dx, Share share) {
  int const whole = channel_begin + (c.in_channels - channel_begin) / Channels * Channels;
  for (int row = 0; row < c.in_height; ++row) {
    if (!share.has(row)) continue;
    for (int out = 0; out < c.out_channels; out += data_gradient_chunk) {
      int const out_end = out + data_gradient_chunk < c.out_channels ? out + data_gradient_chunk : c.out_channels;
      for (int channel = channel_begin; channel < whole; channel += Channels)
        for (int lane = 0; lane < lanes; lane += P::width)
          conv2d_data_gradient_row<P, K, Channels>(c, dy + lane, weights, channel, row, out, out_end, dx + lane);
    }
  }
  if constexpr (Channels > 1)
    if (whole < c.in_channels) conv2d_data_gradient_channels<P, K, Channels / 2>(c, dy, weights, whole, dx, share);
}

// A kernel size known at run time only: one element of dx, at row and column.
template <class P>
KOKKOS_FORCEINLINE_FUNCTION P conv2d_data_gradient_element(Conv2d const& c, float const* dy, float const* weights,
                                                           int channel, int row, int column) {
  P sum(0.0f);
  for (int o = 0; o < c.out_channels; ++o)
    for (int u = 0; u < c.kernel; ++u)
      for (int v = 0; v < c.kernel; ++v) {
        int const p = row - u, q = column - v;
        if (p < 0 || p >= c.out_height || q < 0 || q >= c.out_width) continue;
        float const w = weights[((std::int64_t(o) * c.in_channels + channel) * c.kernel + u) * c.kernel + v];
        sum = multiply_add(P(w), P::load(dy + o * c.out_plane() + (std::int64_t(p) * c.out_width + q) * lanes), sum);
      }
  return sum;
}

template <class P>
KOKKOS_FUNCTION void conv2d_data_gradient_any(Conv2d const& c, float const* dy, float const* weights, float* dx,
                                              Share share) {
  for (int i = 0; i < c.in_channels; ++i)
    for (int row = 0; row < c.in_height; ++row) {
      if (!share.has(row)) continue;
      for (int column = 0; column < c.in_width; ++column)
        for (int lane = 0; lane < lanes; lane += P::width)
          conv2d_data_gradient_element<P>(c, dy + lane, weights, i, row, column)
              .store(dx + i * c.in_plane() + (std::int64_t(row) * c.in_width + column) * lanes + lane);
    }
}

template <class P>
KOKKOS_FUNCTION void conv2d_data_gradient(Conv2d const& c, float const* dy, float const* weights, float* dx,
                                          Share share = {}) {
  constexpr int channels = tiles::data_channels;
  if (c.kernel == 3)
    conv2d_data_gradient_channels<P, 3, channels>(c, dy, weights, 0, dx, share);
  else if (c.kernel == 5)
    conv2d_data_gradient_channels<P, 5, channels>(c, dy, weights, 0, dx, share);
  else
    conv2d_data_gradient_any<P>(c, dy, weights, dx, share);
}

}  // namespace lockstep
