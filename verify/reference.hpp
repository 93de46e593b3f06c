// SPDX-License-Identifier: Apache-2.0
// A float64 network in plain loops, one image at a time: what the kernels are compared with. It shares the description
// of a network (miniapp/network.hpp) with the program and no arithmetic. Values of an image are [channel][row][column].
#pragma once
#include "miniapp/network.hpp"
#include "verify/values.hpp"

#include <cstdint>

namespace lockstep::verify {

// One layer, one image. Layers without parameters take empty weight and bias.
//   conv2d   out[o][y][x] = b[o] + sum_{c,i,j} w[o][c][i][j] in[c][y + i][x + j]
//   relu     out = in where in > 0, else 0; its derivative at 0 is 0
//   average  out[c][y][x] = mean of the window; rows and columns beyond the last whole window are not read
//   dense    out[o] = b[o] + sum_i in[i] w[i][o]
// All but relu are linear in the input and in the parameters, so that the same functions, given absolute values, return
// the sums of magnitudes that rounding-error bounds need.
Values layer_forward(Layer const& layer, Values const& input, Values const& weight, Values const& bias);

struct LayerGradients {
  Values input, weight, bias;
};
LayerGradients layer_backward(Layer const& layer, Values const& input, Values const& weight,
                              Values const& output_gradient);

// Softmax cross-entropy: log(sum_j exp(z[j])) - z[label], and its gradient softmax(z) - onehot(label).
double cross_entropy(Values const& logits, int label);
Values cross_entropy_gradient(Values const& logits, int label);

class ReferenceNetwork {
 public:
  explicit ReferenceNetwork(Network network) : m_network(std::move(network)) {}
  Network const& network() const { return m_network; }

  // parameters: the network's tensors in one flat row.
  Values logits(Values const& image, Values const& parameters) const;
  double loss(Values const& image, int label, Values const& parameters) const;
  // Adds the gradient of the image's loss to `gradient`, returns the loss.
  double add_gradient(Values const& image, int label, Values const& parameters, Values& gradient) const;
  // Adds what add_gradient adds, with absolute values in its sums: in those of the way back through all layers, and for
  // each activation in the sum that it is. Rounding errors are relative to these, also where terms cancel.
  void add_magnitude(Values const& image, int label, Values const& parameters, Values& magnitude) const;
  // Index of the largest logit, the first on ties.
  int prediction(Values const& image, Values const& parameters) const;
  // The smallest |input| of any relu, relative to the largest of its layer: how far the image is from a kink, where
  // float32 and float64 may take different sides. 1 for a network without relu.
  double kink_distance(Values const& image, Values const& parameters) const;

 private:
  std::vector<Values> activations(Values const& image, Values const& parameters) const;
  Values tensor(int index, Values const& parameters) const;
  void add(int index, Values const& from, Values& to) const;

  Network m_network;
};

// A pixel as the network sees it.
inline double pixel_value(std::uint8_t pixel) {
  return double(pixel) / 255.0;
}
Values image_values(std::vector<std::uint8_t> const& images, std::int64_t pixels_per_image, std::int64_t index);

}  // namespace lockstep::verify
