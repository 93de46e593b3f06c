// SPDX-License-Identifier: Apache-2.0
#include "kernels/sgd.hpp"

#include "kernels/error.hpp"
#include "kernels/kokkos_compat.hpp"

namespace lockstep {

namespace {

void check_lengths(Buffer<const float> const& gradient, Buffer<const float> const& parameters) {
  LOCKSTEP_THROW_IF(parameters.extent(0) != gradient.extent(0), ExitCode::wrong_result,
                    "sgd: " + std::to_string(gradient.extent(0)) + " gradients for " +
                        std::to_string(parameters.extent(0)) + " parameters");
}

}  // namespace

void sgd(Space const& space, float rate, Buffer<const float> const& gradient, Buffer<float> const& parameters) {
  check_lengths(gradient, parameters);
  double const wide_rate = rate;  // not a float: it could alias what is written, and the loop would not be vectorised
  launch(
      "lockstep::kernels::sgd", Kokkos::RangePolicy<Space>(space, 0, parameters.extent(0)),
      KOKKOS_LAMBDA(std::int64_t i) { parameters(i) = parameters(i) - float(wide_rate) * gradient(i); });
}

void sgd(Space const& space, Buffer<const float> const& rate, Buffer<const std::int64_t> const& exponents,
         Buffer<const float> const& gradient, Buffer<float> const& parameters) {
  check_lengths(gradient, parameters);
  int const tensors = int(exponents.extent(0));
  launch(
      "lockstep::kernels::sgd", Kokkos::RangePolicy<Space>(space, 0, parameters.extent(0)),
      KOKKOS_LAMBDA(std::int64_t i) {
        for (int t = 0; t < tensors; ++t)
          if (exponents(t) >= exponent_not_finite) return;
        parameters(i) = parameters(i) - rate(0) * gradient(i);
      });
}

}  // namespace lockstep
