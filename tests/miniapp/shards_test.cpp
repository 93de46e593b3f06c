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

}  // namespace
}  // namespace lockstep
