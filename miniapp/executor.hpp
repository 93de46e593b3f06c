// SPDX-License-Identifier: Apache-2.0
// Runs a network on one device: gradients of whole shards, or counts of correct predictions. Owns the work space; no
// allocation after construction for the sizes given there.
#pragma once
#include "kernels/types.hpp"
#include "miniapp/network.hpp"
#include "miniapp/shards.hpp"

#include <memory>
#include <vector>

namespace lockstep {

// A data set in a device's memory: images [count][height * width] bytes, 0..255, and labels [count].
struct DeviceDataset {
  Buffer<std::uint8_t> images;
  Buffer<std::uint8_t> labels;
  std::int64_t count = 0;
};

// What computes convolutions and dense layers: this project's kernels, or Kokkos Kernels' matrix products over im2col
// (on host back ends only).
enum class Conv { direct, gemm };

// Backward in segments, so that the last layers' gradients are complete while the first layers' are still to come.
struct Segments {
  // By segment, the first of the network's layers that it goes back through; falling. Of the last segment: 0.
  std::vector<int> first_layers;
  // Blocks whose activations can be kept from one segment to the next: the largest blocks_of() that will be asked for.
  std::int64_t blocks = 0;
};
// Small shards share a block.
inline int shards_per_unit(ShardPlan const& plan) {
  return plan.shard_size < lanes ? int(lanes / plan.shard_size) : 1;
}
// Of a run of so many shards.
inline std::int64_t blocks_of(ShardPlan const& plan, std::int64_t shards) {
  int const in_unit = shards_per_unit(plan);
  return (shards + in_unit - 1) / in_unit * blocks_for(plan.shard_size * in_unit);
}

class Executor {
 public:
  // Segments take memory for the activations and one gradient of an activation of each of their blocks. On accelerators
  // and by gemm there are none: Error (usage).
  Executor(Space const& space, Network const& network, Conv conv = Conv::direct, Segments const& segments = {});
  ~Executor();
  Executor(Executor&&) noexcept;
  Executor& operator=(Executor&&) noexcept;

  // For each shard s in `run` (shards of `plan`), writes row s - run.begin of shard_gradients: the `parameters`
  // gradients of the shard's summed loss, then the summed loss itself. shard_gradients is [>= run.size()][parameters +
  // 1], row-major flat. Image i of the minibatch is data set image order(first + i). A row's bits depend on the shard's
  // images alone. With a segment's number, it does a part of that: segment 0 goes forward and back to its first layer,
  // and leaves the loss; all segments, called in order with the same arguments, do the whole. A segment's call writes
  // the entries of its own layers.
  static constexpr int whole = -1;
  void gradients(Space const& space, DeviceDataset const& data, Buffer<const std::int32_t> const& order,
                 std::int64_t first, ShardPlan const& plan, Interval run, Buffer<const float> const& parameters,
                 Buffer<float> const& shard_gradients, int segment = whole);

  // Adds the number of images in data set range [images.begin, images.end) whose largest logit (first on ties) is at
  // the label to correct(0).
  void count_correct(Space const& space, DeviceDataset const& data, Interval images,
                     Buffer<const float> const& parameters, Buffer<std::int64_t> const& correct);

  // Logits [images][classes] of a data set range, for comparison with other programs.
  void logits(Space const& space, DeviceDataset const& data, Interval images, Buffer<const float> const& parameters,
              Buffer<float> const& out);

 private:
  struct Impl;
  std::unique_ptr<Impl> m_impl;
};

}  // namespace lockstep
