// SPDX-License-Identifier: Apache-2.0
#include "verify/values.hpp"

#include <cmath>
#include <random>

namespace lockstep::verify {

Values random_values(std::uint64_t seed, std::int64_t count, double low, double high) {
  std::mt19937_64 engine(seed);  // the engine is defined by the standard, its distributions are not
  Values values(count);
  for (double& value : values) {
    double const unit = std::ldexp(double(engine() >> 11), -53);
    value             = double(float(low + (high - low) * unit));
  }
  return values;
}

Values absolute(Values values) {
  for (double& value : values) value = std::abs(value);
  return values;
}

std::vector<float> to_float(Values const& values) {
  return {values.begin(), values.end()};
}

Values to_double(std::vector<float> const& values) {
  return {values.begin(), values.end()};
}

double norm(Values const& values) {
  double sum = 0;
  for (double const value : values) sum += value * value;
  return std::sqrt(sum);
}

double distance(Values const& a, Values const& b) {
  Values difference(a);
  for (std::size_t i = 0; i < b.size(); ++i) difference.at(i) -= b[i];
  return norm(difference);
}

double largest(Values const& values) {
  double result = 0;
  for (double const value : values)
    if (!(std::abs(value) <= result)) result = std::abs(value);
  return result;
}

}  // namespace lockstep::verify
