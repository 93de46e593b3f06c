// SPDX-License-Identifier: Apache-2.0
#include "verify/cases.hpp"

#include <algorithm>
#include <cmath>
#include <random>

#include "miniapp/sha256.hpp"

namespace lockstep::verify {
namespace {

constexpr int classes = 10;

Dataset finished(Dataset dataset) {
  std::vector<std::uint8_t> all = dataset.images;
  all.insert(all.end(), dataset.labels.begin(), dataset.labels.end());
  dataset.sha256 = sha256(all.data(), all.size());
  return dataset;
}

}  // namespace

Network small_network() {
  return Network::with_input({1, 9, 11})
      .conv2d(3, 3)
      .relu()
      .average_pool2d(2)
      .conv2d(5, 2)
      .relu()
      .dense(7)
      .relu()
      .dense(classes);
}

std::vector<Layer> odd_layers() {
  auto const convolution = [](Shape in, int channels, int kernel) {
    return Layer{LayerKind::conv2d, in, {channels, in.height - kernel + 1, in.width - kernel + 1}, kernel};
  };
  auto const pooling = [](Shape in, int window) {
    return Layer{LayerKind::average_pool2d, in, {in.channels, in.height / window, in.width / window}, window};
  };
  auto const dense = [](Shape in, int units) { return Layer{LayerKind::dense, in, {units, 1, 1}}; };
  return {convolution({1, 5, 7}, 3, 3), convolution({3, 6, 5}, 2, 5), convolution({2, 3, 3}, 5, 1),
          convolution({2, 1, 4}, 1, 1), convolution({1, 7, 4}, 2, 4), pooling({2, 5, 7}, 2),
          pooling({1, 7, 8}, 3),        pooling({3, 2, 2}, 1),        {LayerKind::relu, {3, 5, 1}, {3, 5, 1}},
          dense({3, 2, 3}, 7),          dense({1, 1, 1}, 1),          dense({1, 1, 13}, 4)};
}

std::vector<Network> odd_networks() {
  auto const input = [](int height, int width) { return Network::with_input({1, height, width}); };
  return {input(5, 7).dense(10),
          input(1, 1).dense(10),
          input(3, 5).dense(17).dense(10),
          input(3, 3).dense(33).relu().dense(10),
          input(5, 7).conv2d(3, 1).dense(10),
          input(5, 7).conv2d(1, 2).dense(10),
          input(5, 7).conv2d(7, 3).dense(10),
          input(9, 4).conv2d(2, 4).dense(10),
          input(9, 6).conv2d(11, 5).dense(10),
          input(8, 7).conv2d(1, 7).dense(10),
          input(9, 8).conv2d(3, 3).conv2d(5, 3).dense(10),
          input(9, 11).conv2d(6, 5).conv2d(7, 5).dense(10),
          input(7, 6).conv2d(5, 2).conv2d(3, 4).dense(10),
          input(7, 9).conv2d(3, 3).relu().dense(10),
          input(8, 9).conv2d(3, 3).average_pool2d(2).dense(10),
          input(9, 9).conv2d(2, 3).average_pool2d(3).dense(10),
          input(11, 13).conv2d(3, 3).relu().average_pool2d(2).conv2d(4, 3).relu().average_pool2d(2).dense(10),
          input(13, 12).conv2d(4, 5).relu().average_pool2d(2).conv2d(21, 2).relu().dense(19).relu().dense(10)};
}

std::string describe(Layer const& layer) {
  auto const shape = [](Shape const& s) {
    return std::to_string(s.channels) + "x" + std::to_string(s.height) + "x" + std::to_string(s.width);
  };
  std::string const window = std::to_string(layer.kernel) + "x" + std::to_string(layer.kernel);
  std::string name;
  switch (layer.kind) {
    case LayerKind::conv2d:
      name = "conv2d " + window;
      break;
    case LayerKind::relu:
      name = "relu";
      break;
    case LayerKind::average_pool2d:
      name = "average_pool2d " + window;
      break;
    case LayerKind::dense:
      name = "dense";
      break;
  }
  return name + " " + shape(layer.input) + " -> " + shape(layer.output);
}

std::string describe(Network const& network) {
  std::string text;
  for (Layer const& layer : network.layers) text += (text.empty() ? "" : ", ") + describe(layer);
  return text;
}

Values start_values(Network const& network, std::uint64_t seed) {
  Values values(std::size_t(network.parameters));
  auto const fill = [&](int index, double bound) {
    if (index < 0) return;
    Tensor const& tensor = network.tensors[std::size_t(index)];
    Values const drawn   = random_values(1000 * seed + std::uint64_t(index), tensor.count, -bound, bound);
    std::copy(drawn.begin(), drawn.end(), values.begin() + tensor.offset);
  };
  for (Layer const& layer : network.layers) {
    double const terms = layer.kind == LayerKind::conv2d ? double(layer.input.channels) * layer.kernel * layer.kernel
                                                         : double(layer.input.size());
    fill(layer.weight, std::sqrt(3 / terms));
    fill(layer.bias, 0.1);
  }
  return values;
}

Dataset noise(std::uint64_t seed, std::int64_t count, int height, int width) {
  std::mt19937_64 engine(seed);
  Dataset dataset{height, width, count, {}, {}, ""};
  for (std::int64_t i = 0; i < count * height * width; ++i) dataset.images.push_back(std::uint8_t(engine() >> 56));
  for (std::int64_t i = 0; i < count; ++i) dataset.labels.push_back(std::uint8_t((engine() >> 33) % classes));
  return finished(std::move(dataset));
}

Dataset one_bright_pixel(std::int64_t count) {
  int height = 1;
  while (std::int64_t(height) * height < count) ++height;
  int const width = int((count + height - 1) / height);
  Dataset dataset{height, width, count, {}, {}, ""};
  dataset.images.assign(count * height * width, 0);
  for (std::int64_t i = 0; i < count; ++i) {
    dataset.images[i * height * width + i] = 255;
    dataset.labels.push_back(std::uint8_t(i % classes));
  }
  return finished(std::move(dataset));
}

Network one_dense_layer(Dataset const& dataset) {
  return Network::with_input({1, dataset.height, dataset.width}).dense(classes);
}

}  // namespace lockstep::verify
