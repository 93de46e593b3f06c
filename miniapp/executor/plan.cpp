// SPDX-License-Identifier: Apache-2.0
#include "miniapp/executor/plan.hpp"

#include <algorithm>

#include "kernels/error.hpp"

namespace lockstep {
namespace {

// needed[l]: what of layer l's input is needed, needed[layers] the whole output.
std::vector<Shape> needed_inputs(Network const& network) {
  std::vector<Shape> needed(network.layers.size() + 1);
  needed.back() = network.layers.back().output;
  for (std::size_t l = network.layers.size(); l-- > 0;) {
    Layer const& layer = network.layers[l];
    needed[l]          = layer.input;
    if (layer.kind == LayerKind::dense) continue;
    Shape const after = needed[l + 1];
    bool const pool   = layer.kind == LayerKind::average_pool2d;
    int const grow    = layer.kind == LayerKind::conv2d ? layer.kernel - 1 : 0;
    int const times   = pool ? layer.kernel : 1;
    needed[l].height  = after.height * times + grow;
    needed[l].width   = after.width * times + grow;
  }
  return needed;
}

}  // namespace

Plan::Plan(Network const& network) {
  LOCKSTEP_THROW_IF(network.layers.empty(), ExitCode::usage, "network without layers; expected at least one");
  auto const needed = needed_inputs(network);
  full_input        = network.input;
  input             = needed.front();
  classes           = network.classes;
  parameters        = network.parameters;

  auto const is = [&](std::size_t l, LayerKind kind) {
    return l < network.layers.size() && network.layers[l].kind == kind;
  };
  auto const place = [this](std::int64_t floats) {  // on whole cache lines
    std::int64_t const at = size;
    size += (floats + 15) / 16 * 16;
    return at;
  };

  std::int64_t at = place(input.size() * lanes);
  bool trained    = false;
  for (std::size_t l = 0; l < network.layers.size();) {
    Layer const& layer = network.layers[l];
    Shape const in     = needed[l];
    first_layers.push_back(int(l));
    Stage stage{};
    stage.data_gradient = trained;
    if (layer.kind == LayerKind::conv2d) {
      stage.kind      = StageKind::conv2d;
      Shape const y   = needed[++l];
      bool const relu = is(l, LayerKind::relu);
      if (relu) ++l;
      bool const pool = is(l, LayerKind::average_pool2d) && network.layers[l].kernel == 2;
      if (pool) ++l;
      stage.conv = {in.channels, in.height, in.width, y.channels, y.height, y.width, layer.kernel, relu, pool};
    } else if (layer.kind == LayerKind::dense) {
      stage.kind      = StageKind::dense;
      bool const relu = is(++l, LayerKind::relu);
      if (relu) ++l;
      stage.dense = {in.size(), needed[l].size(), relu};
    } else if (layer.kind == LayerKind::average_pool2d) {
      stage.kind      = StageKind::pool2d;
      Shape const out = needed[++l];
      stage.pool      = {out.channels, out.height, out.width, layer.kernel};
    } else {
      stage.kind = StageKind::relu;
      ++l;
    }
    if (layer.weight >= 0) {
      stage.weight = network.tensors[layer.weight].offset;
      stage.bias   = network.tensors[layer.bias].offset;
      trained      = true;
    }
    stage.in_size  = in.size();
    stage.out_size = needed[l].size();
    stage.input    = at;
    stage.output = at = place(stage.out_size * lanes);
    if (stage.conv.relu && stage.conv.pool) stage.flags = place(stage.out_size * lanes / 4);
    stages.push_back(stage);
  }

  activations          = size;
  std::int64_t largest = 0, dy_size = 0, conv_size = 0, transposed_size = 0;
  for (Stage const& stage : stages) {
    largest = std::max({largest, stage.in_size * lanes, stage.out_size * lanes});
    if (stage.kind == StageKind::conv2d) {
      if (stage.data_gradient) dy_size = std::max(dy_size, stage.conv.out_channels * stage.conv.out_plane());
      conv_size = std::max(conv_size, Conv2dWork::size(stage.conv));
    } else if (stage.kind == StageKind::dense) {
      transposed_size = std::max(transposed_size, lanes * dense_row(stage.dense.out));
    }
  }
  for (auto& g : gradient) g = place(largest);
  dy         = place(dy_size);
  conv       = place(conv_size);
  transposed = place(transposed_size);
  losses     = place(lanes);
  place(16 * lanes);  // lane sums read ahead
}

}  // namespace lockstep
