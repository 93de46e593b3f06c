// SPDX-License-Identifier: Apache-2.0
#include "miniapp/executor/kernel_bench.hpp"

#include <algorithm>
#include <functional>
#include <memory>

#include "miniapp/executor/bench_parts.hpp"
#include "miniapp/executor/block.hpp"
#include "miniapp/executor/gemm_pass.hpp"

namespace lockstep {
namespace {

using Policy = Kokkos::RangePolicy<Space>;

std::int64_t workers_of(Space const& space) {
  return std::min<std::int64_t>(space.concurrency(), 1024);
}

// Enough independent multiply-adds to hide their latency.
struct PeakProbe {
  static constexpr int accumulators = Pack::width >= 16 ? 24 : 12;
  static constexpr int rounds       = 100000;
  Space space;
  Buffer<float> out;

  explicit PeakProbe(Space const& s) : space(s), out(bench_buffer<float>(s, "peak", workers_of(s) * 16)) {}

  double flops_per_second() const {
    auto const to        = out;
    float const factor   = 0.999f;
    auto const workers   = workers_of(space);
    double const seconds = timed(space, [&] {
      Kokkos::parallel_for(
          "lockstep::bench::peak", Policy(space, 0, workers), KOKKOS_LAMBDA(std::int64_t worker) {
            Pack sums[accumulators];
            LOCKSTEP_UNROLL
            for (int i = 0; i < accumulators; ++i) sums[i] = Pack(1.0f + float(i));
            Pack const a(factor), b(1.0f - factor);
            for (int round = 0; round < rounds; ++round) {
              LOCKSTEP_UNROLL
              for (int i = 0; i < accumulators; ++i) sums[i] = multiply_add(sums[i], a, b);
            }
            for (int i = 1; i < accumulators; ++i) sums[0] = sums[0] + sums[i];
            float result[Pack::width];
            sums[0].store(result);
            to(worker * 16) = result[0];
          });
    });
    return 2.0 * double(rounds) * accumulators * Pack::width * double(workers) / seconds;
  }
};

// Of all threads, each reading its own `bytes` again and again.
double read_bandwidth(Space const& space, std::int64_t bytes) {
  constexpr int streams      = 8;
  constexpr std::int64_t run = streams * Pack::width;
  std::int64_t const floats = (bytes / 4 + run - 1) / run * run, workers = workers_of(space);
  int const repeats = int(std::max<std::int64_t>(1, (std::int64_t(64) << 20) / (4 * floats)));
  auto const from   = bench_buffer<float>(space, "read", workers * floats);
  auto const to     = bench_buffer<float>(space, "sums", workers * 16);
  std::vector<double> rates;
  for (int sample = 0; sample < 9; ++sample)
    rates.push_back(4.0 * double(floats) * repeats * double(workers) / timed(space, [&] {
                      Kokkos::parallel_for(
                          "lockstep::bench::read", Policy(space, 0, workers), KOKKOS_LAMBDA(std::int64_t worker) {
                            float const* own = from.data() + worker * floats;
                            Pack sums[streams];
                            LOCKSTEP_UNROLL
                            for (int i = 0; i < streams; ++i) sums[i] = Pack(0.0f);
                            for (int repeat = 0; repeat < repeats; ++repeat)
                              for (std::int64_t at = 0; at < floats; at += run) {
                                LOCKSTEP_UNROLL
                                for (int i = 0; i < streams; ++i)
                                  sums[i] = sums[i] + Pack::load(own + at + i * Pack::width);
                              }
                            for (int i = 1; i < streams; ++i) sums[0] = sums[0] + sums[i];
                            float result[Pack::width];
                            sums[0].store(result);
                            to(worker * 16) = result[0];
                          });
                    }));
  return median(rates);
}

enum class Part { load, forward, loss, output_gradient, weight_gradient, data_gradient, whole_forward, whole_block };

// What one worker does, `repeats` times.
struct BlockBench {
  BlockRunner block;
  Buffer<float> parameters, work, rows;
  std::int64_t work_size, row_size;
  Part part;
  int stage, repeats;

  KOKKOS_FUNCTION void operator()(std::int64_t worker) const {
    float* own = work.data() + worker * work_size;
    BlockRunner::Job job;
    job.count = lanes;
    job.rows  = GradientRows{rows.data() + worker * row_size, row_size, lanes, 1, false};
    job.work = job.scratch = own;
    job.conv_work          = own + block.conv;
    std::uint8_t const* images[lanes];
    int labels[lanes];
    for (int lane = 0; lane < lanes; ++lane) {
      job.indices[lane] = lane;
      images[lane]      = block.images + lane * block.full_input.size();
      labels[lane]      = block.labels[lane];
    }
    Stage const& s      = block.stages[stage];
    float const* values = parameters.data();
    float const* x      = own + s.input;
    float* y            = own + s.output;
    std::uint8_t* flags = s.flags < 0 ? nullptr : reinterpret_cast<std::uint8_t*>(own + s.flags);
    float *d_out = own + block.gradient[0], *d_in = own + block.gradient[1];
    float* dy = s.data_gradient ? own + block.dy : nullptr;
    for (int repeat = 0; repeat < repeats; ++repeat) switch (part) {
        case Part::load:
          load_images<Pack>(images, block.input.channels, block.full_input.height, block.full_input.width,
                            block.input.height, block.input.width, own + block.stages[0].input);
          break;
        case Part::forward:
          if (s.kind == StageKind::conv2d)
            conv2d_forward<Pack>(s.conv, x, values + s.weight, values + s.bias, y, flags);
          else if (s.kind == StageKind::dense)
            dense_forward<Pack>(s.dense, x, values + s.weight, values + s.bias, y);
          else if (s.kind == StageKind::pool2d)
            average_pool2d_forward<Pack>(s.pool, x, y);
          break;
        case Part::loss:
          softmax_cross_entropy<Pack>(block.classes, own + block.stages[block.stage_count - 1].output, labels, lanes,
                                      own + block.losses, d_out);
          break;
        case Part::output_gradient:
          conv2d_output_gradient<Pack>(s.conv, y, flags, d_out, 0, s.conv.out_channels, 0, s.conv.out_height,
                                       own + block.dy, s.conv.out_plane());
          break;
        case Part::weight_gradient:
          if (s.kind == StageKind::conv2d)
            conv2d_weight_gradient<Pack>(s.conv, x, dy, y, flags, d_out, Conv2dWork(s.conv, own + block.conv), job.rows,
                                         s.weight, s.bias);
          else
            dense_weight_gradient<Pack>(s.dense, x, d_out, own + block.transposed, lanes, job.rows, s.weight, s.bias);
          break;
        case Part::data_gradient:
          if (s.kind == StageKind::conv2d)
            conv2d_data_gradient<Pack>(s.conv, own + block.dy, values + s.weight, d_in);
          else if (s.kind == StageKind::dense)
            dense_data_gradient<Pack>(s.dense, d_out, values + s.weight, d_in);
          else if (s.kind == StageKind::pool2d)
            average_pool2d_backward<Pack>(s.pool, d_out, d_in);
          break;
        case Part::whole_forward:
          for (int phase = 0; phase < block.forward_phases(); ++phase) block.run<Pack>(phase, job, values);
          break;
        case Part::whole_block:
          for (int phase = 0; phase < block.phases(); ++phase) block.run<Pack>(phase, job, values);
          break;
      }
  }
};

// A kernel of one block; bytes of it and of what it works on.
struct BlockKernel {
  std::string name;
  Cost cost;
  double footprint;
  Part part;
  int stage;
  bool has_products;  // whether matrix products can compute it
};

std::vector<BlockKernel> kernels_of(Plan const& plan) {
  std::vector<BlockKernel> kernels;
  Cost forward, backward;
  int number[4]             = {0, 0, 0, 0};
  char const* const kinds[] = {"conv2d", "dense", "pool2d", "relu"};
  for (int s = 0; s < int(plan.stages.size()); ++s) {
    Stage const& stage     = plan.stages[std::size_t(s)];
    std::string const name = kinds[int(stage.kind)] + std::string(" ") + std::to_string(++number[int(stage.kind)]);
    auto const add         = [&](char const* what, Cost cost, Part part) {
      (part == Part::forward ? forward : backward) = (part == Part::forward ? forward : backward) + cost;
      kernels.push_back(
                  {name + " " + what, cost, cost.bytes, part, s, stage.weight >= 0 && part != Part::output_gradient});
    };
    if (stage.kind == StageKind::conv2d) {
      add("forward", conv2d_forward_cost(stage.conv), Part::forward);
      if (stage.data_gradient) add("output gradient", conv2d_output_gradient_cost(stage.conv), Part::output_gradient);
      add("weight gradient", conv2d_weight_gradient_cost(stage.conv, stage.data_gradient), Part::weight_gradient);
      if (stage.data_gradient) add("data gradient", conv2d_data_gradient_cost(stage.conv), Part::data_gradient);
    } else if (stage.kind == StageKind::dense) {
      add("forward", dense_cost(stage.dense), Part::forward);
      add("weight gradient", dense_cost(stage.dense), Part::weight_gradient);
      if (stage.data_gradient) add("data gradient", dense_cost(stage.dense), Part::data_gradient);
    } else if (stage.kind == StageKind::pool2d) {
      add("forward", average_pool2d_cost(stage.pool), Part::forward);
      if (stage.data_gradient) add("data gradient", average_pool2d_cost(stage.pool), Part::data_gradient);
    }
  }
  double const image_bytes = 5.0 * double(plan.input.size()) * lanes, logit_bytes = 8.0 * plan.classes * lanes,
               all_bytes = 4.0 * double(plan.size);
  kernels.insert(kernels.begin(),
                 {{"whole block, forward", forward, all_bytes, Part::whole_forward, 0, true},
                  {"whole block, forward + backward", forward + backward, all_bytes, Part::whole_block, 0, true},
                  {"load images", {0, image_bytes}, image_bytes, Part::load, 0, false}});
  kernels.push_back({"softmax cross-entropy", {0, logit_bytes}, logit_bytes, Part::loss, 0, false});
  return kernels;
}

void run_products(Space const& space, GemmPass const& products, BlockRunner const& block, BlockRunner::Job const& job,
                  Plan const& plan, BlockKernel const& kernel, float const* values) {
  Stage const& stage = plan.stages[std::size_t(kernel.stage)];
  float *const d_out = job.work + block.gradient[0], *const d_in = job.work + block.gradient[1];
  switch (kernel.part) {
    case Part::forward:
      return products.forward(space, stage, values);
    case Part::weight_gradient:
      return products.weight_gradient(space, stage, d_out, job.rows);
    case Part::data_gradient:
      return products.data_gradient(space, stage, d_out, values, d_in);
    case Part::whole_forward:
      return products.forward(space, block, job, values);
    default:
      return products.gradients(space, block, job, values);
  }
}

}  // namespace

MachineLimits measure_machine(Space const& space) {
  MachineLimits limits;
  PeakProbe const probe(space);
  std::vector<double> rates;
  for (int sample = 0; sample < 31; ++sample) rates.push_back(probe.flops_per_second());
  limits.flops  = median(rates);
  limits.l1     = read_bandwidth(space, 16 << 10);
  limits.l2     = read_bandwidth(space, 256 << 10);
  limits.shared = read_bandwidth(space, (8 << 20) / workers_of(space));
  limits.copy   = copy_rate(space);
  return limits;
}

std::vector<KernelTime> time_kernels(Space const& space, Network const& network, int samples,
                                     std::vector<Conv> const& convs) {
  Plan const plan(network);
  std::int64_t const workers = workers_of(space), row = plan.parameters + 1,
                     stage_bytes = plan.stages.size() * sizeof(Stage);
  auto const stages              = bench_buffer<char>(space, "stages", stage_bytes);
  Kokkos::deep_copy(space, stages,
                    HostBuffer<const char>(reinterpret_cast<char const*>(plan.stages.data()), stage_bytes));
  auto const images = bench_buffer<std::uint8_t>(space, "images", lanes * plan.full_input.size());
  auto const labels = bench_buffer<std::uint8_t>(space, "labels", lanes);
  fill_images(space, images, labels, plan.classes);

  BlockBench bench;
  bench.block      = BlockRunner(plan, reinterpret_cast<Stage const*>(stages.data()), images.data(), labels.data());
  bench.parameters = bench_buffer<float>(space, "parameters", plan.parameters);
  bench.work       = bench_buffer<float>(space, "work", workers * plan.size);
  bench.rows       = bench_buffer<float>(space, "rows", workers * row);
  bench.work_size  = plan.size;
  bench.row_size   = row;
  auto const parameters = bench.parameters;
  fill_parameters(space, parameters);

  PeakProbe const probe(space);
  std::vector<KernelTime> times;
  // run(repeats) once a sample, in turn with the peak; `cost` of one repeat; footprint: bytes that it works on.
  auto const measure = [&](std::string name, Cost cost, double footprint, std::function<void(int)> const& run) {
    run(1);
    double const once = timed(space, [&] { run(1); });
    int const repeats = std::max(1, int(1e-3 / std::max(once, 1e-7)));
    std::vector<double> seconds, peaks;
    for (int sample = 0; sample < samples; ++sample) {
      peaks.push_back(probe.flops_per_second());
      seconds.push_back(timed(space, [&] { run(repeats); }) / repeats);
    }
    times.push_back({std::move(name), cost.flops, cost.bytes, median(seconds), median(peaks),
                     read_bandwidth(space, std::int64_t(footprint) / workers + 1)});
  };
  auto const measure_direct = [&](BlockKernel const& kernel) {
    bench.part  = kernel.part;
    bench.stage = kernel.stage;
    measure(kernel.name, {kernel.cost.flops * double(workers), kernel.cost.bytes * double(workers)},
            double(workers) * kernel.footprint, [&](int repeats) {
              bench.repeats = repeats;
              Kokkos::parallel_for("lockstep::bench::kernel", Policy(space, 0, workers), bench);
            });
  };
  bool const direct = std::find(convs.begin(), convs.end(), Conv::direct) != convs.end();
  std::unique_ptr<GemmPass> products;
  if (std::find(convs.begin(), convs.end(), Conv::gemm) != convs.end())
    products = std::make_unique<GemmPass>(space, plan);
  auto const measure_products = [&](BlockKernel const& kernel) {
    BlockRunner::Job job{};
    job.count = lanes;
    job.rows  = GradientRows{bench.rows.data(), row, lanes, 1, false};
    for (int lane = 0; lane < lanes; ++lane) job.indices[lane] = lane;
    products->prepare(job);
    measure(kernel.name + ", gemm", kernel.cost, double(workers) * kernel.footprint, [&](int repeats) {
      for (int i = 0; i < repeats; ++i)
        run_products(space, *products, bench.block, job, plan, kernel, parameters.data());
    });
  };
  for (BlockKernel const& kernel : kernels_of(plan)) {
    if (direct || !kernel.has_products) measure_direct(kernel);
    if (products && kernel.has_products) measure_products(kernel);
  }

  measure_step(space, network, parameters, 256,
               [&](char const* name, Cost cost, double footprint, std::function<void()> const& once) {
                 measure(name, cost, footprint, [&](int repeats) {
                   for (int i = 0; i < repeats; ++i) once();
                 });
               });
  return times;
}

}  // namespace lockstep
