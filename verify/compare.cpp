// SPDX-License-Identifier: Apache-2.0
#include "verify/compare.hpp"

#include <cmath>
#include <cstdio>
#include <cstring>

#include "kernels/error.hpp"
#include "miniapp/sha256.hpp"

namespace lockstep::verify {
namespace {

std::uint32_t bits(float value) {
  std::uint32_t result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}

// Monotonic in the value; -0 and +0 are neighbours.
std::int64_t position(float value) {
  std::uint32_t const raw = bits(value);
  return raw & 0x80000000u ? -1 - std::int64_t(raw & 0x7fffffffu) : std::int64_t(raw);
}

std::uint64_t first_bits(std::string const& hexadecimal) {
  return std::stoull(hexadecimal.substr(0, 16), nullptr, 16);
}

std::string number(float value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.9g (0x%08x)", double(value), unsigned(bits(value)));
  return text;
}

}  // namespace

std::string format(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

std::int64_t ulp_distance(float a, float b) {
  if (bits(a) == bits(b)) return 0;
  if (std::isnan(a) || std::isnan(b)) return ulp_not_comparable;
  return std::abs(position(a) - position(b));
}

double relative_difference(Values const& a, Values const& b) {
  LOCKSTEP_THROW_IF(a.size() != b.size(), ExitCode::wrong_result,
                    "comparison of " + std::to_string(a.size()) + " values with " + std::to_string(b.size()));
  Values difference(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  double const distance = norm(difference), length = norm(b);
  if (std::isnan(distance) || !std::isfinite(length)) return std::numeric_limits<double>::quiet_NaN();
  return distance == 0 ? 0.0 : distance / length;
}

std::uint64_t hash_of(std::vector<float> const& values) {
  return first_bits(sha256(values.data(), values.size() * sizeof(float)));
}

std::uint64_t hash_of(std::string const& text) {
  return first_bits(sha256(text.data(), text.size()));
}

double sum_bound(std::int64_t terms) {
  double const nu = double(terms) * float_unit;
  return nu / (1 - nu);
}

double network_bound(Network const& network, std::int64_t images) {
  double sum = 0;
  for (Layer const& layer : network.layers) {
    double const window    = double(layer.kernel) * layer.kernel,
                 positions = double(layer.output.height) * layer.output.width;
    switch (layer.kind) {
      case LayerKind::conv2d:
        sum += std::sqrt(window * layer.input.channels) + std::sqrt(window * layer.output.channels) +
               std::sqrt(positions * images);
        break;
      case LayerKind::dense:
        sum += std::sqrt(double(layer.input.size())) + std::sqrt(double(layer.output.channels)) +
               std::sqrt(double(images));
        break;
      case LayerKind::average_pool2d:
        sum += std::sqrt(window) + 1;
        break;
      case LayerKind::relu:
        break;
    }
  }
  return 4 * float_unit * (sum + std::sqrt(double(network.classes)));
}

Difference compare_bits(Network const& network, std::vector<float> const& found, std::vector<float> const& expected) {
  LOCKSTEP_THROW_IF(
      std::int64_t(found.size()) != network.parameters || std::int64_t(expected.size()) != network.parameters,
      ExitCode::wrong_result,
      "comparison of " + std::to_string(found.size()) + " with " + std::to_string(expected.size()) +
          " parameters; expected " + std::to_string(network.parameters));
  Difference result;
  for (Tensor const& tensor : network.tensors)
    for (std::int64_t i = 0; i < tensor.count; ++i) {
      float const a = found[tensor.offset + i], b = expected[tensor.offset + i];
      std::int64_t const ulps = ulp_distance(a, b);
      if (ulps == 0) continue;
      if (result.equal) result = {false, tensor.name, i, a, b, 0};
      result.largest_ulps = std::max(result.largest_ulps, ulps);
    }
  return result;
}

std::string describe(Difference const& difference) {
  if (difference.equal) return "equal bits";
  return difference.tensor + "[" + std::to_string(difference.index) + "]: " + number(difference.found) + ", expected " +
         number(difference.expected);
}

}  // namespace lockstep::verify
