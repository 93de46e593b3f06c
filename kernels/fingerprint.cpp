// SPDX-License-Identifier: Apache-2.0
#include "kernels/fingerprint.hpp"

#include <cstring>

#include "kernels/error.hpp"

namespace lockstep {
namespace {

// A bijection of (position, bits), so that two different elements at one position never collide.
KOKKOS_FORCEINLINE_FUNCTION std::uint64_t mix(std::uint64_t position, float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  std::uint64_t x = position << 32 | bits;
  x               = (x ^ x >> 31) * 0x9e3779b97f4a7c15u;
  x               = (x ^ x >> 29) * 0xd6e8feb86659fd93u;
  return x ^ x >> 32;
}

}  // namespace

void fingerprints(Space const& space, Buffer<const float> const& values, TensorLayout const& layout,
                  Buffer<std::uint64_t> const& out) {
  LOCKSTEP_THROW_IF(std::int64_t(values.extent(0)) < layout.count(), ExitCode::wrong_result,
                    "fingerprints: " + std::to_string(values.extent(0)) + " values for a layout of " +
                        std::to_string(layout.count()));
  for (int t = 0; t < layout.tensors(); ++t) {
    std::int64_t const count  = layout.offsets[t + 1] - layout.offsets[t];
    float const* const tensor = values.data() + layout.offsets[t];
    Kokkos::View<std::uint64_t, Memory, Kokkos::MemoryTraits<Kokkos::Unmanaged>> const result(out.data() + t);
    Kokkos::parallel_reduce(
        "lockstep::kernels::fingerprint", Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>>(space, 0, count),
        KOKKOS_LAMBDA(std::int64_t i, std::uint64_t & sum) { sum += mix(std::uint64_t(i), tensor[i]); }, result);
  }
}

}  // namespace lockstep
