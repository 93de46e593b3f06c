// SPDX-License-Identifier: Apache-2.0
#include "verify/training_run.hpp"

#include <algorithm>

#include "kernels/random.hpp"
#include "verify/cases.hpp"
#include "verify/reference.hpp"

namespace lockstep::verify {

namespace {

Setup setup_of(Context const& context, Network network, std::int64_t images, std::int64_t batch, std::int64_t steps) {
  Setup setup;
  setup.network                    = std::move(network);
  setup.train                      = noise(11, images, setup.network.input.height, setup.network.input.width);
  setup.test                       = noise(12, 23, setup.network.input.height, setup.network.input.width);
  setup.options.batch              = batch;
  setup.options.learning_rate.base = 0.1;
  setup.options.seed               = 3;
  setup.options.allreduce          = context.plant().algorithm;
  setup.options.bucket_bytes       = context.plant().bucket_bytes;
  setup.options.hook               = context.hook();
  setup.start                      = to_float(start_values(setup.network, 5));
  setup.steps                      = steps;
  return setup;
}

}  // namespace

Setup small_setup(Context const& context) {
  return setup_of(context, small_network(), 153, 60, 7);
}

Setup chapter_setup(Context const& context) {
  return setup_of(context, Network::chapter(), 40, 32, 3);
}

std::optional<Outcome> run_training(comm::Communicator& world, Setup const& setup, AfterStep const& after) {
  Trainer trainer(world, setup.network, setup.train, setup.test, setup.options);
  if (!setup.start.empty()) trainer.restore(setup.start, 0);
  StepResult result;
  std::optional<Outcome> failure;
  while (true) {
    if (auto found = after(trainer, result); found && !failure) failure = found;
    // Other processes need this one until the end.
    if (trainer.step() == setup.steps || (failure && world.processes() == 1)) break;
    result = trainer.advance();
  }
  Outcome const outcome = together(world, failure.value_or(Outcome::success("")));
  return outcome.passed ? std::nullopt : std::make_optional(outcome);
}

Trajectory record(comm::Communicator& world, Setup const& setup) {
  Trajectory trajectory;
  run_training(world, setup, [&](Trainer& trainer, StepResult const& result) -> std::optional<Outcome> {
    trajectory.losses.push_back(result.loss);
    trajectory.parameters.push_back(trainer.parameters());
    return std::nullopt;
  });
  return trajectory;
}

ReferenceTrajectory reference_training(Setup const& setup) {
  ReferenceNetwork const reference(setup.network);
  std::int64_t const count = setup.train.count, pixels = setup.network.input.size();
  ReferenceTrajectory trajectory;
  Values parameters = to_double(setup.start);
  trajectory.losses.push_back(0);
  trajectory.parameters.push_back(parameters);
  std::int64_t const per_epoch = (count + setup.options.batch - 1) / setup.options.batch;
  for (std::int64_t step = 0; step < setup.steps; ++step) {
    auto const order         = permutation(count, setup.options.seed, std::uint64_t(step / per_epoch));
    std::int64_t const begin = step % per_epoch * setup.options.batch;
    std::int64_t const end   = std::min(count, begin + setup.options.batch);
    Values gradient(parameters.size(), 0.0);
    double loss = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      std::int64_t const image = order[std::size_t(i)];
      loss += reference.add_gradient(image_values(setup.train.images, pixels, image),
                                     setup.train.labels[std::size_t(image)], parameters, gradient);
    }
    for (std::size_t p = 0; p < parameters.size(); ++p)
      parameters[p] -= setup.options.learning_rate.base * gradient[p] / double(end - begin);
    trajectory.losses.push_back(loss / double(end - begin));
    trajectory.parameters.push_back(parameters);
  }
  return trajectory;
}

std::string describe(comm::Communicator const& world, TrainerOptions const& options) {
  std::string text = "k = " + std::to_string(world.size()) + ", " + options.allreduce;
  if (world.processes() > 1) text += ", " + world.transport();
  if (options.bucket_bytes > 0) text += ", buckets of " + std::to_string(options.bucket_bytes) + " bytes";
  if (options.overlap) text += ", overlap";
  if (options.accumulate > 1) text += ", " + std::to_string(options.accumulate) + " micro-batches";
  return text;
}

}  // namespace lockstep::verify
