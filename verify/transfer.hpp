// SPDX-License-Identifier: Apache-2.0
// Copies between host vectors and device buffers; each waits for its own instance.
#pragma once
#include <string>
#include <vector>

#include "kernels/kokkos_compat.hpp"
#include "kernels/types.hpp"

namespace lockstep::verify {

template <class T>
using HostView = Kokkos::View<T*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

template <class T>
Buffer<T> new_buffer(Space const& space, std::int64_t count) {
  return Buffer<T>(Kokkos::view_alloc(space, std::string("lockstep::verify::buffer")), std::size_t(count));
}

template <class T>
void copy_in(Space const& space, Buffer<T> const& to, std::vector<T> const& from) {
  Kokkos::deep_copy(space, to, HostView<T const>(from.data(), from.size()));
  fence(space, "lockstep::verify::copy_in");
}

template <class T>
Buffer<T> to_device(Space const& space, std::vector<T> const& from) {
  auto const buffer = new_buffer<T>(space, std::int64_t(from.size()));
  copy_in(space, buffer, from);
  return buffer;
}

template <class T>
std::vector<std::remove_const_t<T>> to_host(Space const& space, Buffer<T> const& from) {
  std::vector<std::remove_const_t<T>> to(from.extent(0));
  Kokkos::deep_copy(space, HostView<std::remove_const_t<T>>(to.data(), to.size()), from);
  fence(space, "lockstep::verify::to_host");
  return to;
}

template <class T>
Buffer<T> part(Buffer<T> const& buffer, std::int64_t begin, std::int64_t end) {
  return Kokkos::subview(buffer, std::make_pair(std::size_t(begin), std::size_t(end)));
}

}  // namespace lockstep::verify
