// SPDX-License-Identifier: Apache-2.0
// Short training runs that checks compare.
#pragma once
#include <optional>
#include <vector>

#include "miniapp/data/dataset.hpp"
#include "miniapp/trainer.hpp"
#include "verify/check.hpp"
#include "verify/compare.hpp"
#include "verify/values.hpp"

namespace lockstep::verify {

struct Setup {
  Network network;
  Dataset train, test;
  TrainerOptions options;
  std::vector<float> start;  // parameters; empty: the trainer's own
  std::int64_t steps = 0;
};

// The small network on 153 noise images in minibatches of 60, 60 and 33, for a little over two epochs: 30 shards of two
// images, and 17 of which the last has one.
Setup small_setup(Context const& context);
// The chapter's network, three steps of 32, 8 and 32 images.
Setup chapter_setup(Context const& context);

// One state per step, from the start (index 0, no loss).
struct Trajectory {
  std::vector<double> losses;                  // mean over the minibatch
  std::vector<std::vector<float>> parameters;  // of the first local device
};

// Called after each step (and at step 0) with the trainer, on all processes alike. The first failure is the run's.
using AfterStep = std::function<std::optional<Outcome>(Trainer&, StepResult const&)>;
std::optional<Outcome> run_training(comm::Communicator& world, Setup const& setup, AfterStep const& after);
Trajectory record(comm::Communicator& world, Setup const& setup);

// The same in float64 plain loops: gradient descent by the recipe, one image after the other. The order of an epoch's
// images is the program's own; the check `samples` is for that.
struct ReferenceTrajectory {
  std::vector<double> losses;
  std::vector<Values> parameters;
};
ReferenceTrajectory reference_training(Setup const& setup);

// "k = 3, ring, buckets of 400 bytes, overlap".
std::string describe(comm::Communicator const& world, TrainerOptions const& options);

}  // namespace lockstep::verify
