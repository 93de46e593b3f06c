// SPDX-License-Identifier: Apache-2.0
#include "miniapp/step_values.hpp"

#include <cstring>

#include "kernels/kokkos_compat.hpp"
#include "kernels/pack.hpp"

namespace lockstep {
namespace {

template <class Body>
void for_each(Space const& space, char const* label, std::int64_t count, Body const& body) {
  if constexpr (on_host) {
    fence(space, label);
    for (std::int64_t i = 0; i < count; ++i) body(i);
  } else {
    launch(label, Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>>(space, 0, count), body);
  }
}

}  // namespace

void set_step(Space const& space, Buffer<const std::int32_t> const& order, std::int64_t first, float value,
              Buffer<std::int32_t> const& numbers, Buffer<float> const& rate) {
  for_each(
      space, "lockstep::trainer::set_step", std::int64_t(numbers.extent(0)), KOKKOS_LAMBDA(std::int64_t i) {
        numbers(i) = order(first + i);
        if (i == 0) rate(0) = value;
      });
}

void both_ways(Space const& space, Buffer<const std::uint64_t> const& prints, Buffer<std::int64_t> const& both) {
  auto const count = std::int64_t(prints.extent(0));
  for_each(
      space, "lockstep::trainer::both_ways", count, KOKKOS_LAMBDA(std::int64_t i) {
        both(i)         = std::int64_t(prints(i));
        both(count + i) = ~std::int64_t(prints(i));
      });
}

void collect(Space const& space, Buffer<const std::int64_t> const& exponents, Buffer<const std::int64_t> const& both,
             Buffer<const float> const& loss, Buffer<std::int64_t> const& all) {
  auto const codes = std::int64_t(exponents.extent(0)), prints = std::int64_t(both.extent(0));
  for_each(
      space, "lockstep::trainer::collect", codes + prints + 1, KOKKOS_LAMBDA(std::int64_t i) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, &loss(0), sizeof bits);
        all(i) = i < codes ? exponents(i) : i < codes + prints ? both(i - codes) : std::int64_t(bits);
      });
}

}  // namespace lockstep
