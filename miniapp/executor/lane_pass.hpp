// SPDX-License-Identifier: Apache-2.0
// Passes of a network by threads that hold one image each: what an accelerator runs. Breadth first, a launch for each
// phase, over all blocks whose activations fit the work space at once. Same bits as the block bodies. It runs on a host
// as well, slowly, so that it is tested there.
#pragma once
#include <vector>

#include "miniapp/executor.hpp"
#include "miniapp/executor/plan.hpp"

namespace lockstep {

// Images in units: a unit is one block that holds several shards, or one shard that is a run of blocks.
struct LaneUnits {
  std::uint8_t const* images;  // of the data set
  std::uint8_t const* labels;
  std::int32_t const* order;  // image i of the units is data set image order[i], or first + i where null
  std::int64_t first;
  std::int64_t count;             // images
  std::int64_t unit_size;         // images, but for the last unit
  int group           = lanes;    // lanes of a shard
  float* rows         = nullptr;  // gradients [shard][stride]
  std::int64_t stride = 0;

  KOKKOS_FUNCTION std::int64_t units() const { return (count + unit_size - 1) / unit_size; }
  KOKKOS_FUNCTION std::int64_t unit_blocks() const { return (unit_size + lanes - 1) / lanes; }
  KOKKOS_FUNCTION int shards() const { return lanes / group; }  // of a unit, at most
};

// The shards `run` of a minibatch, as Executor::gradients takes them.
LaneUnits lane_units(DeviceDataset const& data, Buffer<const std::int32_t> const& order, std::int64_t first,
                     ShardPlan const& plan, Interval run, std::int64_t stride, Buffer<float> const& rows);

class LanePass {
 public:
  enum class Phase { load, forward, loss, loss_sum, output_gradient, weight_gradient, data_gradient };
  struct Step {
    Phase phase;
    int stage;
  };
  // Units [unit, unit + units) of LaneUnits, of each its blocks [block, block + blocks).
  struct Wave {
    std::int64_t unit = 0, units = 0, block = 0, blocks = 0;
  };

  LanePass(Space const& space, Network const& network);

  Plan const& plan() const { return m_plan; }
  std::vector<Step> const& forward_steps() const { return m_forward; }
  std::vector<Step> const& backward_steps() const { return m_backward; }  // the loss first

  // Calls body(wave) for waves that cover all units and fit the work space.
  template <class Body>
  void for_each_wave(LaneUnits const& units, Body const& body) const {
    std::int64_t const blocks = units.unit_blocks();
    std::int64_t const some = blocks < m_blocks ? m_blocks / blocks : 1, part = blocks < m_blocks ? blocks : m_blocks;
    for (std::int64_t unit = 0; unit < units.units(); unit += some)
      for (std::int64_t block = 0; block < blocks; block += part)
        body(Wave{unit, some < units.units() - unit ? some : units.units() - unit, block,
                  part < blocks - block ? part : blocks - block});
  }

  // One launch; the steps before it have been launched for the same wave.
  void run(Space const& space, Step step, LaneUnits const& units, Wave const& wave, float const* parameters) const;

  void gradients(Space const& space, LaneUnits const& units, float const* parameters) const;
  // Adds the number of right predictions to *correct.
  void count_correct(Space const& space, LaneUnits const& units, float const* parameters, std::int64_t* correct) const;
  // out [image][classes]
  void logits(Space const& space, LaneUnits const& units, float const* parameters, float* out) const;

 private:
  Plan m_plan;
  std::vector<Step> m_forward, m_backward;
  std::int64_t m_blocks, m_dy, m_size;  // blocks at once; floats of a block, of which dy of a convolution from m_dy on
  Buffer<float> m_work;
};

}  // namespace lockstep
