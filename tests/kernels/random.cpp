// SPDX-License-Identifier: Apache-2.0
#include "kernels/random.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "kernels/error.hpp"

using namespace lockstep;

namespace {

void expect_block(Philox4 counter, std::uint32_t key0, std::uint32_t key1, Philox4 expected) {
  Philox4 const found = philox4x32(counter, key0, key1);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(found.words[i], expected.words[i]) << "word " << i;
}

// Known answers published with the generator (Random123, kat_vectors).
TEST(Philox, KnownAnswers) {
  expect_block({{0, 0, 0, 0}}, 0, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  expect_block({{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}}, 0xffffffff, 0xffffffff,
               {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  expect_block({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0,
               {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST(RandomStream, DependsOnEachOfItsArguments) {
  auto const first = [](std::uint64_t seed, RandomPurpose purpose, std::uint64_t stream) {
    return RandomStream(seed, purpose, stream).next();
  };
  auto const reference     = first(1, RandomPurpose::normal, 2);
  std::uint64_t const high = std::uint64_t(1) << 32;
  EXPECT_EQ(first(1, RandomPurpose::normal, 2), reference);
  EXPECT_NE(first(2, RandomPurpose::normal, 2), reference);
  EXPECT_NE(first(1 + high, RandomPurpose::normal, 2), reference);
  EXPECT_NE(first(1, RandomPurpose::image, 2), reference);
  EXPECT_NE(first(1, RandomPurpose::normal, 3), reference);
  EXPECT_NE(first(1, RandomPurpose::normal, 2 + high), reference);
}

TEST(RandomStream, ReadsBlocksInOrder) {
  RandomStream words(7, RandomPurpose::image, 9), blocks(7, RandomPurpose::image, 9);
  for (int block = 0; block < 3; ++block) {
    Philox4 const expected = blocks.next_block();
    for (int i = 0; i < 4; ++i) EXPECT_EQ(words.next(), expected.words[i]);
  }
}

// 3 * 2^30 does not divide 2^32: without rejection every third value would come twice as often.
TEST(RandomStream, BoundedIntegersAreUniform) {
  RandomStream random(5, RandomPurpose::image, 0);
  std::uint32_t const n = 3u << 30;
  int thirds[3]         = {};
  for (int i = 0; i < 30000; ++i) ++thirds[random.below(n) % 3];
  for (int count : thirds) EXPECT_NEAR(count, 10000, 5 * std::sqrt(30000 * 2.0 / 9));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(random.below(1), 0u);
  int low = 0, high = 0;
  for (int i = 0; i < 1000; ++i) {
    int const value = random.between(-2, 2);
    ASSERT_TRUE(value >= -2 && value <= 2);
    low += value == -2;
    high += value == 2;
  }
  EXPECT_GT(low, 0);
  EXPECT_GT(high, 0);
}

TEST(NormalValues, MomentsAndTails) {
  std::int64_t const n = 1000001;  // odd: values come in pairs
  auto const values    = normal_values(3, 4, n, 0.01);
  ASSERT_EQ(std::int64_t(values.size()), n);
  double sum = 0, squares = 0, fourth = 0;
  int within1 = 0, beyond3 = 0;
  for (float value : values) {
    double const x = value / 0.01;
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
    within1 += std::abs(x) < 1;
    beyond3 += std::abs(x) > 3;
  }
  // Five standard errors each.
  EXPECT_NEAR(sum / n, 0, 5e-3);
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2.0 / n));
  EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96.0 / n));
  EXPECT_NEAR(within1 / double(n), 0.6826895, 5 * std::sqrt(0.6827 * 0.3173 / n));
  EXPECT_NEAR(beyond3 / double(n), 0.0026998, 5 * std::sqrt(0.0027 / n));
}

TEST(NormalValues, ShorterRequestsArePrefixes) {
  auto const many = normal_values(1, 2, 1000, 1.0);
  auto const few  = normal_values(1, 2, 7, 1.0);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin()));
  EXPECT_NE(normal_values(2, 2, 1, 1.0), normal_values(1, 2, 1, 1.0));
  EXPECT_NE(normal_values(1, 3, 1, 1.0), normal_values(1, 2, 1, 1.0));
  EXPECT_TRUE(normal_values(1, 2, 0, 1.0).empty());
}

// Start weights must not change between machines or versions.
TEST(NormalValues, PinnedBits) {
  EXPECT_THAT(normal_values(1, 0, 4, 1.0),
              testing::ElementsAre(-0x1.7530b2p-2f, -0x1.7a22f4p-3f, -0x1.d48edcp-3f, -0x1.f0fbeap-4f));
}

TEST(NormalValues, PinnedSumOfManyBits) {
  std::uint64_t sum = 0;
  for (float value : normal_values(1, 0, 100000, 0.01)) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    sum = 31 * sum + bits;
  }
  EXPECT_EQ(sum, 12691824642026986574u);
}

TEST(Permutation, IsOne) {
  for (std::int64_t n : {0, 1, 2, 3, 257, 60000}) {
    auto order = permutation(n, 1, 0);
    ASSERT_EQ(std::int64_t(order.size()), n);
    std::sort(order.begin(), order.end());
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(order[std::size_t(i)], i);
  }
}

TEST(Permutation, DependsOnSeedAndEpochAlone) {
  EXPECT_EQ(permutation(1000, 1, 2), permutation(1000, 1, 2));
  EXPECT_NE(permutation(1000, 1, 2), permutation(1000, 1, 3));
  EXPECT_NE(permutation(1000, 1, 2), permutation(1000, 2, 2));
}

TEST(Permutation, EveryOrderIsEquallyLikely) {
  std::map<std::vector<std::int32_t>, int> counts;
  int const draws = 24000;
  for (int i = 0; i < draws; ++i) ++counts[permutation(4, 1, std::uint64_t(i))];
  ASSERT_EQ(counts.size(), 24u);
  for (auto const& [order, count] : counts) EXPECT_NEAR(count, 1000, 5 * std::sqrt(1000.0));
}

TEST(Permutation, RefusesWhatDoesNotFit) {
  EXPECT_THROW(permutation(-1, 1, 0), Error);
  EXPECT_THROW(permutation(std::int64_t(1) << 31, 1, 0), Error);
}

}  // namespace
