// SPDX-License-Identifier: Apache-2.0
// The alternative to the direct kernels: convolutions (as im2col) and dense layers by Kokkos Kernels' matrix products,
// one block of images at a time, each call from the host thread. All calls have shapes that the network alone
// determines, never the minibatch, the devices or the threads. Host back ends only.
#pragma once
#include "miniapp/executor/block.hpp"

namespace lockstep {

class GemmPass {
 public:
  GemmPass(Space const& space, Plan const& plan);

  // A block's work space; where the job then points.
  void prepare(BlockRunner::Job& job) const;

  void forward(Space const& space, BlockRunner const& block, BlockRunner::Job const& job, float const* values) const;
  // Forward, loss and backward.
  void gradients(Space const& space, BlockRunner const& block, BlockRunner::Job const& job, float const* values) const;

  // One stage with weights, for a measurement. Its output's gradient is in place; weight gradients need
  // output_gradient() before, data gradients too.
  void forward(Space const& space, Stage const& stage, float const* values) const;
  void output_gradient(Space const& space, Stage const& stage, float* d_out) const;
  void weight_gradient(Space const& space, Stage const& stage, float const* d_out, GradientRows const& rows) const;
  void data_gradient(Space const& space, Stage const& stage, float const* d_out, float const* values,
                     float* d_in) const;

 private:
  Plan m_plan;
  Buffer<float> m_work;      // as a worker's of the direct kernels
  Buffer<float> m_columns;   // [input channel x tap][output position][lane] of the largest convolution
  Buffer<float> m_products;  // [output channel][output position][lane]: y before bias; backward dy
};

}  // namespace lockstep
