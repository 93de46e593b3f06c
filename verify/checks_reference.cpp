// SPDX-License-Identifier: Apache-2.0
// The reference checked against itself: the ruler before anything is measured with it.
#include <algorithm>

#include "verify/cases.hpp"
#include "verify/check.hpp"
#include "verify/compare.hpp"
#include "verify/gradient_check.hpp"
#include "verify/reference.hpp"

namespace lockstep::verify {
namespace {

constexpr double layer_tolerance = 1e-10;  // linear along each coordinate: rounding of 1e-3 steps alone
constexpr double network_tolerance =
    1e-7;  // h = 1e-6: rounding epsilon |f| / h = 5e-10 beside gradients of 0.01 and more

GradientError check_network_gradient(Network const& network, std::uint64_t seed, std::int64_t stride) {
  ReferenceNetwork const reference(network);
  Values const parameters = start_values(network, seed);
  Values image;
  // An image from which no step crosses a kink of relu.
  do image = random_values(++seed, network.input.size(), 0, 1);
  while (reference.kink_distance(image, parameters) < 2e-5);
  int const label = int(seed % std::uint64_t(network.classes));
  Values gradient(parameters.size(), 0.0);
  reference.add_gradient(image, label, parameters, gradient);
  return central_differences([&](Values const& p) { return reference.loss(image, label, p); }, parameters, gradient,
                             1e-6, stride);
}

}  // namespace

Outcome check_reference(Context const& context) {
  double worst_layer = 0, worst_network = 0;
  for (Layer const& layer : odd_layers()) {
    GradientError const error = check_reference_layer(layer, 1);
    if (!(error.worst <= layer_tolerance))
      return Outcome::failure(describe(layer) + ", index " + std::to_string(error.index) + ": gradient " +
                              format(error.analytic) + ", central difference " + format(error.numeric));
    worst_layer = std::max(worst_layer, error.worst);
  }
  std::vector<std::pair<Network, std::int64_t>> networks{{small_network(), 1}};
  if (context.scope() != Scope::fault)
    networks.push_back({Network::chapter(), context.scope() == Scope::full ? 797 : 9973});
  for (auto const& [network, stride] : networks) {
    GradientError const error = check_network_gradient(network, 7, stride);
    if (!(error.worst <= network_tolerance))
      return Outcome::failure("parameter " + std::to_string(error.index) + ": gradient " + format(error.analytic) +
                              ", central difference " + format(error.numeric));
    worst_network = std::max(worst_network, error.worst);
  }
  return Outcome::success(std::to_string(odd_layers().size()) + " layers: worst " + format(worst_layer) + " (bound " +
                          format(layer_tolerance) + "); " + std::to_string(networks.size()) + " networks: worst " +
                          format(worst_network) + " (bound " + format(network_tolerance) + ")");
}

}  // namespace lockstep::verify
