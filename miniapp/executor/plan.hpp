// SPDX-License-Identifier: Apache-2.0
// How a network runs: its layers joined into stages, cut to what the output needs, and the work space of one block of
// images.
#pragma once
#include "kernels/conv2d.hpp"
#include "kernels/dense.hpp"
#include "kernels/pool2d.hpp"
#include "miniapp/network.hpp"

namespace lockstep {

// convolution [+ ReLU] [+ 2 x 2 pooling] and dense [+ ReLU] are one stage; other pooling and ReLU layers are stages
// alone.
enum class StageKind : int { conv2d, dense, pool2d, relu };

// Plain data, copied to the device. Offsets: `input`, `output`, `flags` in a worker's floats; weight, bias in the
// parameters.
struct Stage {
  StageKind kind;
  Conv2d conv{};
  Dense dense{};
  Pool2d pool{};
  std::int64_t in_size = 0, out_size = 0;  // per image
  std::int64_t input = 0, output = 0, flags = -1;
  std::int64_t weight = -1, bias = -1;
  bool data_gradient = false;  // whether an earlier stage has parameters
};

// Pooling drops rows and columns at its floor. Nothing later needs them and their gradient is zero, so they are cut
// from that input, and what only they need from the layers before: the chapter's second convolution has 8 x 8 outputs
// left of 9 x 9.
struct Plan {
  Shape full_input, input;  // input: the corner of full_input that is needed
  int classes             = 0;
  std::int64_t parameters = 0;
  std::vector<Stage> stages;
  std::vector<int> first_layers;  // by stage, in the network

  // Work space of a worker in floats, from offset 0: activations (the images first, the logits last), two gradients of
  // activations in turn, dy of a whole convolution, then what the weight gradients use.
  std::int64_t gradient[2] = {0, 0};
  std::int64_t dy = 0, conv = 0, transposed = 0, losses = 0, size = 0;
  std::int64_t activations = 0;  // floats from the start

  explicit Plan(Network const& network);
};

}  // namespace lockstep
