// SPDX-License-Identifier: Apache-2.0
#include "kernels/sgd.hpp"

#include "kernels/error.hpp"

namespace lockstep {

void sgd(Space const& space, float rate, Buffer<const float> const& gradient, Buffer<float> const& parameters) {
  LOCKSTEP_THROW_IF(parameters.extent(0) != gradient.extent(0), ExitCode::wrong_result,
                    "sgd: " + std::to_string(gradient.extent(0)) + " gradients for " +
                        std::to_string(parameters.extent(0)) + " parameters");
  Kokkos::parallel_for(
      "lockstep::kernels::sgd", Kokkos::RangePolicy<Space>(space, 0, parameters.extent(0)),
      KOKKOS_LAMBDA(int i) { parameters(i) = parameters(i) - rate * gradient(i); });
}

}  // namespace lockstep
