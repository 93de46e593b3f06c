// SPDX-License-Identifier: Apache-2.0
// Kernel times where kernels run on an accelerator; kernel_bench.cpp is those of hosts.
#include <algorithm>
#include <functional>

#include "kernels/error.hpp"
#include "miniapp/executor/bench_parts.hpp"
#include "miniapp/executor/kernel_bench.hpp"
#include "miniapp/executor/lane_pass.hpp"

namespace lockstep {
namespace {

using Policy = Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>>;

// Kernels are timed on a batch of 4096 images: sixteen shards of sixteen blocks.
constexpr std::int64_t blocks = 256, images = blocks * lanes, shards = 16;

double multiply_adds(Space const& space, Buffer<float> const& to) {
  constexpr int accumulators = 16, rounds = 4096;
  std::int64_t const threads = std::int64_t(to.extent(0));
  float const factor         = 0.999f;
  double const seconds       = timed(space, [&] {
    Kokkos::parallel_for(
              "lockstep::bench::peak", Policy(space, 0, threads), KOKKOS_LAMBDA(std::int64_t thread) {
          float sums[accumulators];
          LOCKSTEP_UNROLL
          for (int i = 0; i < accumulators; ++i) sums[i] = 1.0f + float(i);
          for (int round = 0; round < rounds; ++round) {
            LOCKSTEP_UNROLL
            for (int i = 0; i < accumulators; ++i) sums[i] = multiply_add(sums[i], factor, 1.0f - factor);
          }
          float sum = 0.0f;
          LOCKSTEP_UNROLL
          for (int i = 0; i < accumulators; ++i) sum += sums[i];
          to(thread) = sum;
              });
  });
  return 2.0 * accumulators * rounds * double(threads) / seconds;
}

// Of all threads together, reading `bytes` again and again, neighbours neighbouring words.
double read_bandwidth(Space const& space, std::int64_t bytes) {
  std::int64_t const threads = space.concurrency();
  std::int64_t const each = std::max<std::int64_t>(1, (bytes / 4 + threads - 1) / threads), words = each * threads;
  int const repeats = int(std::max<std::int64_t>(1, (std::int64_t(1) << 30) / (4 * words)));
  auto const from   = bench_buffer<float>(space, "read", words);
  auto const to     = bench_buffer<float>(space, "sums", threads);
  std::vector<double> rates;
  for (int sample = 0; sample < 5; ++sample)
    rates.push_back(4.0 * double(words) * repeats / timed(space, [&] {
                      Kokkos::parallel_for(
                          "lockstep::bench::read", Policy(space, 0, threads), KOKKOS_LAMBDA(std::int64_t thread) {
                            float sum = 0.0f;
                            // Each time from another word of the thread's, so that no load can leave the loop.
                            for (int repeat = 0; repeat < repeats; ++repeat)
                              for (std::int64_t i = 0; i < each; ++i)
                                sum += from((i + repeat) % each * threads + thread) * float(repeat);
                            to(thread) = sum;
                          });
                    }));
  return median(rates);
}

}  // namespace

// L1: 32 bytes a thread, of all multiprocessors together. L2: 16 MiB. Shared: 1 GiB of memory.
MachineLimits measure_machine(Space const& space) {
  MachineLimits limits;
  auto const to = bench_buffer<float>(space, "peak", 4 * std::int64_t(space.concurrency()));
  std::vector<double> rates;
  for (int sample = 0; sample < 15; ++sample) rates.push_back(multiply_adds(space, to));
  limits.flops  = median(rates);
  limits.l1     = read_bandwidth(space, 32 * std::int64_t(space.concurrency()));
  limits.l2     = read_bandwidth(space, std::int64_t(16) << 20);
  limits.shared = read_bandwidth(space, std::int64_t(1) << 30);
  limits.copy   = copy_rate(space);
  return limits;
}

std::vector<KernelTime> time_kernels(Space const& space, Network const& network, int samples,
                                     std::vector<Conv> const& convs) {
  LOCKSTEP_THROW_IF(std::find(convs.begin(), convs.end(), Conv::gemm) != convs.end(), ExitCode::usage,
                    std::string("matrix products on ") + Space::name() + "; expected a host back end");
  using Phase = LanePass::Phase;
  LanePass const pass(space, network);
  Plan const& plan       = pass.plan();
  std::int64_t const row = plan.parameters + 1;
  int const classes      = plan.classes;
  auto const pixels      = bench_buffer<std::uint8_t>(space, "images", images * plan.full_input.size());
  auto const labels      = bench_buffer<std::uint8_t>(space, "labels", images);
  auto const parameters  = bench_buffer<float>(space, "parameters", plan.parameters);
  auto const rows        = bench_buffer<float>(space, "rows", shards * row);
  fill_images(space, pixels, labels, classes);
  fill_parameters(space, parameters);
  LaneUnits const units{pixels.data(), labels.data(), nullptr, 0, images, images / shards, lanes, rows.data(), row};
  LanePass::Wave const wave{0, shards, 0, blocks / shards};

  auto const probe = bench_buffer<float>(space, "peak", 4 * std::int64_t(space.concurrency()));
  std::vector<KernelTime> times;
  auto const measure = [&](std::string name, Cost cost, double footprint, std::function<void()> const& run) {
    run();
    double const once = timed(space, run);
    int const repeats = std::max(1, int(1e-3 / std::max(once, 1e-6)));
    std::vector<double> seconds, peaks;
    for (int sample = 0; sample < samples; ++sample) {
      peaks.push_back(multiply_adds(space, probe));
      seconds.push_back(timed(space,
                              [&] {
                                for (int repeat = 0; repeat < repeats; ++repeat) run();
                              }) /
                        repeats);
    }
    times.push_back({std::move(name), cost.flops, cost.bytes, median(seconds), median(peaks),
                     read_bandwidth(space, std::int64_t(footprint))});
  };
  auto const run_steps = [&](bool backward) {
    for (auto const step : pass.forward_steps()) pass.run(space, step, units, wave, parameters.data());
    if (backward)
      for (auto const step : pass.backward_steps()) pass.run(space, step, units, wave, parameters.data());
  };
  double const work = 4.0 * double(plan.size) * blocks;
  measure("whole block, forward", {}, work, [&] { run_steps(false); });
  measure("whole block, forward + backward", {}, work, [&] { run_steps(true); });

  Cost forward, backward;
  auto const measure_phase = [&](std::string const& name, Cost cost, LanePass::Step step, bool is_forward) {
    (is_forward ? forward : backward) = (is_forward ? forward : backward) + cost;
    measure(name, {cost.flops * blocks, cost.bytes * blocks}, cost.bytes * blocks,
            [&] { pass.run(space, step, units, wave, parameters.data()); });
  };
  measure_phase("load images", {0, 5.0 * double(plan.input.size()) * lanes}, {Phase::load, 0}, true);
  int number[4]             = {0, 0, 0, 0};
  char const* const kinds[] = {"conv2d", "dense", "pool2d", "relu"};
  for (int s = 0; s < int(plan.stages.size()); ++s) {
    Stage const& stage     = plan.stages[std::size_t(s)];
    std::string const name = kinds[int(stage.kind)] + std::string(" ") + std::to_string(++number[int(stage.kind)]);
    Cost cost{0, 8.0 * double(stage.in_size) * lanes};
    if (stage.kind == StageKind::conv2d) {
      Cost of_output = conv2d_output_gradient_cost(stage.conv);
      measure_phase(name + " forward", conv2d_forward_cost(stage.conv), {Phase::forward, s}, true);
      measure_phase(name + " output gradient", of_output, {Phase::output_gradient, s}, false);
      measure_phase(name + " weight gradient", conv2d_weight_gradient_cost(stage.conv, true),
                    {Phase::weight_gradient, s}, false);
      cost = conv2d_data_gradient_cost(stage.conv);
    } else if (stage.kind == StageKind::dense) {
      cost = dense_cost(stage.dense);
      measure_phase(name + " forward", cost, {Phase::forward, s}, true);
      measure_phase(name + " weight gradient", cost, {Phase::weight_gradient, s}, false);
    } else {
      if (stage.kind == StageKind::pool2d) cost = average_pool2d_cost(stage.pool);
      measure_phase(name + " forward", cost, {Phase::forward, s}, true);
    }
    if (stage.data_gradient) measure_phase(name + " data gradient", cost, {Phase::data_gradient, s}, false);
  }
  measure_phase("softmax cross-entropy", {0, 8.0 * classes * lanes}, {Phase::loss, 0}, false);
  auto const all = [&](KernelTime& time, Cost cost) {
    time.flops = cost.flops * blocks;
    time.bytes = cost.bytes * blocks;
  };
  all(times[0], forward);
  all(times[1], forward + backward);

  measure_step(space, network, parameters, images, measure);
  return times;
}

}  // namespace lockstep
