// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/gradient_sum.hpp"

namespace lockstep {

// parameters[i] = parameters[i] - float(rate * gradient[i]), two roundings. Lengths agree.
void sgd(Space const& space, float rate, Buffer<const float> const& gradient, Buffer<float> const& parameters);

// The same with what only the device knows: rate is [1]; where one of the exponent codes is `exponent_not_finite` the
// parameters stay as they are.
void sgd(Space const& space, Buffer<const float> const& rate, Buffer<const std::int64_t> const& exponents,
         Buffer<const float> const& gradient, Buffer<float> const& parameters);

}  // namespace lockstep
