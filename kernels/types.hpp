// SPDX-License-Identifier: Apache-2.0
// View aliases and the blocked image layout that all kernels share.
#pragma once
#include <Kokkos_Core.hpp>
#include <cstdint>

namespace lockstep {

using Space  = Kokkos::DefaultExecutionSpace;  // always passed as an instance, first argument
using Memory = Space::memory_space;

template <class T>
using Buffer = Kokkos::View<T*, Memory>;
template <class T>
using HostBuffer = Kokkos::View<T*, Kokkos::HostSpace>;

// Images are the innermost dimension: activations are [block][channel][row][column][lane], one image per lane, `lanes`
// images per block. A short last block is padded with lanes whose loss gradient is zero.
constexpr int lanes = 16;

constexpr std::int64_t blocks_for(std::int64_t images) {
  return (images + lanes - 1) / lanes;
}

struct Shape {
  int channels = 0, height = 0, width = 0;
  KOKKOS_FUNCTION constexpr std::int64_t size() const { return std::int64_t(channels) * height * width; }  // per image
  friend constexpr bool operator==(Shape const& a, Shape const& b) {
    return a.channels == b.channels && a.height == b.height && a.width == b.width;
  }
  friend constexpr bool operator!=(Shape const& a, Shape const& b) { return !(a == b); }
};

}  // namespace lockstep
