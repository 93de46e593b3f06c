// SPDX-License-Identifier: Apache-2.0
// Vectors to device memory and back.
#pragma once
#include <vector>

#include "kernels/kokkos_compat.hpp"
#include "kernels/types.hpp"

namespace lockstep {

template <class T>
Buffer<T> to_device(std::vector<T> const& values) {
  Space const space;
  Buffer<T> const buffer("lockstep::test::buffer", values.size());
  Kokkos::deep_copy(space, buffer, HostBuffer<const T>(values.data(), values.size()));
  fence(space, "lockstep::test::to_device");
  return buffer;
}

template <class T>
std::vector<T> to_host(Buffer<T> const& buffer) {
  Space const space;
  std::vector<T> values(buffer.extent(0));
  Kokkos::deep_copy(space, HostBuffer<T>(values.data(), values.size()), buffer);
  fence(space, "lockstep::test::to_host");
  return values;
}

}  // namespace lockstep
