// SPDX-License-Identifier: Apache-2.0
// What the executors check of their arguments.
#pragma once
#include "kernels/error.hpp"
#include "miniapp/executor.hpp"
#include "miniapp/executor/plan.hpp"

namespace lockstep {

inline void check_images(Plan const& plan, DeviceDataset const& data, Interval images) {
  LOCKSTEP_THROW_IF(std::int64_t(data.images.extent(0)) < data.count * plan.full_input.size() ||
                        std::int64_t(data.labels.extent(0)) < data.count,
                    ExitCode::usage,
                    "executor: a data set of " + std::to_string(data.count) + " images has " +
                        std::to_string(data.images.extent(0)) + " bytes and " + std::to_string(data.labels.extent(0)) +
                        " labels; expected " + std::to_string(plan.full_input.size()) + " bytes an image");
  LOCKSTEP_THROW_IF(images.begin < 0 || images.end > data.count || images.size() < 0, ExitCode::wrong_result,
                    "executor: images " + std::to_string(images.begin) + ".." + std::to_string(images.end) +
                        " of a data set of " + std::to_string(data.count));
}

inline void check_parameters(Plan const& plan, Buffer<const float> const& parameters) {
  LOCKSTEP_THROW_IF(
      std::int64_t(parameters.extent(0)) < plan.parameters, ExitCode::wrong_result,
      "executor: " + std::to_string(parameters.extent(0)) + " parameters; expected " + std::to_string(plan.parameters));
}

inline void check_gradients(Plan const& plan, Buffer<const std::int32_t> const& order, std::int64_t first,
                            ShardPlan const& shards, Interval run, Buffer<const float> const& parameters,
                            Buffer<float> const& shard_gradients) {
  check_parameters(plan, parameters);
  std::int64_t const stride = plan.parameters + 1;
  LOCKSTEP_THROW_IF(run.begin < 0 || run.end > shards.shards || run.size() < 0, ExitCode::wrong_result,
                    "executor: shards " + std::to_string(run.begin) + ".." + std::to_string(run.end) + " of " +
                        std::to_string(shards.shards));
  LOCKSTEP_THROW_IF(std::int64_t(shard_gradients.extent(0)) < run.size() * stride, ExitCode::wrong_result,
                    "executor: " + std::to_string(shard_gradients.extent(0)) + " values for the gradients of " +
                        std::to_string(run.size()) + " shards; expected " + std::to_string(run.size() * stride));
  LOCKSTEP_THROW_IF(first < 0 || first + shards.images > std::int64_t(order.extent(0)), ExitCode::wrong_result,
                    "executor: minibatch " + std::to_string(first) + ".." + std::to_string(first + shards.images) +
                        " of an order of " + std::to_string(order.extent(0)));
}

inline void check_logits(Plan const& plan, Interval images, Buffer<float> const& out) {
  LOCKSTEP_THROW_IF(std::int64_t(out.extent(0)) < images.size() * plan.classes, ExitCode::wrong_result,
                    "executor: " + std::to_string(out.extent(0)) + " values for the logits of " +
                        std::to_string(images.size()) + " images; expected " +
                        std::to_string(images.size() * plan.classes));
}

}  // namespace lockstep
