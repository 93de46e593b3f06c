// SPDX-License-Identifier: Apache-2.0
// How numbers are compared, and the bounds that they are held to.
#pragma once
#include "miniapp/network.hpp"
#include "verify/values.hpp"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace lockstep::verify {

std::string format(double value);  // three significant digits

// Number of float32 values between a and b: 0 for equal bits only (so -0 and +0 are 1 apart), the largest value when
// exactly one of them is NaN or the NaNs differ.
std::int64_t ulp_distance(float a, float b);
constexpr std::int64_t ulp_not_comparable = std::numeric_limits<std::int64_t>::max();

// |a - b| / |b| in the 2-norm; 0 when both are zero, infinity when b alone is zero, NaN when a value is not finite.
double relative_difference(Values const& a, Values const& b);

// 64 bits of the SHA-256 of the values' or the text's bytes.
std::uint64_t hash_of(std::vector<float> const& values);
std::uint64_t hash_of(std::string const& text);

// Unit round-off of float32: half the distance from 1 to the next value.
constexpr double float_unit = std::numeric_limits<float>::epsilon() / 2.0;

// A sum of `terms` rounded products in any order and grouping, fused or not, lies within
//   sum_bound(terms) * sum |x_i y_i|,  sum_bound(n) = n u / (1 - n u), u = float_unit,
// of the exact sum (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1).
double sum_bound(std::int64_t terms);

// What rounding may do to a whole network's gradient, in the relative 2-norm: rounding errors of independent sign grow
// with the root of a sum's length, and each layer's forward and backward sums add theirs:
//   4 u sum over layers of (sqrt(n_forward) + sqrt(n_backward) + sqrt(n_weight)),
// where n_weight counts the terms of a weight's sum over `images` images.
double network_bound(Network const& network, std::int64_t images);

// The first place where two rows of parameters differ in bits.
struct Difference {
  bool equal = true;
  std::string tensor;
  std::int64_t index = -1;  // in the tensor
  float found = 0, expected = 0;
  std::int64_t largest_ulps = 0;  // over all values
};
Difference compare_bits(Network const& network, std::vector<float> const& found, std::vector<float> const& expected);
std::string describe(Difference const& difference);  // "W2[17]: 1.5 (0x3fc00000), expected 1.25 (0x3fa00000)"

}  // namespace lockstep::verify
