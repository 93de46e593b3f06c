// SPDX-License-Identifier: Apache-2.0
#include "miniapp/network.hpp"

#include <algorithm>
#include <utility>

#include "kernels/error.hpp"

namespace lockstep {
namespace {

std::string to_string(Shape const& s) {
  return std::to_string(s.channels) + "x" + std::to_string(s.height) + "x" + std::to_string(s.width);
}

Shape output_of(Network const& network) {
  return network.layers.empty() ? network.input : network.layers.back().output;
}

int add_tensor(Network& network, std::string name, std::vector<std::int64_t> extents) {
  std::int64_t count = 1;
  for (auto extent : extents) count *= extent;
  network.tensors.push_back({std::move(name), std::move(extents), network.parameters, count});
  network.parameters += count;
  return int(network.tensors.size()) - 1;
}

void add_weight_and_bias(Network& network, Layer& layer, std::vector<std::int64_t> extents, std::int64_t out) {
  std::string const number = std::to_string(network.tensors.size() / 2 + 1);
  layer.weight             = add_tensor(network, "W" + number, std::move(extents));
  layer.bias               = add_tensor(network, "b" + number, {out});
}

// A network's output is one value a class.
Network& append(Network& network, Layer layer) {
  network.classes = int(layer.output.size());
  network.layers.push_back(std::move(layer));
  return network;
}

}  // namespace

Network Network::with_input(Shape input) {
  LOCKSTEP_THROW_IF(input.channels < 1 || input.height < 1 || input.width < 1, ExitCode::usage,
                    "network input " + to_string(input) + "; expected positive extents");
  Network network;
  network.input   = input;
  network.classes = int(input.size());
  return network;
}

Network& Network::conv2d(int out_channels, int kernel) {
  Shape const in = output_of(*this);
  LOCKSTEP_THROW_IF(out_channels < 1, ExitCode::usage,
                    "conv2d with " + std::to_string(out_channels) + " output channels; expected 1 or more");
  LOCKSTEP_THROW_IF(kernel < 1 || kernel > in.height || kernel > in.width, ExitCode::usage,
                    "conv2d kernel " + std::to_string(kernel) + " on a " + to_string(in) + " input; expected 1.." +
                        std::to_string(std::min(in.height, in.width)));
  Layer layer{LayerKind::conv2d, in, {out_channels, in.height - kernel + 1, in.width - kernel + 1}};
  layer.kernel = kernel;
  add_weight_and_bias(*this, layer, {out_channels, in.channels, kernel, kernel}, out_channels);
  return append(*this, layer);
}

Network& Network::relu() {
  Shape const in = output_of(*this);
  return append(*this, Layer{LayerKind::relu, in, in});
}

Network& Network::average_pool2d(int window) {
  Shape const in = output_of(*this);
  LOCKSTEP_THROW_IF(window < 1 || window > in.height || window > in.width, ExitCode::usage,
                    "average_pool2d window " + std::to_string(window) + " on a " + to_string(in) +
                        " input; expected 1.." + std::to_string(std::min(in.height, in.width)));
  Layer layer{LayerKind::average_pool2d, in, {in.channels, in.height / window, in.width / window}};
  layer.kernel = window;
  return append(*this, layer);
}

Network& Network::dense(int units) {
  Shape const in = output_of(*this);
  LOCKSTEP_THROW_IF(units < 1, ExitCode::usage, "dense with " + std::to_string(units) + " units; expected 1 or more");
  Layer layer{LayerKind::dense, in, {units, 1, 1}};
  add_weight_and_bias(*this, layer, {in.size(), units}, units);
  return append(*this, layer);
}

Network Network::chapter() {
  Network network = with_input({1, 28, 28});
  network.conv2d(20, 3).relu().average_pool2d(2).conv2d(50, 5).relu().average_pool2d(2).dense(128).relu().dense(10);
  return network;
}

}  // namespace lockstep
