// SPDX-License-Identifier: Apache-2.0
#include "kernels/random.hpp"

#include "kernels/error.hpp"

#include <cmath>
#include <numeric>
#include <string>
#include <utility>

namespace lockstep {

namespace {

// Natural logarithm of 0 < x < 1 by operations that IEEE 754 rounds exactly; relative error below 1e-15. The library's
// logarithm differs between machines in the last bit.
double portable_log(double x) {
  int exponent;
  double mantissa = std::frexp(x, &exponent);
  if (mantissa < 0.70710678118654752) {
    mantissa *= 2;
    --exponent;
  }
  double const z = (mantissa - 1) / (mantissa + 1), z2 = z * z;  // log m = 2 atanh z, |z| < 0.172
  double series = 0;
  for (int k = 23; k >= 1; k -= 2) series = series * z2 + 1.0 / k;
  return 2 * z * series + exponent * 0.69314718055994531;
}

double symmetric_unit(std::uint32_t high, std::uint32_t low) {  // uniform in [-1, 1]
  std::uint64_t const bits = ((std::uint64_t(high) << 32) | low) >> 11;
  return (double(bits) + 0.5) * (1.0 / 4503599627370496.0) - 1.0;
}

}  // namespace

// Marsaglia's polar method.
std::vector<float> normal_values(std::uint64_t seed, std::uint64_t stream, std::int64_t count, double stddev) {
  LOCKSTEP_THROW_IF(count < 0, ExitCode::usage, "normal_values: count is " + std::to_string(count) + ", expected >= 0");
  RandomStream random(seed, RandomPurpose::normal, stream);
  std::vector<float> values;
  values.reserve(std::size_t(count) + 1);
  while (std::int64_t(values.size()) < count) {
    Philox4 const block = random.next_block();
    double const u = symmetric_unit(block.words[0], block.words[1]), v = symmetric_unit(block.words[2], block.words[3]);
    double const s = u * u + v * v;
    if (s >= 1 || s == 0) continue;
    double const factor = stddev * std::sqrt(-2 * portable_log(s) / s);
    values.push_back(float(u * factor));
    values.push_back(float(v * factor));
  }
  values.resize(std::size_t(count));
  return values;
}

std::vector<std::int32_t> permutation(std::int64_t n, std::uint64_t seed, std::uint64_t epoch) {
  LOCKSTEP_THROW_IF(n < 0 || n > INT32_MAX, ExitCode::usage,
                    "permutation: n is " + std::to_string(n) + ", expected 0 .. 2147483647");
  RandomStream random(seed, RandomPurpose::permutation, epoch);
  std::vector<std::int32_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t i = n - 1; i > 0; --i) std::swap(order[std::size_t(i)], order[random.below(std::uint32_t(i) + 1u)]);
  return order;
}

}  // namespace lockstep
