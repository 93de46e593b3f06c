// SPDX-License-Identifier: Apache-2.0
#include "miniapp/shards.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/types.hpp"

namespace lockstep {
namespace {

std::vector<std::int64_t> batch_sizes() {
  std::vector<std::int64_t> sizes;
  for (std::int64_t n = 0; n <= 1100; ++n) sizes.push_back(n);
  for (std::int64_t const n : {2047, 2048, 2049, 16384, 59999, 60000, 1000003}) sizes.push_back(n);
  return sizes;
}

TEST(Shards, CoverEveryImageOnceInOrder) {
  for (std::int64_t n : batch_sizes()) {
    auto const plan      = ShardPlan::for_batch(n);
    std::int64_t reached = 0;
    for (std::int64_t shard = 0; shard < plan.shards; ++shard) {
      ASSERT_EQ(plan.images_of(shard).begin, reached) << n;
      ASSERT_GT(plan.images_of(shard).size(), 0) << n;
      reached = plan.images_of(shard).end;
    }
    ASSERT_EQ(reached, n);
  }
}

TEST(Shards, AreAtLeastMinNAnd16AndAtMost33) {
  for (std::int64_t n : batch_sizes()) {
    auto const plan = ShardPlan::for_batch(n);
    ASSERT_GE(plan.shards, std::min<std::int64_t>(n, 16)) << n;
    ASSERT_LE(plan.shards, 33) << n;
  }
}

TEST(Shards, FitBlocks) {
  for (std::int64_t n : batch_sizes()) {
    auto const size = ShardPlan::for_batch(n).shard_size;
    ASSERT_TRUE(size % lanes == 0 || lanes % size == 0) << n << " images in shards of " << size;
  }
}

TEST(Shards, GoToDevicesInContiguousBalancedRuns) {
  for (std::int64_t n : {0, 1, 3, 5, 9, 16, 31, 36, 96, 256, 257, 60000})
    for (int devices = 1; devices <= 40; ++devices) {
      auto const plan      = ShardPlan::for_batch(n);
      std::int64_t reached = 0, images = 0, least = plan.shards, most = 0;
      for (int device = 0; device < devices; ++device) {
        auto const run = plan.shards_of(device, devices);
        ASSERT_EQ(run.begin, reached);
        reached = run.end;
        least   = std::min(least, run.size());
        most    = std::max(most, run.size());
        images += plan.images_of_device(device, devices).size();
      }
      ASSERT_EQ(reached, plan.shards);
      ASSERT_EQ(images, n);
      ASSERT_LE(most - least, 1) << n << " images on " << devices << " devices";
      // 36 samples on 7 devices, 9 on 4: none may idle.
      if (n >= devices && devices <= 16) {
        ASSERT_GE(least, 1) << n << " images on " << devices << " devices";
      }
    }
}

std::vector<std::int64_t> split(std::int64_t images, std::vector<double> const& speeds) {
  auto const plan      = ShardPlan::for_batch(images);
  std::int64_t reached = 0;
  std::vector<std::int64_t> counts;
  for (int device = 0; device < int(speeds.size()); ++device) {
    auto const run = plan.shards_of(device, speeds);
    EXPECT_EQ(run.begin, reached);
    reached = run.end;
    counts.push_back(run.size());
  }
  EXPECT_EQ(reached, plan.shards);
  return counts;
}

TEST(Shards, FollowTheDevicesSpeeds) {
  using Counts = std::vector<std::int64_t>;
  EXPECT_EQ(split(256, {3, 1}), Counts({12, 4}));  // of 16 shards
  EXPECT_EQ(split(256, {1, 3}), Counts({4, 12}));
  EXPECT_EQ(split(256, {1, 1, 0}), Counts({8, 8, 0}));
  EXPECT_EQ(split(256, {100, 1}), Counts({16, 0}));
  EXPECT_EQ(split(256, {5, 1}), Counts({14, 2}));  // ends after 2.8, 13 and 3 after 3
  EXPECT_EQ(split(0, {5, 1}), Counts({0, 0}));
}

TEST(Shards, EqualSpeedsAreEqualDevices) {
  for (std::int64_t n : {0, 1, 9, 16, 257, 60000})
    for (int devices = 1; devices <= 40; ++devices)
      for (int device = 0; device < devices; ++device) {
        auto const plan     = ShardPlan::for_batch(n);
        auto const weighted = plan.shards_of(device, std::vector<double>(std::size_t(devices), 0.3));
        ASSERT_EQ(weighted.begin, plan.shards_of(device, devices).begin);
        ASSERT_EQ(weighted.end, plan.shards_of(device, devices).end);
      }
}

TEST(Shards, NoOtherSplitEndsSooner) {
  std::vector<double> const speeds = {1, 2.5, 0.7};
  for (std::int64_t n : {1, 16, 100, 256, 512}) {
    auto const counts = split(n, speeds);
    auto const end    = [&](std::vector<std::int64_t> const& c) {
      double last = 0;
      for (std::size_t d = 0; d < 3; ++d) last = std::max(last, double(c[d]) / speeds[d]);
      return last;
    };
    std::int64_t const shards = ShardPlan::for_batch(n).shards;
    for (std::int64_t a = 0; a <= shards; ++a)
      for (std::int64_t b = 0; a + b <= shards; ++b) EXPECT_LE(end(counts), end({a, b, shards - a - b})) << n;
  }
}

}  // namespace
}  // namespace lockstep
