// SPDX-License-Identifier: Apache-2.0
// Numbers of the float64 side of the verifier, made without any of the code under test.
#pragma once
#include <cstdint>
#include <vector>

namespace lockstep::verify {

using Values = std::vector<double>;

// Uniform in [low, high), the same numbers on every machine, each a float32 value so that both sides start from equal
// inputs.
Values random_values(std::uint64_t seed, std::int64_t count, double low, double high);

Values absolute(Values values);
std::vector<float> to_float(Values const& values);
Values to_double(std::vector<float> const& values);
double norm(Values const& values);
double distance(Values const& a, Values const& b);  // norm of the difference
double largest(Values const& values);               // of the absolute values; NaN if one is

}  // namespace lockstep::verify
