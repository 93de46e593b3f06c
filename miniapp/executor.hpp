// SPDX-License-Identifier: Apache-2.0
// Runs a network on one device: gradients of whole shards, or counts of correct predictions. Owns the work space; no
// allocation after construction for the sizes given there.
#pragma once
#include "kernels/types.hpp"
#include "miniapp/network.hpp"
#include "miniapp/shards.hpp"

#include <memory>

namespace lockstep {

// A data set in a device's memory: images [count][height * width] bytes, 0..255, and labels [count].
struct DeviceDataset {
  Buffer<std::uint8_t> images;
  Buffer<std::uint8_t> labels;
  std::int64_t count = 0;
};

class Executor {
 public:
  Executor(Space const& space, Network const& network);
  ~Executor();
  Executor(Executor&&) noexcept;
  Executor& operator=(Executor&&) noexcept;

  // For each shard s in `run` (shards of `plan`), writes row s - run.begin of shard_gradients: the `parameters`
  // gradients of the shard's summed loss, then the summed loss itself. shard_gradients is [>= run.size()][parameters +
  // 1], row-major flat. Image i of the minibatch is data set image order(first + i). A row's bits depend on the shard's
  // images alone.
  void gradients(Space const& space, DeviceDataset const& data, Buffer<const std::int32_t> const& order,
                 std::int64_t first, ShardPlan const& plan, Interval run, Buffer<const float> const& parameters,
                 Buffer<float> const& shard_gradients);

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
