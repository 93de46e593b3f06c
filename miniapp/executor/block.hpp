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

  // One block's images, rows and work space.
  struct Job {
    std::int64_t indices[lanes];  // in the data set
    int count;                    // images, the first lanes
    GradientRows rows;            // the last entry is the loss
    float* work;                  // activations, of the block
    float* scratch;               // what lies behind the activations, of those who do the block: the same as work but
                                  // where activations are kept between segments
    float* conv_work;             // of the worker: scratch + conv when one does the whole block
  };

  // A part of a pass: phases in order. Between two parts the gradient of an activation is carried over, behind the
  // block's activations.
  struct Segment {
    int first = 0, last = 0;        // phases [first, last), the copies of what is carried included
    int begin = 0, end = 0;         // phases proper
    int turn_in = 0, turn_out = 0;  // which of the two gradients of activations
    std::int64_t count_in = 0, count_out = 0, carried = 0;  // floats; where
  };

  // A pass is phases in order, each of which is several workers' shares or one's. Forward: the images, then the stages.
  // Then the loss; backward, two for each stage from the last: gradient of its output, then those of its parameters and
  // input.
  KOKKOS_FUNCTION int forward_phases() const { return 1 + stage_count; }
  KOKKOS_FUNCTION int phases() const { return phases_to(0); }
  KOKKOS_FUNCTION int phases_to(int s) const { return 2 + stage_count + 2 * (stage_count - s); }  // backward through s
  // Which of the two gradients is that of stage s's output; that of its input is the other.
  KOKKOS_FUNCTION int turn_of(int s) const { return (stage_count - 1 - s) % 2; }

  // Of the phases [segment.first, segment.last).
  template <class P>
  KOKKOS_FUNCTION void run(Segment const& segment, int phase, Job const& job, float const* values,
                           Share share = {}) const {
    if (phase < segment.begin)
      copy(job.work + segment.carried, job.scratch + gradient[segment.turn_in], segment.count_in, share);
    else if (phase >= segment.end)
      copy(job.scratch + gradient[segment.turn_out], job.work + segment.carried, segment.count_out, share);
    else
      run<P>(phase, job, values, share);
  }
  // A stage's second backward phase; all that stages without weights have.
  KOKKOS_FUNCTION int backward_phase(int stage) const { return stage_count + 3 + 2 * (stage_count - 1 - stage); }

  template <class P>
  KOKKOS_FUNCTION void run(int phase, Job const& job, float const* values, Share share = {}) const {
    if (phase == 0)
      load<P>(job, share);
    else if (phase <= stage_count)
      forward<P>(stages[phase - 1], job.work, values, share);
    else if (phase == stage_count + 1)
      loss<P>(job, share);
    else
      backward<P>(stage_count - 1 - (phase - stage_count - 2) / 2, (phase - stage_count) % 2 == 0, job, values, share);
  }

  KOKKOS_FUNCTION static std::uint8_t* flags_of(Stage const& stage, float* work) {
    return stage.flags < 0 ? nullptr : reinterpret_cast<std::uint8_t*>(work + stage.flags);
  }
  KOKKOS_FUNCTION float const* logits(float const* work) const { return work + stages[stage_count - 1].output; }

 private:
  KOKKOS_FUNCTION static void copy(float const* from, float* to, std::int64_t count, Share share) {
    constexpr std::int64_t tile = 16 * lanes;
    for (std::int64_t at = 0; at < count; at += tile)
      if (share.has(at / tile))
        for (std::int64_t i = at; i < at + tile && i < count; ++i) to[i] = from[i];
  }

  template <class P>
  KOKKOS_FUNCTION void load(Job const& job, Share share) const {
    std::uint8_t const* lane_images[lanes];
    for (int lane = 0; lane < lanes; ++lane)
      lane_images[lane] = lane < job.count ? images + job.indices[lane] * full_input.size() : nullptr;
    load_images<P>(lane_images, input.channels, full_input.height, full_input.width, input.height, input.width,
                   job.work + stages[0].input, share);
  }

  template <class P>
  KOKKOS_FUNCTION void forward(Stage const& stage, float* work, float const* values, Share share) const {
    float const* x = work + stage.input;
    float* y       = work + stage.output;
    switch (stage.kind) {
      case StageKind::conv2d:
        conv2d_forward<P>(stage.conv, x, values + stage.weight, values + stage.bias, y, flags_of(stage, work), share);
        break;
      case StageKind::dense:
        dense_forward<P>(stage.dense, x, values + stage.weight, values + stage.bias, y, share);
        break;
      case StageKind::pool2d:
        average_pool2d_forward<P>(stage.pool, x, y, share);
        break;
      case StageKind::relu:
        if (share.has(0)) relu_forward<P>(stage.in_size * lanes, x, y);
        break;
    }
  }

  template <class P>
  KOKKOS_FUNCTION void loss(Job const& job, Share share) const {
    if (!share.has(0)) return;
    int lane_labels[lanes] = {};
    for (int lane = 0; lane < job.count; ++lane) lane_labels[lane] = labels[job.indices[lane]];
    softmax_cross_entropy<P>(classes, logits(job.work), lane_labels, job.count, job.scratch + losses,
                             job.scratch + gradient[0]);
    add_lane_sums<P>(job.rows, job.scratch + losses, 1, parameters);
  }

  template <class P>
  KOKKOS_FUNCTION void backward(int s, bool of_output, Job const& job, float const* values, Share share) const {
    Stage const& stage = stages[s];
    if (stage.weight < 0 && !stage.data_gradient) return;  // nothing before it has parameters either
    float* const work    = job.work;
    float* const scratch = job.scratch;
    float const* x       = work + stage.input;
    float const* y       = work + stage.output;
    int const turn       = turn_of(s);
    float* d_out         = scratch + gradient[turn];
    float* d_in          = scratch + gradient[1 - turn];
    switch (stage.kind) {
      case StageKind::conv2d: {
        Conv2d const& c = stage.conv;
        float* all_dy   = stage.data_gradient ? scratch + dy : nullptr;
        if (of_output) {
          if (all_dy)
            for (int channel = 0; channel < c.out_channels; ++channel)
              if (share.has(channel))
                conv2d_output_gradient<P>(c, y, flags_of(stage, work), d_out, channel, channel + 1, 0, c.out_height,
                                          all_dy + channel * c.out_plane(), c.out_plane());
          break;
        }
        conv2d_weight_gradient<P>(c, x, all_dy, y, flags_of(stage, work), d_out, Conv2dWork(c, job.conv_work), job.rows,
                                  stage.weight, stage.bias, share);
        if (all_dy) conv2d_data_gradient<P>(c, all_dy, values + stage.weight, d_in, share);
        break;
      }
      case StageKind::dense:
        if (of_output) {
          dense_output_gradient<P>(stage.dense, y, d_out, scratch + transposed, share);
          break;
        }
        dense_weight_gradient<P>(stage.dense, x, d_out, scratch + transposed, job.count, job.rows, stage.weight,
                                 stage.bias, share);
        if (stage.data_gradient) dense_data_gradient<P>(stage.dense, d_out, values + stage.weight, d_in, share);
        break;
      case StageKind::pool2d:
        if (!of_output) average_pool2d_backward<P>(stage.pool, d_out, d_in, share);
        break;
      case StageKind::relu:
        if (!of_output && share.has(0)) relu_backward<P>(stage.in_size * lanes, y, d_out, d_in);
        break;
    }
  }
};

}  // namespace lockstep
