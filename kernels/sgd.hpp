// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/types.hpp"

namespace lockstep {

// parameters[i] = parameters[i] - float(rate * gradient[i]), two roundings. Lengths agree.
void sgd(Space const& space, float rate, Buffer<const float> const& gradient, Buffer<float> const& parameters);

}  // namespace lockstep
