// SPDX-License-Identifier: Apache-2.0
#include "kernels/sgd.hpp"

#include "kernels/error.hpp"

namespace lockstep {

void sgd(Space const& space, float rate, Buffer<const float> const& gradient, Buffer<float> const& parameters) {
  LOCKSTEP_THROW_IF(parameters.extent(0) != gradient.extent(0), ExitCode::wrong_result,
                    "sgd: " + std::to_string(gradient.extent(0)) + " gradients for " +
                        std::to_string(parameters.extent(0)) + " parameters");
  double const wide_rate = rate;  // not a float: it could alias what is written, and the loop would not be vectorised
  Kokkos::parallel_for(
      "lockstep::kernels::sgd", Kokkos::RangePolicy<Space>(space, 0, parameters.extent(0)),
      KOKKOS_LAMBDA(std::int64_t i) { parameters(i) = parameters(i) - float(wide_rate) * gradient(i); });
}

}  // namespace lockstep
