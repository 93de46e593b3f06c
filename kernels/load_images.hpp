// SPDX-License-Identifier: Apache-2.0
// From bytes to a block of images.
#pragma once
#include "kernels/pack.hpp"

namespace lockstep {

// x [channel][row][column][lane] of a channels x height x width corner of images [channels][full_height][full_width] of
// bytes; value = float(byte) / 255, correctly rounded. images[lane] is the lane's image or null for zeros.
template <class P>
KOKKOS_FUNCTION void load_images(std::uint8_t const* const* images, int channels, int full_height, int full_width,
                                 int height, int width, float* x, Share share = {}) {
  for (int c = 0; c < channels; ++c)
    for (int row = 0; row < height; ++row) {
      std::int64_t const from   = (std::int64_t(c) * full_height + row) * full_width,
                         number = std::int64_t(c) * height + row;
      if (!share.has(number)) continue;
      float* to = x + number * width * lanes;
      for (int column = 0; column < width; ++column, to += lanes) {
        for (int lane = 0; lane < lanes; ++lane) to[lane] = images[lane] ? float(images[lane][from + column]) : 0.0f;
        for (int lane = 0; lane < lanes; lane += P::width) (P::load(to + lane) / P(255.0f)).store(to + lane);
      }
    }
}

}  // namespace lockstep
