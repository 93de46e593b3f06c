// SPDX-License-Identifier: Apache-2.0
// Central differences: (f(x + h e) - f(x - h e)) / 2h has the error h^2 |f'''| / 6 (truncation) + epsilon |f| / h
// (rounding).
#pragma once
#include "miniapp/network.hpp"
#include "verify/values.hpp"

#include <cstdint>
#include <functional>

namespace lockstep::verify {

struct GradientError {
  double worst       = 0;  // largest |analytic - numeric| / largest |gradient|; NaN if one of them is
  std::int64_t index = -1;
  double analytic = 0, numeric = 0;
};

// Coordinates 0, stride, 2 stride, ...
GradientError central_differences(std::function<double(Values const&)> const& f, Values point, Values const& gradient,
                                  double h, std::int64_t stride = 1);

// Of one layer's backward function in the reference, against its forward function: weighted sums of the outputs as f;
// input, weight and bias checked in full.
GradientError check_reference_layer(Layer const& layer, std::uint64_t seed);

}  // namespace lockstep::verify
