// SPDX-License-Identifier: Apache-2.0
// The reference is checked without the kernels: by hand-made numbers, and its backward functions by central differences
// of its forward functions.
#include <gtest/gtest.h>

#include <cmath>

#include "verify/cases.hpp"
#include "verify/gradient_check.hpp"
#include "verify/reference.hpp"

namespace lockstep::verify {
namespace {

Layer convolution(Shape input, int channels, int kernel) {
  return {LayerKind::conv2d, input, {channels, input.height - kernel + 1, input.width - kernel + 1}, kernel};
}
Layer pooling(Shape input, int window) {
  return {LayerKind::average_pool2d, input, {input.channels, input.height / window, input.width / window}, window};
}
Layer rectifier(Shape input) {
  return {LayerKind::relu, input, input};
}
Layer dense(Shape input, int units) {
  return {LayerKind::dense, input, {units, 1, 1}};
}

TEST(Reference, ConvolutionIsACrossCorrelation) {
  // Input 1..9 in rows, kernel with one weight off the diagonal: a flipped kernel would pick 4, 5, 7, 8.
  Values const out = layer_forward(convolution({1, 3, 3}, 1, 2), {1, 2, 3, 4, 5, 6, 7, 8, 9}, {0, 1, 0, 0}, {10});
  EXPECT_EQ(out, (Values{12, 13, 15, 16}));
}

TEST(Reference, ConvolutionSumsChannelsInTheStatedWeightOrder) {
  // Weights [out 2][in 2][1][1].
  Values const out = layer_forward(convolution({2, 1, 2}, 2, 1), {1, 2, 10, 20}, {1, 2, 3, 4}, {0, 100});
  EXPECT_EQ(out, (Values{21, 42, 143, 186}));
}

TEST(Reference, PoolingDropsTheRest) {
  Values const out = layer_forward(pooling({1, 3, 5}, 2), {1, 2, 3, 4, 9, 5, 6, 7, 8, 9, 9, 9, 9, 9, 9}, {}, {});
  EXPECT_EQ(out, (Values{3.5, 5.5}));
  LayerGradients const back = layer_backward(pooling({1, 3, 5}, 2), Values(15, 1.0), {}, {4, 8});
  EXPECT_EQ(back.input, (Values{1, 1, 2, 2, 0, 1, 1, 2, 2, 0, 0, 0, 0, 0, 0}));
}

TEST(Reference, DenseWeightsAreInByOut) {
  EXPECT_EQ(layer_forward(dense({1, 1, 2}, 3), {1, 10}, {1, 2, 3, 4, 5, 6}, {0, 0, 100}), (Values{41, 52, 163}));
}

TEST(Reference, ReluHasNoGradientAtZero) {
  EXPECT_EQ(layer_forward(rectifier({1, 1, 3}), {-1, 0, 2}, {}, {}), (Values{0, 0, 2}));
  EXPECT_EQ(layer_backward(rectifier({1, 1, 3}), {-1, 0, 2}, {}, {5, 5, 5}).input, (Values{0, 0, 5}));
}

TEST(Reference, CrossEntropyOfEqualLogitsIsTheLogOfTheirNumber) {
  EXPECT_NEAR(cross_entropy(Values(10, 0.0), 3), std::log(10.0), 1e-15);
  EXPECT_NEAR(cross_entropy({1000, 0}, 1), 1000, 1e-12);  // no overflow
  Values const gradient = cross_entropy_gradient(Values(4, -7.0), 2);
  EXPECT_NEAR(gradient[0], 0.25, 1e-15);
  EXPECT_NEAR(gradient[2], -0.75, 1e-15);
}

TEST(Reference, CentralDifferencesOfEveryLayerAtOddSizes) {
  for (Layer const& layer : odd_layers()) {
    GradientError const error = check_reference_layer(layer, 1);
    EXPECT_GE(error.index, 0) << describe(layer);
    EXPECT_LE(error.worst, 1e-10) << describe(layer) << ", index " << error.index << ": " << error.analytic
                                  << " against " << error.numeric;
  }
}

TEST(Reference, CentralDifferencesOfAWholeNetwork) {
  ReferenceNetwork const reference(small_network());
  Values const parameters = start_values(reference.network(), 3);
  Values image;
  for (std::uint64_t seed = 1; image.empty() || reference.kink_distance(image, parameters) < 1e-4; ++seed)
    image = random_values(seed, reference.network().input.size(), 0, 1);
  Values gradient(parameters.size(), 0.0);
  EXPECT_EQ(reference.add_gradient(image, 3, parameters, gradient), reference.loss(image, 3, parameters));
  auto const loss           = [&](Values const& p) { return reference.loss(image, 3, p); };
  GradientError const error = central_differences(loss, parameters, gradient, 1e-6);
  EXPECT_LE(error.worst, 1e-7) << error.index;

  // A second image adds to the gradient; magnitudes bound it.
  Values twice = gradient, magnitude(parameters.size(), 0.0);
  reference.add_gradient(image, 3, parameters, twice);
  reference.add_magnitude(image, 3, parameters, magnitude);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    EXPECT_DOUBLE_EQ(twice[i], 2 * gradient[i]);
    EXPECT_LE(std::abs(gradient[i]), magnitude[i] * (1 + 1e-12));
  }
}

TEST(Reference, CentralDifferencesOfTheLoss) {
  Values const logits = random_values(5, 7, -3, 3);
  for (int label = 0; label < 7; ++label) {
    GradientError const error = central_differences([&](Values const& z) { return cross_entropy(z, label); }, logits,
                                                    cross_entropy_gradient(logits, label), 1e-5);
    EXPECT_LE(error.worst, 1e-9) << label;
  }
}

TEST(CentralDifferences, SeeAWrongGradient) {
  auto const square = [](Values const& x) { return x[0] * x[0] + 3 * x[1]; };
  EXPECT_LE(central_differences(square, {2, 1}, {4, 3}, 1e-4).worst, 1e-9);
  GradientError const error = central_differences(square, {2, 1}, {4, 3.01}, 1e-4);
  EXPECT_NEAR(error.worst, 0.01 / 4, 1e-8);
  EXPECT_EQ(error.index, 1);
  EXPECT_TRUE(std::isnan(central_differences(square, {2, 1}, {4, NAN}, 1e-4).worst));
  EXPECT_GT(central_differences(square, {2, 1}, {0, 0}, 1e-4).worst, 1);
}

}  // namespace
}  // namespace lockstep::verify
