// SPDX-License-Identifier: Apache-2.0
#include "miniapp/shards.hpp"

#include <algorithm>

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
  auto const start = [&](std::int64_t d) {
    return d * (shards / devices) + std::min<std::int64_t>(d, shards % devices);
  };
  return {start(device), start(device + 1)};
}

Interval ShardPlan::images_of_device(int device, int devices) const {
  Interval const run = shards_of(device, devices);
  return {std::min(images, run.begin * shard_size), std::min(images, run.end * shard_size)};
}

}  // namespace lockstep
