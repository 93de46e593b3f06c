// SPDX-License-Identifier: Apache-2.0
// Networks and data sets that the checks run on.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "miniapp/data/dataset.hpp"
#include "miniapp/network.hpp"
#include "verify/values.hpp"

namespace lockstep::verify {

// Small, with every kind of layer, and odd in every extent: 1x9x11 -> conv 3 -> relu -> pool 2 (drops a row and a
// column)
// -> conv 2 -> relu -> dense 5 -> relu -> dense 10.
Network small_network();

// Every kind of layer alone, odd in every extent: windows that fit and that leave a rest, one channel, one row.
std::vector<Layer> odd_layers();
// The same in networks of few layers: what a layer computes forward shows in the logits and its parameters' gradients,
// what it hands back in the gradients of the layer before it.
std::vector<Network> odd_networks();

std::string describe(Layer const& layer);      // "conv2d 3x3 1x5x7 -> 3x3x5"
std::string describe(Network const& network);  // "1x9x11 conv2d(3,3) relu ..."

// Parameters of a size that keeps activations near 1 through the layers: weights uniform in +-sqrt(3 / terms), biases
// in +-0.1.
Values start_values(Network const& network, std::uint64_t seed);

// Noise images and labels; the same on every machine.
Dataset noise(std::uint64_t seed, std::int64_t count, int height, int width);

// Image i is dark but for pixel i. With a network of one dense layer, image i is the only one that changes row i of the
// weights, and so the weights record which images a step has used, and how often.
Dataset one_bright_pixel(std::int64_t count);
Network one_dense_layer(Dataset const& dataset);

}  // namespace lockstep::verify
