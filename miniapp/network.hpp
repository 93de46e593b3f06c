// SPDX-License-Identifier: Apache-2.0
// The network as data: a list of layers with shapes, and the parameter tensors they own in one flat buffer.
#pragma once
#include "kernels/types.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

enum class LayerKind { conv2d, relu, average_pool2d, dense };

// Convolutions are cross-correlations, stride 1, no padding: weights [out][in][kernel][kernel], bias [out].
// Pooling: window x window, stride = window, floor. Dense: weights [in][out] over the flattened (channel, row, column)
// input, bias [out].
struct Layer {
  LayerKind kind;
  Shape input, output;
  int kernel = 0;   // conv2d: kernel size; average_pool2d: window
  int weight = -1;  // index into Network::tensors, -1 if the layer has none
  int bias   = -1;
};

struct Tensor {
  std::string name;  // "W1", "b1", ...
  std::vector<std::int64_t> extents;
  std::int64_t offset = 0;  // in the flat parameter buffer
  std::int64_t count  = 0;
};

struct Network {
  Shape input;
  int classes = 0;
  std::vector<Layer> layers;
  std::vector<Tensor> tensors;
  std::int64_t parameters = 0;  // sum of the tensors' counts

  // Layers are appended with run-time shapes; each checks that it fits the output so far (Error, usage).
  static Network with_input(Shape input);
  Network& conv2d(int out_channels, int kernel);
  Network& relu();
  Network& average_pool2d(int window);
  Network& dense(int units);

  // The network of the chapter "Training on multiple GPUs" of Dive into Deep Learning: 129,068 parameters.
  static Network chapter();
};

}  // namespace lockstep
