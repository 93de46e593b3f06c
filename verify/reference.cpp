// SPDX-License-Identifier: Apache-2.0
#include "verify/reference.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace lockstep::verify {
namespace {

std::size_t at(Shape const& shape, int channel, int row, int column) {
  return (std::size_t(channel) * shape.height + row) * shape.width + column;
}

std::size_t weight_at(Layer const& layer, int out, int in, int row, int column) {
  return ((std::size_t(out) * layer.input.channels + in) * layer.kernel + row) * layer.kernel + column;
}

template <class Function>
void for_each(Shape const& shape, Function const& function) {
  for (int channel = 0; channel < shape.channels; ++channel)
    for (int row = 0; row < shape.height; ++row)
      for (int column = 0; column < shape.width; ++column) function(channel, row, column);
}

}  // namespace

Values layer_forward(Layer const& layer, Values const& input, Values const& weight, Values const& bias) {
  Shape const in = layer.input, out = layer.output;
  int const kernel = layer.kernel;
  Values output(out.size(), 0.0);
  switch (layer.kind) {
    case LayerKind::conv2d:
      for_each(out, [&](int o, int y, int x) {
        double sum = bias[o];
        for (int c = 0; c < in.channels; ++c)
          for (int i = 0; i < kernel; ++i)
            for (int j = 0; j < kernel; ++j)
              sum += weight[weight_at(layer, o, c, i, j)] * input[at(in, c, y + i, x + j)];
        output[at(out, o, y, x)] = sum;
      });
      return output;
    case LayerKind::relu:
      for (std::size_t i = 0; i < output.size(); ++i) output[i] = input[i] > 0 ? input[i] : 0.0;
      return output;
    case LayerKind::average_pool2d:
      for_each(out, [&](int c, int y, int x) {
        double sum = 0;
        for (int i = 0; i < kernel; ++i)
          for (int j = 0; j < kernel; ++j) sum += input[at(in, c, y * kernel + i, x * kernel + j)];
        output[at(out, c, y, x)] = sum / (kernel * kernel);
      });
      return output;
    case LayerKind::dense:
      for (int o = 0; o < out.channels; ++o) {
        double sum = bias[o];
        for (std::size_t i = 0; i < input.size(); ++i) sum += input[i] * weight[i * out.channels + o];
        output[o] = sum;
      }
      return output;
  }
  throw std::logic_error("layer_forward: unknown kind of layer");
}

LayerGradients layer_backward(Layer const& layer, Values const& input, Values const& weight,
                              Values const& output_gradient) {
  Shape const in = layer.input, out = layer.output;
  int const kernel = layer.kernel;
  LayerGradients gradients;
  gradients.input.assign(in.size(), 0.0);
  gradients.weight.assign(weight.size(), 0.0);
  switch (layer.kind) {
    case LayerKind::conv2d:
      gradients.bias.assign(out.channels, 0.0);
      for_each(out, [&](int o, int y, int x) {
        double const g = output_gradient[at(out, o, y, x)];
        gradients.bias[o] += g;
        for (int c = 0; c < in.channels; ++c)
          for (int i = 0; i < kernel; ++i)
            for (int j = 0; j < kernel; ++j) {
              gradients.weight[weight_at(layer, o, c, i, j)] += g * input[at(in, c, y + i, x + j)];
              gradients.input[at(in, c, y + i, x + j)] += g * weight[weight_at(layer, o, c, i, j)];
            }
      });
      return gradients;
    case LayerKind::relu:
      for (std::size_t i = 0; i < input.size(); ++i) gradients.input[i] = input[i] > 0 ? output_gradient[i] : 0.0;
      return gradients;
    case LayerKind::average_pool2d:
      for_each(out, [&](int c, int y, int x) {
        double const share = output_gradient[at(out, c, y, x)] / (kernel * kernel);
        for (int i = 0; i < kernel; ++i)
          for (int j = 0; j < kernel; ++j) gradients.input[at(in, c, y * kernel + i, x * kernel + j)] += share;
      });
      return gradients;
    case LayerKind::dense:
      gradients.bias = output_gradient;
      for (std::size_t i = 0; i < input.size(); ++i)
        for (int o = 0; o < out.channels; ++o) {
          gradients.weight[i * out.channels + o] += input[i] * output_gradient[o];
          gradients.input[i] += weight[i * out.channels + o] * output_gradient[o];
        }
      return gradients;
  }
  throw std::logic_error("layer_backward: unknown kind of layer");
}

double cross_entropy(Values const& logits, int label) {
  double const top = *std::max_element(logits.begin(), logits.end());
  double sum       = 0;
  for (double const z : logits) sum += std::exp(z - top);
  return std::log(sum) + top - logits[label];
}

Values cross_entropy_gradient(Values const& logits, int label) {
  double const top = *std::max_element(logits.begin(), logits.end());
  double sum       = 0;
  Values gradient(logits.size());
  for (std::size_t j = 0; j < logits.size(); ++j) sum += gradient[j] = std::exp(logits[j] - top);
  for (double& g : gradient) g /= sum;
  gradient[label] -= 1.0;
  return gradient;
}

Values ReferenceNetwork::tensor(int index, Values const& parameters) const {
  if (index < 0) return {};
  Tensor const& tensor = m_network.tensors[index];
  auto const begin     = parameters.begin() + tensor.offset;
  return {begin, begin + tensor.count};
}

std::vector<Values> ReferenceNetwork::activations(Values const& image, Values const& parameters) const {
  std::vector<Values> result{image};
  for (Layer const& layer : m_network.layers)
    result.push_back(
        layer_forward(layer, result.back(), tensor(layer.weight, parameters), tensor(layer.bias, parameters)));
  return result;
}

Values ReferenceNetwork::logits(Values const& image, Values const& parameters) const {
  return activations(image, parameters).back();
}

double ReferenceNetwork::loss(Values const& image, int label, Values const& parameters) const {
  return cross_entropy(logits(image, parameters), label);
}

double ReferenceNetwork::add_gradient(Values const& image, int label, Values const& parameters,
                                      Values& gradient) const {
  std::vector<Values> const values = activations(image, parameters);
  Values back                      = cross_entropy_gradient(values.back(), label);
  for (std::size_t l = m_network.layers.size(); l-- > 0;) {
    Layer const& layer = m_network.layers[l];
    LayerGradients of  = layer_backward(layer, values[l], tensor(layer.weight, parameters), back);
    add(layer.weight, of.weight, gradient);
    add(layer.bias, of.bias, gradient);
    back = std::move(of.input);
  }
  return cross_entropy(values.back(), label);
}

void ReferenceNetwork::add_magnitude(Values const& image, int label, Values const& parameters,
                                     Values& magnitude) const {
  std::vector<Values> const values = activations(image, parameters);
  std::vector<Values> sizes{absolute(image)};
  for (std::size_t l = 0; l < m_network.layers.size(); ++l) {
    Layer const& layer = m_network.layers[l];
    if (layer.weight >= 0)
      sizes.push_back(layer_forward(layer, absolute(values[l]), absolute(tensor(layer.weight, parameters)),
                                    absolute(tensor(layer.bias, parameters))));
    else if (layer.kind == LayerKind::relu)
      sizes.push_back(layer_backward(layer, values[l], {}, sizes[l]).input);  // passes what relu passes
    else
      sizes.push_back(layer_forward(layer, sizes[l], {}, {}));
  }
  Values back = absolute(cross_entropy_gradient(values.back(), label));
  for (std::size_t l = m_network.layers.size(); l-- > 0;) {
    Layer const& layer = m_network.layers[l];
    Values const input = layer.kind == LayerKind::relu ? values[l] : sizes[l];
    LayerGradients of  = layer_backward(layer, input, absolute(tensor(layer.weight, parameters)), back);
    add(layer.weight, of.weight, magnitude);
    add(layer.bias, of.bias, magnitude);
    back = std::move(of.input);
  }
}

void ReferenceNetwork::add(int index, Values const& from, Values& to) const {
  if (index < 0) return;
  for (std::size_t i = 0; i < from.size(); ++i)
    to[std::size_t(m_network.tensors[std::size_t(index)].offset) + i] += from[i];
}

int ReferenceNetwork::prediction(Values const& image, Values const& parameters) const {
  Values const z = logits(image, parameters);
  return int(std::max_element(z.begin(), z.end()) - z.begin());
}

double ReferenceNetwork::kink_distance(Values const& image, Values const& parameters) const {
  std::vector<Values> const values = activations(image, parameters);
  double result                    = 1;
  for (std::size_t l = 0; l < m_network.layers.size(); ++l) {
    if (m_network.layers[l].kind != LayerKind::relu) continue;
    double const scale = largest(values[l]);
    for (double const value : values[l]) result = std::min(result, scale > 0 ? std::abs(value) / scale : 0.0);
  }
  return result;
}

Values image_values(std::vector<std::uint8_t> const& images, std::int64_t pixels_per_image, std::int64_t index) {
  Values result(pixels_per_image);
  for (std::int64_t i = 0; i < pixels_per_image; ++i) result[i] = pixel_value(images[index * pixels_per_image + i]);
  return result;
}

}  // namespace lockstep::verify
