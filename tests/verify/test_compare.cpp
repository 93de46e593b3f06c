// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "verify/compare.hpp"

namespace lockstep::verify {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan      = std::numeric_limits<float>::quiet_NaN();

Network two_tensors() {
  Network network;
  network.tensors    = {{"W1", {2, 2}, 0, 4}, {"b1", {2}, 4, 2}};
  network.parameters = 6;
  return network;
}

TEST(UlpDistance, CountsTheValuesBetween) {
  EXPECT_EQ(ulp_distance(1.0f, 1.0f), 0);
  EXPECT_EQ(ulp_distance(1.0f, std::nextafter(1.0f, 2.0f)), 1);
  EXPECT_EQ(ulp_distance(std::nextafter(1.0f, 0.0f), std::nextafter(1.0f, 2.0f)), 2);
  EXPECT_EQ(ulp_distance(1.0f, 2.0f), 1 << 23);
  EXPECT_EQ(ulp_distance(-1.0f, -2.0f), 1 << 23);
  EXPECT_EQ(ulp_distance(0.0f, -0.0f), 1);
  float const tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(ulp_distance(tiny, -tiny), 3);
  EXPECT_EQ(ulp_distance(std::numeric_limits<float>::max(), infinity), 1);
  EXPECT_EQ(ulp_distance(-infinity, infinity), 2 * std::int64_t(0x7f800000) + 1);
}

TEST(UlpDistance, NaNIsEqualToItselfOnly) {
  EXPECT_EQ(ulp_distance(nan, nan), 0);
  EXPECT_EQ(ulp_distance(nan, 1.0f), ulp_not_comparable);
  EXPECT_EQ(ulp_distance(1.0f, nan), ulp_not_comparable);
  EXPECT_EQ(ulp_distance(nan, std::copysign(nan, -1.0f)), ulp_not_comparable);
}

TEST(RelativeDifference, IsTheNormOfTheDifferenceOverTheNorm) {
  EXPECT_DOUBLE_EQ(relative_difference({3, 4}, {3, 4}), 0);
  EXPECT_DOUBLE_EQ(relative_difference({3, 5}, {3, 4}), 0.2);
  EXPECT_DOUBLE_EQ(relative_difference({0, 0}, {0, 0}), 0);
  EXPECT_TRUE(std::isinf(relative_difference({1, 0}, {0, 0})));
  EXPECT_TRUE(std::isnan(relative_difference({NAN, 0}, {1, 0})));
  EXPECT_TRUE(std::isnan(relative_difference({1, 0}, {double(infinity), 0})));
  EXPECT_ANY_THROW(relative_difference({1, 0}, {1}));
}

TEST(SumBound, HoldsForSequentialAndPairedSumsAndIsNotFarOff) {
  for (std::int64_t const terms : {1, 2, 17, 1000}) {
    Values const a = random_values(1, terms, -1, 1), b = random_values(2, terms, 0, 1);
    float sum    = 0;
    double exact = 0, magnitude = 0;
    for (std::int64_t i = 0; i < terms; ++i) {
      sum += float(a[i]) * float(b[i]);
      exact += a[i] * b[i];
      magnitude += std::abs(a[i] * b[i]);
    }
    EXPECT_LE(std::abs(sum - exact), sum_bound(terms) * magnitude) << terms;
  }
  EXPECT_NEAR(sum_bound(1000), 1000 * 5.96e-8, 1e-7);
}

TEST(CompareBits, NamesTheFirstTensorAndIndex) {
  Network const network = two_tensors();
  std::vector<float> const expected{1, 2, 3, 4, 5, 6};
  EXPECT_TRUE(compare_bits(network, expected, expected).equal);

  std::vector<float> found = expected;
  found[5]                 = std::nextafter(6.0f, 7.0f);
  Difference difference    = compare_bits(network, found, expected);
  EXPECT_FALSE(difference.equal);
  EXPECT_EQ(difference.tensor, "b1");
  EXPECT_EQ(difference.index, 1);
  EXPECT_EQ(difference.largest_ulps, 1);

  found[2]   = 3.5f;
  difference = compare_bits(network, found, expected);
  EXPECT_EQ(difference.tensor, "W1");
  EXPECT_EQ(difference.index, 2);
  EXPECT_GT(difference.largest_ulps, 1);
  EXPECT_EQ(describe(difference), "W1[2]: 3.5 (0x40600000), expected 3 (0x40400000)");

  found    = expected;
  found[0] = nan;
  EXPECT_EQ(compare_bits(network, found, expected).largest_ulps, ulp_not_comparable);
  EXPECT_ANY_THROW(compare_bits(network, {1, 2}, expected));
}

}  // namespace
}  // namespace lockstep::verify
