// SPDX-License-Identifier: Apache-2.0
// One block of images through the whole network, by one worker, in its own work space.
#pragma once
#include "kernels/load_images.hpp"
#include "kernels/softmax_cross_entropy.hpp"
#include "miniapp/executor/plan.hpp"

namespace lockstep {

// What a block needs of the plan, as plain data.
struct BlockRunner {
  Stage const* stages = nullptr;  // in device memory
  int stage_count     = 0;
  Shape full_input, input;
  int classes              = 0;
  std::int64_t parameters  = 0;
  std::int64_t gradient[2] = {0, 0};
  std::int64_t dy = 0, conv = 0, transposed = 0, losses = 0;

  std::uint8_t const* images = nullptr;
  std::uint8_t const* labels = nullptr;

  BlockRunner() = default;
  BlockRunner(Plan const& plan, Stage const* device_stages, std::uint8_t const* all_images,
              std::uint8_t const* all_labels)
      : stages(device_stages),
        stage_count(int(plan.stages.size())),
        full_input(plan.full_input),
        input(plan.input),
        classes(plan.classes),
        parameters(plan.parameters),
        gradient{plan.gradient[0], plan.gradient[1]},
        dy(plan.dy),
        conv(plan.conv),
        transposed(plan.transposed),
        losses(plan.losses),
        images(all_images),
        labels(all_labels) {}

  // indices: of `count` images in the data set. Leaves the logits [class][lane] in the work space and returns where.
  template <class P>
  KOKKOS_FUNCTION float const* forward(std::int64_t const* indices, int count, float const* values, float* work) const {
    std::uint8_t const* lane_images[lanes];
    for (int lane = 0; lane < lanes; ++lane)
      lane_images[lane] = lane < count ? images + indices[lane] * full_input.size() : nullptr;
    load_images<P>(lane_images, input.channels, full_input.height, full_input.width, input.height, input.width,
                   work + stages[0].input);
    for (int s = 0; s < stage_count; ++s) {
      Stage const& stage = stages[s];
      float const* x     = work + stage.input;
      float* y           = work + stage.output;
      switch (stage.kind) {
        case StageKind::conv2d:
          conv2d_forward<P>(stage.conv, x, values + stage.weight, values + stage.bias, y, flags_of(stage, work));
          break;
        case StageKind::dense:
          dense_forward<P>(stage.dense, x, values + stage.weight, values + stage.bias, y);
          break;
        case StageKind::pool2d:
          average_pool2d_forward<P>(stage.pool, x, y);
          break;
        case StageKind::relu:
          relu_forward<P>(stage.in_size * lanes, x, y);
          break;
      }
    }
    return work + stages[stage_count - 1].output;
  }

  // Loss and gradients of the block after forward; rows' last entry is the loss.
  template <class P>
  KOKKOS_FUNCTION void backward(std::int64_t const* indices, int count, float const* values, float* work,
                                GradientRows const& rows) const {
    int lane_labels[lanes] = {};
    for (int lane = 0; lane < count; ++lane) lane_labels[lane] = labels[indices[lane]];
    int turn = 0;
    softmax_cross_entropy<P>(classes, work + stages[stage_count - 1].output, lane_labels, count, work + losses,
                             work + gradient[0]);
    add_lane_sums<P>(rows, work + losses, 1, parameters);

    for (int s = stage_count - 1; s >= 0; --s) {
      Stage const& stage = stages[s];
      if (stage.weight < 0 && !stage.data_gradient) break;
      float const* x = work + stage.input;
      float const* y = work + stage.output;
      float* d_out   = work + gradient[turn];
      float* d_in    = work + gradient[1 - turn];
      switch (stage.kind) {
        case StageKind::conv2d: {
          float* all_dy = stage.data_gradient ? work + dy : nullptr;
          if (all_dy)
            conv2d_output_gradient<P>(stage.conv, y, flags_of(stage, work), d_out, 0, stage.conv.out_channels, 0,
                                      stage.conv.out_height, all_dy, stage.conv.out_plane());
          conv2d_weight_gradient<P>(stage.conv, x, all_dy, y, flags_of(stage, work), d_out,
                                    Conv2dWork(stage.conv, work + conv), rows, stage.weight, stage.bias);
          if (all_dy) conv2d_data_gradient<P>(stage.conv, all_dy, values + stage.weight, d_in);
          break;
        }
        case StageKind::dense:
          dense_output_gradient<P>(stage.dense, y, d_out);
          dense_weight_gradient<P>(stage.dense, x, d_out, work + transposed, count, rows, stage.weight, stage.bias);
          if (stage.data_gradient) dense_data_gradient<P>(stage.dense, d_out, values + stage.weight, d_in);
          break;
        case StageKind::pool2d:
          average_pool2d_backward<P>(stage.pool, d_out, d_in);
          break;
        case StageKind::relu:
          relu_backward<P>(stage.in_size * lanes, y, d_out, d_in);
          break;
      }
      turn = 1 - turn;
    }
  }

 private:
  KOKKOS_FUNCTION static std::uint8_t* flags_of(Stage const& stage, float* work) {
    return stage.flags < 0 ? nullptr : reinterpret_cast<std::uint8_t*>(work + stage.flags);
  }
};

}  // namespace lockstep
