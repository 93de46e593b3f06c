// SPDX-License-Identifier: Apache-2.0
#include "miniapp/shards.hpp"

#include <algorithm>
#include <numeric>

#include "comm/schedule.hpp"
#include "kernels/error.hpp"
#include "kernels/types.hpp"

namespace lockstep {

ShardPlan ShardPlan::for_batch(std::int64_t images) {
  LOCKSTEP_THROW_IF(images < 0, ExitCode::usage,
                    "minibatch of " + std::to_string(images) + " images; expected 0 or more");
  ShardPlan plan;
  plan.images = images;
  if (images < 16 * lanes) {
    while (plan.shard_size * 2 * 16 <= images) plan.shard_size *= 2;
  } else {
    plan.shard_size = lanes * ((images + 32 * lanes - 1) / (32 * lanes));
  }
  plan.shards = (images + plan.shard_size - 1) / plan.shard_size;
  return plan;
}

Interval ShardPlan::images_of(std::int64_t shard) const {
  return {std::min(images, shard * shard_size), std::min(images, (shard + 1) * shard_size)};
}

Interval ShardPlan::shards_of(int device, int devices) const {
  auto const range = comm::chunk_range(shards, devices, device);
  return {range.begin, range.end};
}

Interval ShardPlan::shards_of(int device, std::vector<double> const& speeds) const {
  // One shard after the other, each to the device that would be done with it first: no other split ends sooner.
  std::vector<std::int64_t> counts(speeds.size(), 0);
  for (std::int64_t shard = 0; shard < shards; ++shard) {
    std::size_t first = speeds.size();
    for (std::size_t d = 0; d < speeds.size(); ++d)
      if (speeds[d] > 0 &&
          (first == speeds.size() || double(counts[d] + 1) / speeds[d] < double(counts[first] + 1) / speeds[first]))
        first = d;
    LOCKSTEP_THROW_IF(first == speeds.size(), ExitCode::usage, "no device with a speed above 0; expected one");
    ++counts[first];
  }
  std::int64_t const begin = std::accumulate(counts.begin(), counts.begin() + device, std::int64_t(0));
  return {begin, begin + counts[std::size_t(device)]};
}

Interval ShardPlan::images_of_device(int device, int devices) const {
  Interval const run = shards_of(device, devices);
  return {std::min(images, run.begin * shard_size), std::min(images, run.end * shard_size)};
}

}  // namespace lockstep
