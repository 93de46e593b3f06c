// SPDX-License-Identifier: Apache-2.0
// How a minibatch is cut: into shards by its size alone, then whole shards to devices.
#pragma once
#include <cstdint>
#include <vector>

namespace lockstep {

struct Interval {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

// A shard is a fixed group of consecutive images of the global minibatch. Its size depends on the minibatch's size n
// only, never on the number of devices: a power of two below `lanes` (several shards then share a block) or a multiple
// of `lanes` (a shard is then a run of blocks). There are at least min(n, 16) shards and at most 33, so that per-shard
// gradients need a constant amount of memory.
struct ShardPlan {
  std::int64_t images     = 0;  // n
  std::int64_t shard_size = 1;  // the last shard may be shorter
  std::int64_t shards     = 0;

  static ShardPlan for_batch(std::int64_t images);

  Interval images_of(std::int64_t shard) const;
  // Contiguous run of shards of one of `devices` devices; counts differ by at most one; may be empty.
  Interval shards_of(int device, int devices) const;
  // The same for devices of unequal speeds, any unit: as many shards as make the last device end soonest; of equally
  // good devices the first. Speed 0: no shards. Equal speeds give the run above.
  Interval shards_of(int device, std::vector<double> const& speeds) const;
  // The images of the run that equal devices get.
  Interval images_of_device(int device, int devices) const;
};

}  // namespace lockstep
