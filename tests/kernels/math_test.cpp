// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/lane_sum.hpp"
#include "kernels/softmax_cross_entropy.hpp"

namespace lockstep {
namespace {

template <class P, class Function>
std::vector<float> apply(std::vector<float> values, Function const& function) {
  values.resize((values.size() + lanes - 1) / lanes * lanes);
  for (std::size_t i = 0; i < values.size(); i += P::width) function(P::load(&values[i])).store(&values[i]);
  return values;
}

TEST(Math, ExponentialIsWithinItsBoundAndTheSameOnAScalar) {
  std::vector<float> x;
  for (float v = 0.0f; v > -87.0f; v -= 0.00037f) x.push_back(v);
  auto const vector = apply<HostPack>(x, [](auto p) { return exponential(p); });
  auto const scalar = apply<ScalarPack>(x, [](auto p) { return exponential(p); });
  double worst      = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(vector[i], scalar[i]) << x[i];
    worst = std::max(worst, std::abs(vector[i] / std::exp(double(x[i])) - 1.0));
  }
  EXPECT_LT(worst, 1.5e-7);
}

TEST(Math, LogarithmIsWithinItsBoundAndTheSameOnAScalar) {
  std::vector<float> x;
  for (float v = 1.0f; v < 1024.0f; v *= 1.00003f) x.push_back(v);
  auto const vector = apply<HostPack>(x, [](auto p) { return logarithm(p); });
  auto const scalar = apply<ScalarPack>(x, [](auto p) { return logarithm(p); });
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(vector[i], scalar[i]) << x[i];
    double const exact = std::log(double(x[i]));
    ASSERT_NEAR(vector[i], exact, 1.2e-7 * std::max(1.0, exact)) << x[i];
  }
  EXPECT_EQ(vector[0], 0.0f);
}

TEST(Math, NotFiniteArguments) {
  float const inf = std::numeric_limits<float>::infinity();
  std::vector<float> nans(16, std::nanf(""));
  for (unsigned bits : {0x7f800001u, 0x7fffffffu, 0xffc12345u}) std::memcpy(&nans[bits % 16], &bits, 4);
  auto const check = [&](auto pack) {
    using P = decltype(pack);
    for (float y : apply<P>(nans, [](P p) { return exponential(p); })) EXPECT_TRUE(std::isnan(y));
    for (float y : apply<P>(nans, [](P p) { return logarithm(p); })) EXPECT_TRUE(std::isnan(y));
    EXPECT_EQ(apply<P>({-inf}, [](P p) { return exponential(p); })[0], 0.0f);
    EXPECT_EQ(apply<P>({-1e30f}, [](P p) { return exponential(p); })[0], 0.0f);
    EXPECT_TRUE(std::isnan(apply<P>({inf}, [](P p) { return logarithm(p); })[0]));
  };
  check(HostPack());
  check(ScalarPack());
}

TEST(LaneSum, IsTheSameTreeForEveryGroupAndWidth) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  int const count = 37;
  std::vector<float> sums(lane_sums_pitch(count) * lanes);
  for (auto& s : sums) s = normal(random);
  for (int group : {1, 2, 4, 8, 16}) {
    int const shards = lanes / group;
    std::vector<float> fast(shards * 50, 5.0f), slow(shards * 50, 5.0f);
    GradientRows rows{fast.data(), 50, group, shards, false};
    for (bool add : {false, true}) {
      rows.add   = add;
      rows.first = fast.data();
      add_lane_sums<HostPack>(rows, sums.data(), count, 3);
      rows.first = slow.data();
      add_lane_sums<ScalarPack>(rows, sums.data(), count, 3);
      EXPECT_EQ(fast, slow) << group;
    }
    float const* s = sums.data() + 9 * lanes;
    if (group == 4) {
      EXPECT_EQ(fast[2 * 50 + 3 + 9], 2.0f * ((s[8] + s[9]) + (s[10] + s[11])));
    }
    EXPECT_EQ(fast[2], 5.0f);
    EXPECT_EQ(fast[3 + count], 5.0f);
  }
}

TEST(SoftmaxCrossEntropy, IsStableAndHidesNoNaN) {
  float const nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  int const classes = 5;
  std::vector<float> logits(classes * lanes, 0.0f), gradient(classes * lanes), losses(lanes, 9.0f);
  int labels[lanes] = {};
  for (int lane = 0; lane < lanes; ++lane) labels[lane] = lane % classes;
  for (int c = 0; c < classes; ++c) logits[c * lanes + 1] = 30000.0f * float(c);  // label 1
  logits[2 * lanes + 2] = nan;
  logits[0 * lanes + 3] = nan;
  logits[4 * lanes + 4] = inf;
  softmax_cross_entropy<HostPack>(classes, logits.data(), labels, 11, losses.data(), gradient.data());
  EXPECT_NEAR(losses[0], std::log(5.0), 2e-7);
  EXPECT_EQ(losses[1], 90000.0f);
  EXPECT_EQ(gradient[1 * lanes + 1], -1.0f);
  EXPECT_EQ(gradient[4 * lanes + 1], 1.0f);
  for (int lane : {2, 3, 4}) EXPECT_TRUE(std::isnan(losses[lane])) << lane;
  for (int lane = 11; lane < lanes; ++lane) {
    EXPECT_EQ(losses[lane], 0.0f);
    for (int c = 0; c < classes; ++c) EXPECT_EQ(gradient[c * lanes + lane], 0.0f);
  }
  EXPECT_FALSE(is_correct(classes, logits.data() + 2, 0));
  EXPECT_TRUE(is_correct(classes, logits.data() + 5, 0));
  EXPECT_FALSE(is_correct(classes, logits.data() + 5, 1));
}

}  // namespace
}  // namespace lockstep
