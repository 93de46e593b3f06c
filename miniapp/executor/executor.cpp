// SPDX-License-Identifier: Apache-2.0
#include "miniapp/executor.hpp"

#include <algorithm>

#include "kernels/error.hpp"
#include "kernels/kokkos_compat.hpp"
#include "miniapp/executor/block.hpp"
#include "miniapp/executor/checks.hpp"
#include "miniapp/executor/gemm_pass.hpp"

namespace lockstep {
namespace {

struct Workers {
  std::int64_t count = 0, size = 0;  // size: floats of one worker
  Buffer<float> work;
  Buffer<std::int64_t> tickets;  // how many have been drawn since construction
  std::int64_t drawn = 0;        // what that is between launches
};

// Workers take units, in any order, until none is left: body(unit, work space). A ticket is a unit; each worker draws
// one that is none, so that the next launch knows where it starts and nothing need be reset.
template <class Body>
void for_each_unit(Space const& space, std::string const& label, Workers& workers, std::int64_t units,
                   Body const& body) {
  if (units == 0) return;
  std::int64_t const count = std::min(workers.count, units), first = workers.drawn, size = workers.size;
  auto const tickets = workers.tickets;
  auto const work    = workers.work;
  Kokkos::parallel_for(
      label, Kokkos::RangePolicy<Space>(space, 0, count), KOKKOS_LAMBDA(int worker) {
        float* own = work.data() + worker * size;
        for (std::int64_t unit; (unit = Kokkos::atomic_fetch_add(&tickets(0), std::int64_t(1)) - first) < units;)
          body(int(unit), own);
      });
  workers.drawn += units + count;
}

KOKKOS_FUNCTION BlockRunner::Job images_of_block(Interval images, std::int64_t block) {
  std::int64_t const first = images.begin + block * lanes;
  BlockRunner::Job job{};
  job.count = int(images.end - first < lanes ? images.end - first : lanes);
  for (int lane = 0; lane < job.count; ++lane) job.indices[lane] = first + lane;
  return job;
}

// Forward passes of a range of the data set; after each block body(first image of the block, count, logits).
template <class Body>
void for_each_block(Space const& space, std::string const& label, Workers& workers, BlockRunner const& block,
                    Interval images, Buffer<const float> const& parameters, Body const& body) {
  for_each_unit(
      space, label, workers, blocks_for(images.size()), KOKKOS_LAMBDA(int unit, float* own) {
        BlockRunner::Job job = images_of_block(images, unit);
        job.work = job.scratch = own;
        for (int phase = 0; phase < block.forward_phases(); ++phase)
          block.template run<Pack>(phase, job, parameters.data());
        body(job.indices[0], job.count, block.logits(own));
      });
}

// The same by matrix products.
template <class Body>
void for_each_block(Space const& space, std::string const& label, GemmPass const& pass, BlockRunner const& block,
                    Interval images, Buffer<const float> const& parameters, Body const& body) {
  for (std::int64_t unit = 0; unit < blocks_for(images.size()); ++unit) {
    BlockRunner::Job job = images_of_block(images, unit);
    pass.prepare(job);
    pass.forward(space, block, job, parameters.data());
    Kokkos::parallel_for(
        label, Kokkos::RangePolicy<Space>(space, 0, 1),
        KOKKOS_LAMBDA(int) { body(job.indices[0], job.count, block.logits(job.work)); });
  }
}

// A minibatch's gradients in units: a unit is one block that holds several shards, or one shard that is a run of
// blocks.
struct Units {
  BlockRunner runner;
  Buffer<const std::int32_t> order;
  Buffer<float> gradients;
  std::int64_t first, images;  // the minibatch: order[first .. first + images)
  std::int64_t shard_size, stride;
  Interval run;
  int shards_per_unit;
  BlockRunner::Segment segment;
  float* kept;  // activations of all blocks, where there are segments
  std::int64_t kept_size;

  KOKKOS_FUNCTION std::int64_t blocks() const { return (shard_size * shards_per_unit + lanes - 1) / lanes; }  // at most

  // Where a block's activations are; `own` is of those who do it.
  KOKKOS_FUNCTION float* activations(std::int64_t unit, std::int64_t block, float* own) const {
    return kept ? kept + (unit * blocks() + block) * kept_size : own;
  }

  // Fills in a unit's block; false if it has no such block.
  KOKKOS_FUNCTION bool prepare(std::int64_t unit, std::int64_t block, BlockRunner::Job& job) const {
    std::int64_t const shard = run.begin + unit * shards_per_unit;
    std::int64_t const left  = run.end - shard;
    int const shards         = int(left < shards_per_unit ? left : shards_per_unit);
    std::int64_t const end   = (shard + shards) * shard_size < images ? (shard + shards) * shard_size : images;
    std::int64_t const at    = shard * shard_size + block * lanes;
    if (at >= end) return false;
    job.count = int(end - at < lanes ? end - at : lanes);
    job.rows  = GradientRows{gradients.data() + (shard - run.begin) * stride, stride,
                            int(shard_size < lanes ? shard_size : lanes), shards, block > 0};
    for (int lane = 0; lane < job.count; ++lane) job.indices[lane] = order(first + at + lane);
    return true;
  }
};

// Depth first: a worker takes a unit from its bytes to its gradients, while it is in the worker's cache.
void run_depth_first(Space const& space, Workers& workers, Units const& units, std::int64_t count,
                     Buffer<const float> const& parameters) {
  for_each_unit(
      space, "lockstep::executor::gradients", workers, count, KOKKOS_LAMBDA(int unit, float* own) {
        BlockRunner::Job job;
        job.scratch   = own;
        job.conv_work = own + units.runner.conv;
        for (std::int64_t block = 0; units.prepare(unit, block, job); ++block) {
          job.work = units.activations(unit, block, own);
          for (int phase = units.segment.first; phase < units.segment.last; ++phase)
            units.runner.template run<Pack>(units.segment, phase, job, parameters.data());
        }
      });
}

// Breadth first, for fewer units than workers: `parts` workers share a unit, phase by phase. The same bits: a tile is
// one worker's.
void run_breadth_first(Space const& space, Workers const& workers, Units const& units, std::int64_t count, int parts,
                       Buffer<const float> const& parameters) {
  for (std::int64_t block = 0; block < units.blocks(); ++block)
    for (int phase = units.segment.first; phase < units.segment.last; ++phase)
      Kokkos::parallel_for(
          "lockstep::executor::gradients_phase", Kokkos::RangePolicy<Space>(space, 0, count * parts),
          KOKKOS_LAMBDA(int worker) {
            BlockRunner::Job job;
            job.scratch   = workers.work.data() + worker / parts * workers.size;
            job.work      = units.activations(worker / parts, block, job.scratch);
            job.conv_work = workers.work.data() + worker * workers.size + units.runner.conv;
            if (units.prepare(worker / parts, block, job))
              units.runner.template run<Pack>(units.segment, phase, job, parameters.data(),
                                              Share{worker % parts, parts});
          });
}

// By matrix products, shard by shard: a block holds images of one shard only.
void run_products(Space const& space, GemmPass const& pass, Units const& units, std::int64_t count,
                  Buffer<const float> const& parameters) {
  for (std::int64_t unit = 0; unit < count; ++unit) {
    BlockRunner::Job job{};
    pass.prepare(job);
    for (std::int64_t block = 0; units.prepare(unit, block, job); ++block)
      pass.gradients(space, units.runner, job, parameters.data());
  }
}

}  // namespace

struct Executor::Impl {
  Plan plan;
  Buffer<char> stages;  // of Stage
  Workers workers;
  int layers;
  std::vector<int> first_layers;  // by segment, in the network
  std::vector<BlockRunner::Segment> segments;
  std::int64_t kept_blocks = 0, kept_size = 0;
  Buffer<float> kept;
  std::unique_ptr<GemmPass> products;  // instead of workers

  Impl(Space const& space, Network const& network, Conv conv, Segments const& wanted)
      : plan(network), layers(int(network.layers.size())) {
    std::size_t const bytes = plan.stages.size() * sizeof(Stage);
    stages = Buffer<char>(Kokkos::view_alloc(space, Kokkos::WithoutInitializing, "lockstep::executor::stages"), bytes);
    Kokkos::deep_copy(space, stages, HostBuffer<const char>(reinterpret_cast<char const*>(plan.stages.data()), bytes));
    if (conv == Conv::gemm) {
      LOCKSTEP_THROW_IF(!wanted.first_layers.empty(), ExitCode::usage,
                        "executor: backward in segments by gemm; expected direct convolutions");
      products = std::make_unique<GemmPass>(space, plan);
      return;
    }
    // Threads of an accelerator are many more than the units of a step; the memory bounds them.
    workers.count   = std::min<std::int64_t>(space.concurrency(), 1024);
    workers.size    = plan.size;
    workers.work    = Buffer<float>(Kokkos::view_alloc(space, Kokkos::WithoutInitializing, "lockstep::executor::work"),
                                 workers.count * plan.size);
    workers.tickets = Buffer<std::int64_t>(Kokkos::view_alloc(space, "lockstep::executor::tickets"), 1);
    if (!wanted.first_layers.empty()) cut(space, wanted);
  }

  void cut(Space const& space, Segments const& wanted) {
    BlockRunner const runner(plan, plan.stages.data(), nullptr, nullptr);
    first_layers         = wanted.first_layers;
    kept_blocks          = wanted.blocks;
    std::int64_t carried = 0;
    BlockRunner::Segment segment;
    segment.carried = plan.activations;
    for (std::size_t s = 0; s < first_layers.size(); ++s) {
      auto const found = std::find(plan.first_layers.begin(), plan.first_layers.end(), first_layers[s]);
      LOCKSTEP_THROW_IF(found == plan.first_layers.end() || (s > 0 && first_layers[s] >= first_layers[s - 1]) ||
                            (s + 1 == first_layers.size() && first_layers[s] != 0),
                        ExitCode::usage,
                        "executor: segment " + std::to_string(s) + " goes back to layer " +
                            std::to_string(first_layers[s]) +
                            "; expected layers that are not joined to the one before, falling, the last 0");
      int const stage   = int(found - plan.first_layers.begin());
      segment.end       = runner.phases_to(stage);
      segment.turn_out  = 1 - runner.turn_of(stage);
      segment.count_out = stage > 0 ? plan.stages[std::size_t(stage)].in_size * lanes : 0;
      segment.first     = segment.begin - (segment.count_in > 0);
      segment.last      = segment.end + (segment.count_out > 0);
      segments.push_back(segment);
      carried          = std::max(carried, segment.count_out);
      segment.begin    = segment.end;
      segment.turn_in  = segment.turn_out;
      segment.count_in = segment.count_out;
    }
    kept_size = plan.activations + carried;
    kept      = Buffer<float>(Kokkos::view_alloc(space, Kokkos::WithoutInitializing, "lockstep::executor::kept"),
                         kept_blocks * kept_size + 16 * lanes);  // lane sums read ahead
  }

  BlockRunner::Segment segment_of(int number, BlockRunner const& runner) const {
    if (number != whole) {
      LOCKSTEP_THROW_IF(number < 0 || number >= int(segments.size()), ExitCode::wrong_result,
                        "executor: segment " + std::to_string(number) + " of " + std::to_string(segments.size()));
      return segments[std::size_t(number)];
    }
    BlockRunner::Segment all;
    all.last = all.end = runner.phases();
    return all;
  }

  // See the functions above.
  template <class Body>
  void for_each_block(Space const& space, std::string const& label, DeviceDataset const& data, Interval images,
                      Buffer<const float> const& parameters, Body const& body) {
    if (products)
      lockstep::for_each_block(space, label, *products, runner(data, images), images, parameters, body);
    else
      lockstep::for_each_block(space, label, workers, runner(data, images), images, parameters, body);
  }

  BlockRunner runner(DeviceDataset const& data, Interval images) const {
    check_images(plan, data, images);
    return BlockRunner(plan, reinterpret_cast<Stage const*>(stages.data()), data.images.data(), data.labels.data());
  }

  // A region's label: the layers that a segment goes through, counted from 1.
  std::string describe(int segment) const {
    if (segment == whole) return "lockstep::executor::segment forward and backward through all layers";
    int const to   = first_layers[std::size_t(segment)] + 1;
    int const from = segment == 0 ? layers : first_layers[std::size_t(segment) - 1];
    return std::string("lockstep::executor::segment ") + (segment == 0 ? "forward and " : "") + "backward through " +
           (from > to ? "layers " + std::to_string(from) + " to " : "layer ") + std::to_string(to);
  }
};

Executor::Executor(Space const& space, Network const& network, Conv conv, Segments const& segments)
    : m_impl(std::make_unique<Impl>(space, network, conv, segments)) {
  fence(space, "lockstep::executor::construct");
}
Executor::~Executor()                              = default;
Executor::Executor(Executor&&) noexcept            = default;
Executor& Executor::operator=(Executor&&) noexcept = default;

void Executor::gradients(Space const& space, DeviceDataset const& data, Buffer<const std::int32_t> const& order,
                         std::int64_t first, ShardPlan const& plan, Interval run, Buffer<const float> const& parameters,
                         Buffer<float> const& shard_gradients, int segment) {
  ScopedRegion const region("lockstep::executor::gradients");
  check_gradients(m_impl->plan, order, first, plan, run, parameters, shard_gradients);
  BlockRunner const runner = m_impl->runner(data, {0, data.count});
  Units units{runner,
              order,
              shard_gradients,
              first,
              plan.images,
              plan.shard_size,
              m_impl->plan.parameters + 1,
              run,
              m_impl->products ? 1 : shards_per_unit(plan),
              m_impl->segment_of(segment, runner),
              segment == whole ? nullptr : m_impl->kept.data(),
              m_impl->kept_size};
  std::int64_t const count = (run.size() + units.shards_per_unit - 1) / units.shards_per_unit;
  if (count == 0) return;
  if (m_impl->products) return run_products(space, *m_impl->products, units, count, parameters);
  LOCKSTEP_THROW_IF(segment != whole && count * units.blocks() > m_impl->kept_blocks, ExitCode::wrong_result,
                    "executor: segments of " + std::to_string(count * units.blocks()) + " blocks; expected at most " +
                        std::to_string(m_impl->kept_blocks));
  DetailedRegion const part([&] { return m_impl->describe(segment); });
  int const parts = int(m_impl->workers.count / count);
  if (parts > 1)
    run_breadth_first(space, m_impl->workers, units, count, parts, parameters);
  else
    run_depth_first(space, m_impl->workers, units, count, parameters);
}

void Executor::count_correct(Space const& space, DeviceDataset const& data, Interval images,
                             Buffer<const float> const& parameters, Buffer<std::int64_t> const& correct) {
  ScopedRegion const region("lockstep::executor::count_correct");
  check_parameters(m_impl->plan, parameters);
  int const classes = m_impl->plan.classes;
  auto const labels = data.labels;
  m_impl->for_each_block(
      space, "lockstep::executor::count_correct", data, images, parameters,
      KOKKOS_LAMBDA(std::int64_t begin, int count, float const* logits) {
        std::int64_t right = 0;
        for (int lane = 0; lane < count; ++lane) right += is_correct(classes, logits + lane, labels(begin + lane));
        Kokkos::atomic_add(&correct(0), right);
      });
}

void Executor::logits(Space const& space, DeviceDataset const& data, Interval images,
                      Buffer<const float> const& parameters, Buffer<float> const& out) {
  ScopedRegion const region("lockstep::executor::logits");
  int const classes = m_impl->plan.classes;
  check_logits(m_impl->plan, images, out);
  check_parameters(m_impl->plan, parameters);
  m_impl->for_each_block(
      space, "lockstep::executor::logits", data, images, parameters,
      KOKKOS_LAMBDA(std::int64_t begin, int count, float const* logits) {
        for (int lane = 0; lane < count; ++lane)
          for (int c = 0; c < classes; ++c) out((begin - images.begin + lane) * classes + c) = logits[c * lanes + lane];
      });
}

}  // namespace lockstep
