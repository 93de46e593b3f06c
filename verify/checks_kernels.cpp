// SPDX-License-Identifier: Apache-2.0
// The float32 kernels, as the trainer runs them, against the float64 reference.
#include <algorithm>
#include <cmath>

#include "kernels/pack.hpp"
#include "verify/cases.hpp"
#include "verify/check.hpp"
#include "verify/compare.hpp"
#include "verify/kernel_run.hpp"
#include "verify/reference.hpp"

namespace lockstep::verify {
namespace {

// Everything that the two runs hold, each in the 2-norm against the bound for its sums. Gradients are relative to the
// absolute values in their sums, so that one in which terms cancel is no worse than the others.
struct Comparison {
  double worst = 0;  // largest ratio of difference to bound
  std::string what, tensor;
  double found = 0, bound = 0;

  void add(std::string const& name, std::string const& owner, double difference, double limit) {
    double const ratio = difference == 0 ? 0.0 : difference / limit;
    if (!what.empty() && ratio <= worst) return;
    worst  = ratio;
    what   = name;
    tensor = owner;
    found  = difference;
    bound  = limit;
  }
};

Values slice(Values const& row, Tensor const& tensor) {
  return {row.begin() + tensor.offset, row.begin() + tensor.offset + tensor.count};
}

Comparison compare(Network const& network, GradientRun const& kernels, GradientRun const& reference) {
  Comparison result;
  result.add("logits", "logits", relative_difference(kernels.logits, reference.logits), network_bound(network, 1));
  for (std::size_t s = 0; s < reference.rows.size(); ++s) {
    Interval const images = reference.plan.images_of(std::int64_t(s));
    double const bound    = network_bound(network, images.size());
    Values const &a = kernels.rows[s], &b = reference.rows[s];
    std::string const shard = "shard " + std::to_string(s) + " of " + std::to_string(reference.rows.size());
    result.add(shard + ", loss", "loss", std::abs(a.back() - b.back()) / reference.magnitudes[s].back(), bound);
    for (Tensor const& tensor : network.tensors)
      result.add(shard + ", gradient of " + tensor.name, tensor.name,
                 distance(slice(a, tensor), slice(b, tensor)) / norm(slice(reference.magnitudes[s], tensor)), bound);
  }
  return result;
}

// Images whose two largest logits are closer than rounding may be counted either way.
std::int64_t undecided(Network const& network, GradientRun const& run) {
  std::size_t const classes = std::size_t(network.classes);
  std::int64_t result       = 0;
  for (std::size_t i = 0; i < run.logits.size(); i += classes) {
    Values logits(run.logits.begin() + i, run.logits.begin() + i + classes);
    std::sort(logits.rbegin(), logits.rend());
    result += classes > 1 && logits[0] - logits[1] <= 2 * network_bound(network, 1) * norm(logits);
  }
  return result;
}

Outcome compare_networks(Context const& context, std::vector<Network> const& networks,
                         std::vector<std::int64_t> const& sizes) {
  // Faults are planted in what trains; the alternative by matrix products runs where it can.
  std::vector<Conv> convs{Conv::direct};
  if (on_host && context.scope() != Scope::fault) convs.push_back(Conv::gemm);
  double worst       = 0;
  int cases          = 0;
  std::uint64_t seed = 1;
  for (Network const& network : networks)
    for (std::int64_t const images : sizes) {
      Values const parameters     = to_double(to_float(start_values(network, ++seed)));
      Dataset const data          = clear_noise(network, parameters, images, seed, 1e-5);
      GradientRun const reference = run_reference(network, data, parameters);
      for (Conv const conv : convs) {
        GradientRun const kernels = run_kernels(context, network, data, parameters, conv);
        std::string const where =
            std::to_string(images) + " images, " + describe(network) + (conv == Conv::gemm ? ", by gemm: " : ": ");
        Comparison const comparison = compare(network, kernels, reference);
        if (!(comparison.worst <= 1))
          return Outcome::failure(where + comparison.what + ": relative difference " + format(comparison.found) +
                                      ", bound " + format(comparison.bound),
                                  -1, comparison.tensor);
        if (std::abs(kernels.correct - reference.correct) > undecided(network, reference))
          return Outcome::failure(where + std::to_string(kernels.correct) + " correct predictions, expected " +
                                  std::to_string(reference.correct));
        worst = std::max(worst, comparison.worst);
        ++cases;
      }
    }
  return Outcome::success(std::to_string(cases) + " cases: worst difference " + format(worst) + " of the bound");
}

}  // namespace

Outcome check_layers(Context const& context) {
  std::vector<std::int64_t> sizes{1, 21};
  if (context.scope() == Scope::full) sizes = {1, 2, 15, 16, 17, 33, 270, 530};
  return compare_networks(context, odd_networks(), sizes);
}

Outcome check_network(Context const& context) {
  if (context.scope() == Scope::fault) return compare_networks(context, {small_network()}, {5});
  Outcome const small = compare_networks(context, {small_network()}, {1, 7, 64, 530});
  if (!small.passed) return small;
  Outcome const chapter = compare_networks(
      context, {Network::chapter()},
      context.scope() == Scope::full ? std::vector<std::int64_t>{1, 37, 96} : std::vector<std::int64_t>{19});
  if (!chapter.passed) return chapter;
  return Outcome::success("small network, " + small.detail + "; the chapter's, " + chapter.detail);
}

// Along each tensor's own gradient g the loss must rise by |g| per unit length. The step changes the loss by far more
// than float32's rounding of the logits (the loss of the logits is taken in float64), and moves no input of relu over
// its kink: the images keep clear of them by more. In the chapter's network, where no image does, the few that cross
// are one of thousands.
Outcome check_differences(Context const& context) {
  constexpr double relative_step = 5e-4, tolerance = 1e-2;
  std::vector<Network> networks{small_network()};
  if (context.scope() != Scope::fault) {
    for (Network const& network : odd_networks()) networks.push_back(network);
    networks.push_back(Network::chapter());
  }
  double worst       = 0;
  int tensors        = 0;
  std::uint64_t seed = 100;
  for (Network const& network : networks) {
    Values const parameters = start_values(network, ++seed);
    double const distance   = network.parameters > 100000 ? 1e-5 : 5e-3;
    Dataset const data      = clear_noise(network, parameters, 3, seed, distance);
    Values at(std::size_t(network.parameters) + 1, 0.0);
    for (Values const& row : run_kernels(context, network, data, parameters).rows)
      for (std::size_t i = 0; i < row.size(); ++i) at[i] += row[i];
    for (Tensor const& tensor : network.tensors) {
      Values const gradient = slice(at, tensor);
      double const length   = norm(gradient);
      auto const loss       = [&](double step) {
        Values moved = parameters;
        for (std::int64_t i = 0; i < tensor.count; ++i)
          moved[std::size_t(tensor.offset + i)] += step * gradient[std::size_t(i)] / length;
        Values const logits = run_kernels(context, network, data, moved).logits;
        double sum          = 0;
        for (std::int64_t i = 0; i < data.count; ++i) {
          auto const begin = logits.begin() + i * network.classes;
          sum += cross_entropy({begin, begin + network.classes}, data.labels[std::size_t(i)]);
        }
        return sum;
      };
      double const step    = relative_step * norm(slice(parameters, tensor));
      double const numeric = (loss(step) - loss(-step)) / (2 * step);
      double const error   = std::abs(numeric - length) / length;
      if (!(error <= tolerance))
        return Outcome::failure(describe(network) + ": the loss rises by " + format(numeric) +
                                    " along the gradient of " + tensor.name + ", whose norm is " + format(length),
                                -1, tensor.name);
      worst = std::max(worst, error);
      ++tensors;
    }
  }
  return Outcome::success(std::to_string(tensors) + " tensors of " + std::to_string(networks.size()) +
                          " networks: worst relative difference " + format(worst) + " (bound " + format(tolerance) +
                          ")");
}

}  // namespace lockstep::verify
