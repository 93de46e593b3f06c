// SPDX-License-Identifier: Apache-2.0
#include "verify/gradient_check.hpp"

#include <cmath>

#include "verify/reference.hpp"

namespace lockstep::verify {

GradientError central_differences(std::function<double(Values const&)> const& f, Values point, Values const& gradient,
                                  double h, std::int64_t stride) {
  GradientError result;
  double const scale = largest(gradient);
  for (std::int64_t i = 0; i < std::int64_t(point.size()); i += stride) {
    double const x          = point[i];
    point[i]                = x + h;
    double const right      = f(point);
    point[i]                = x - h;
    double const left       = f(point);
    point[i]                = x;
    double const numeric    = (right - left) / (2 * h);
    double const difference = std::abs(gradient[i] - numeric);
    double const error      = difference == 0 ? 0.0 : difference / scale;
    if (result.index < 0 || !(error <= result.worst)) result = {error, i, gradient[i], numeric};
    if (std::isnan(result.worst)) break;
  }
  return result;
}

GradientError check_reference_layer(Layer const& layer, std::uint64_t seed) {
  std::int64_t weights = 0, biases = 0;
  if (layer.kind == LayerKind::conv2d)
    weights = std::int64_t(layer.output.channels) * layer.input.channels * layer.kernel * layer.kernel;
  if (layer.kind == LayerKind::dense) weights = layer.input.size() * layer.output.channels;
  if (weights > 0) biases = layer.output.channels;

  // Inputs keep clear of 0, where relu has no derivative.
  Values input       = random_values(seed, layer.input.size(), 0.25, 1.0);
  Values const signs = random_values(seed + 1, layer.input.size(), -1.0, 1.0);
  for (std::size_t i = 0; i < input.size(); ++i) input[i] = std::copysign(input[i], signs[i]);
  Values const weight = random_values(seed + 2, weights, -1.0, 1.0);
  Values const bias   = random_values(seed + 3, biases, -1.0, 1.0);
  Values const factor = random_values(seed + 4, layer.output.size(), -1.0, 1.0);

  auto const f = [&](Values const& x, Values const& w, Values const& b) {
    Values const output = layer_forward(layer, x, w, b);
    double sum          = 0;
    for (std::size_t i = 0; i < output.size(); ++i) sum += factor[i] * output[i];
    return sum;
  };
  LayerGradients const gradients = layer_backward(layer, input, weight, factor);
  double const h                 = 1e-3;  // f is linear along each coordinate: no truncation error
  GradientError worst;
  auto const keep = [&](GradientError const& error) {
    if (error.index >= 0 && !(error.worst <= worst.worst)) worst = error;
  };
  keep(central_differences([&](Values const& x) { return f(x, weight, bias); }, input, gradients.input, h));
  keep(central_differences([&](Values const& w) { return f(input, w, bias); }, weight, gradients.weight, h));
  keep(central_differences([&](Values const& b) { return f(input, weight, b); }, bias, gradients.bias, h));
  return worst;
}

}  // namespace lockstep::verify
