// SPDX-License-Identifier: Apache-2.0
// The layers for threads that hold one image each, as on accelerators. What a layer does on a block is a number of
// independent tiles, in each of `lanes` lanes; neighbouring threads take neighbouring lanes, so that loads of
// activations join and those of weights are broadcasts. The sums have the order of the block bodies, hence the same
// bits. Pointers to activations are those of the lane.
#pragma once
#include "kernels/conv2d.hpp"
#include "kernels/dense.hpp"
#include "kernels/pool2d.hpp"
#include "kernels/softmax_cross_entropy.hpp"

namespace lockstep::lane {

// Tiles that cover n: as many of `size` as fit, then of size / 2, ..., 1.
KOKKOS_INLINE_FUNCTION int tile_count(std::int64_t n, int size) {
  int tiles = 0;
  for (; size > 0; size /= 2) {
    tiles += n / size;
    n %= size;
  }
  return int(tiles);
}

// ---- convolution ----

KOKKOS_INLINE_FUNCTION int forward_positions(Conv2d const& c) {
  return c.pool ? c.out_height / 2 * (c.out_width / 2) : c.out_height * (c.out_width / 4 + c.out_width % 4);
}
KOKKOS_INLINE_FUNCTION int forward_tiles(Conv2d const& c) {
  return tile_count(c.out_channels, tiles::forward_channels) * forward_positions(c);
}

// Positions are innermost, so that the two blocks' worth of lanes in a warp share their weights.
template <int K, int Channels = tiles::forward_channels>
KOKKOS_FUNCTION void forward(Conv2d const& c, float const* x, float const* weights, float const* bias, int tile,
                             float* y, std::uint8_t* flags, int channel_begin = 0) {
  int const positions = forward_positions(c), whole = (c.out_channels - channel_begin) / Channels;
  if (tile < whole * positions) {
    int const channel = channel_begin + tile / positions * Channels, position = tile % positions;
    if (c.pool) {
      int const columns = c.out_width / 2;
      conv2d_forward_pooled_tile<ScalarPack, K, Channels>(c, x, weights, bias, channel, position / columns * 2,
                                                          position % columns * 2, y, flags);
    } else {
      int const fours = c.out_width / 4, columns = fours + c.out_width % 4, row = position / columns,
                column = position % columns;
      if (column < fours)
        conv2d_forward_plain_tile<ScalarPack, K, Channels, 4>(c, x, weights, bias, channel, row, 4 * column, y);
      else
        conv2d_forward_plain_tile<ScalarPack, K, Channels, 1>(c, x, weights, bias, channel, row, 3 * fours + column, y);
    }
  } else if constexpr (Channels > 1) {
    forward<K, Channels / 2>(c, x, weights, bias, tile - whole * positions, y, flags, channel_begin + whole * Channels);
  }
}

// A tile is two rows of a channel with pooling, else one.
KOKKOS_INLINE_FUNCTION int output_gradient_tiles(Conv2d const& c) {
  return c.out_channels * (c.pool ? c.out_height / 2 : c.out_height);
}
KOKKOS_INLINE_FUNCTION void output_gradient(Conv2d const& c, float const* y, std::uint8_t const* flags,
                                            float const* d_out, int tile, float* dy) {
  if (c.pool) {
    std::int64_t const row_size = std::int64_t(c.out_width) * lanes;
    float* to                   = dy + tile * 2 * row_size;
    for (int column = 0; column < c.out_width / 2; ++column) {
      std::int64_t const at = (tile * (c.out_width / 2) + column) * lanes;
      float const quarter   = d_out[at] * 0.25f;
      unsigned const passed = c.relu ? flags[at] : 15u;
      LOCKSTEP_UNROLL
      for (int n = 0; n < 4; ++n)
        to[n / 2 * row_size + (2 * column + n % 2) * lanes] = (passed >> n) & 1u ? quarter : 0.0f;
    }
  } else {
    for (int column = 0; column < c.out_width; ++column) {
      std::int64_t const at = (tile * c.out_width + column) * lanes;
      dy[at]                = c.relu && y[at] <= 0.0f ? 0.0f : d_out[at];
    }
  }
}

// The weight gradient's tiles: a kernel row of several output channels for one input channel; after them the bias, a
// tile for each output channel. Kernel sizes known at run time only: one weight at a time.
template <int K>
struct WeightGradient {
  static constexpr int channels = K ? tiles::weight_channels(K) : 1;
  static constexpr int elements = K ? channels * K : 1;  // of a tile, at most

  KOKKOS_FUNCTION static int weight_tiles(Conv2d const& c) {
    return K ? tile_count(c.out_channels, channels) * c.in_channels * K : c.out_channels * c.in_channels * c.taps();
  }
  KOKKOS_FUNCTION static int tiles(Conv2d const& c) { return weight_tiles(c) + c.out_channels; }

  // Where in the row of gradients an element of the tile belongs; -1 if the tile has no such element. weight, bias: the
  // tensors' places in the row.
  KOKKOS_FUNCTION static std::int64_t place(Conv2d const& c, int tile, int element, std::int64_t weight,
                                            std::int64_t bias) {
    int const first_bias = weight_tiles(c);
    if (tile >= first_bias) return element == 0 ? bias + tile - first_bias : -1;
    if constexpr (K == 0) {
      return element == 0 ? weight + tile : -1;
    } else {
      Part const part = part_of(c, tile);
      int const o = element / K, v = element % K;
      if (o >= part.channels) return -1;
      return weight + ((std::int64_t(part.channel + o) * c.in_channels + part.input) * K + part.row) * K + v;
    }
  }

  // sums[element * pitch]: the lane's part of the gradients.
  KOKKOS_FUNCTION static void run(Conv2d const& c, float const* x, float const* dy, int tile, float* sums, int pitch) {
    int const first_bias = weight_tiles(c);
    if (tile >= first_bias) {
      float const* from = dy + (tile - first_bias) * c.out_plane();
      float sum         = 0.0f;
      for (int j = 0; j < c.out_height * c.out_width; ++j) sum += from[j * lanes];
      *sums = sum;
    } else if constexpr (K == 0) {
      int const v = tile % c.kernel, u = tile / c.kernel % c.kernel, i = tile / c.taps() % c.in_channels;
      int const channel = tile / c.taps() / c.in_channels;
      conv2d_weight_gradient_tap<ScalarPack>(c, x + i * c.in_plane(), u, v, dy + channel * c.out_plane(), 0,
                                             c.out_height, true, sums);
    } else {
      run_part<channels>(c, x, dy, part_of(c, tile), sums, pitch);
    }
  }

 private:
  struct Part {
    int channel, channels, input, row;
  };
  KOKKOS_FUNCTION static Part part_of(Conv2d const& c, int tile) {
    int const of_channels = c.in_channels * K, rest = tile % of_channels;
    int group = tile / of_channels, channel = 0, size = channels;
    for (;; size /= 2) {
      int const whole = (c.out_channels - channel) / size;
      if (group < whole || size == 1) break;
      group -= whole;
      channel += whole * size;
    }
    return {channel + group * size, size, rest / K, rest % K};
  }

  template <int Channels>
  KOKKOS_FUNCTION static void run_part(Conv2d const& c, float const* x, float const* dy, Part const& part, float* sums,
                                       int pitch) {
    if (part.channels == Channels) {
      ScalarPack packs[Channels][K];
      LOCKSTEP_UNROLL
      for (int o = 0; o < Channels; ++o) {
        LOCKSTEP_UNROLL
        for (int v = 0; v < K; ++v) packs[o][v] = ScalarPack(0.0f);
      }
      conv2d_weight_gradient_packs<ScalarPack, K, Channels>(c, x + part.input * c.in_plane(), part.row,
                                                            dy + part.channel * c.out_plane(), c.out_plane(), 0,
                                                            c.out_height, packs);
      LOCKSTEP_UNROLL
      for (int o = 0; o < Channels; ++o) {
        LOCKSTEP_UNROLL
        for (int v = 0; v < K; ++v) packs[o][v].store(sums + (o * K + v) * pitch);
      }
    } else if constexpr (Channels > 1) {
      run_part<Channels / 2>(c, x, dy, part, sums, pitch);
    }
  }
};

// A row of several input channels; kernel sizes known at run time only: one element.
template <int K>
KOKKOS_INLINE_FUNCTION int data_gradient_tiles(Conv2d const& c) {
  return K ? tile_count(c.in_channels, tiles::data_channels) * c.in_height : c.in_channels * c.in_height * c.in_width;
}
template <int K, int Channels = tiles::data_channels>
KOKKOS_FUNCTION void data_gradient(Conv2d const& c, float const* dy, float const* weights, int tile, float* dx,
                                   int channel_begin = 0) {
  if constexpr (K == 0) {
    int const column = tile % c.in_width, row = tile / c.in_width % c.in_height,
              channel = tile / c.in_width / c.in_height;
    dx[tile * lanes]  = conv2d_data_gradient_element<ScalarPack>(c, dy, weights, channel, row, column).v;
  } else {
    int const whole = (c.in_channels - channel_begin) / Channels;
    if (tile < whole * c.in_height) {
      int const channel = channel_begin + tile / c.in_height * Channels, row = tile % c.in_height;
      for (int out = 0; out < c.out_channels; out += data_gradient_chunk) {
        int const out_end = out + data_gradient_chunk < c.out_channels ? out + data_gradient_chunk : c.out_channels;
        conv2d_data_gradient_row<ScalarPack, K, Channels>(c, dy, weights, channel, row, out, out_end, dx);
      }
    } else if constexpr (Channels > 1) {
      data_gradient<K, Channels / 2>(c, dy, weights, tile - whole * c.in_height, dx, channel_begin + whole * Channels);
    }
  }
}

// ---- dense layer ----

KOKKOS_INLINE_FUNCTION int forward_tiles(Dense const& d) {
  return tile_count(d.out, tiles::dense_units);
}
template <int Units = tiles::dense_units>
KOKKOS_FUNCTION void forward(Dense const& d, float const* x, float const* weights, float const* bias, int tile,
                             float* y, std::int64_t unit_begin = 0) {
  int const whole = int(d.out - unit_begin) / Units;
  if (tile < whole)
    dense_forward_tile<ScalarPack, Units>(d, x, weights, bias, unit_begin + tile * Units, y);
  else if constexpr (Units > 1)
    forward<Units / 2>(d, x, weights, bias, tile - whole, y, unit_begin + whole * Units);
}

// dy of one unit, in place, and transposed (as dense_output_gradient does).
KOKKOS_INLINE_FUNCTION void output_gradient(Dense const& d, float const* y, std::int64_t unit, int lane, float* d_out,
                                            float* transposed) {
  float const dy      = d.relu && y[unit * lanes] <= 0.0f ? 0.0f : d_out[unit * lanes];
  d_out[unit * lanes] = transposed[lane * dense_row(d.out) + unit] = dy;
}

KOKKOS_INLINE_FUNCTION int data_gradient_tiles(Dense const& d) {
  return tile_count(d.in, tiles::dense_units);
}
template <int Inputs = tiles::dense_units>
KOKKOS_FUNCTION void data_gradient(Dense const& d, float const* dy, float const* weights, int tile, float* dx,
                                   std::int64_t in_begin = 0) {
  int const whole = int(d.in - in_begin) / Inputs;
  if (tile < whole)
    dense_data_gradient_tile<ScalarPack, Inputs>(d, dy, weights, in_begin + tile * Inputs, dx);
  else if constexpr (Inputs > 1)
    data_gradient<Inputs / 2>(d, dy, weights, tile - whole, dx, in_begin + whole * Inputs);
}

// Several inputs of one unit, over the images [lane_begin, lane_end) of a block; x and transposed are the block's.
// Here neighbouring threads take neighbouring units.
KOKKOS_INLINE_FUNCTION int weight_gradient_tiles(Dense const& d) {
  return tile_count(d.in, tiles::dense_rows);
}
template <int Inputs = tiles::dense_rows>
KOKKOS_FUNCTION void weight_gradient(Dense const& d, float const* x, float const* transposed, int lane_begin,
                                     int lane_end, bool add, int tile, std::int64_t unit, float* weights,
                                     std::int64_t in_begin = 0) {
  int const whole = int(d.in - in_begin) / Inputs;
  if (tile < whole) {
    std::int64_t const in = in_begin + tile * Inputs;
    dense_weight_gradient_tile<ScalarPack, Inputs, 1, true>(d.out, x + in * lanes, transposed + unit, lane_begin,
                                                            lane_end, add, 1, weights + in * d.out + unit);
  } else if constexpr (Inputs > 1) {
    weight_gradient<Inputs / 2>(d, x, transposed, lane_begin, lane_end, add, tile - whole, unit, weights,
                                in_begin + whole * Inputs);
  }
}

// ---- lanes of a shard ----

// The tree that joins neighbours, as lane_sums.
template <int Group>
KOKKOS_FORCEINLINE_FUNCTION float sum_of(float const* values) {
  if constexpr (Group == 1)
    return values[0];
  else
    return sum_of<Group / 2>(values) + sum_of<Group / 2>(values + Group / 2);
}
KOKKOS_INLINE_FUNCTION float sum_of_group(int group, float const* values) {
  return group == 16  ? sum_of<16>(values)
         : group == 8 ? sum_of<8>(values)
         : group == 4 ? sum_of<4>(values)
         : group == 2 ? sum_of<2>(values)
                      : values[0];
}

}  // namespace lockstep::lane
