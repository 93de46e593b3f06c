// SPDX-License-Identifier: Apache-2.0
// Training by graphs against a recorded fake of a GPU's runtime (fake_gpu.hpp), whose kernels the host runs: what is
// captured when, launched how often, and that a step that is enqueued once and launched again has the bits of a step
// that the host follows. What a real capture makes of kernels is not tested here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "kernels/error.hpp"
#include "kernels/random.hpp"
#include "miniapp/trainer.hpp"
#include "tests/comm/fake_gpu.hpp"

namespace lockstep {
namespace {

Dataset noise(std::int64_t count, std::uint64_t seed) {
  Dataset data;
  data.height = data.width = 8;
  data.count               = count;
  data.sha256              = std::to_string(seed);
  RandomStream random(seed, RandomPurpose::image, 7);
  for (std::int64_t i = 0; i < count; ++i) {
    data.labels.push_back(std::uint8_t(random.below(4)));
    for (int pixel = 0; pixel < 64; ++pixel) data.images.push_back(std::uint8_t(random.below(256)));
  }
  return data;
}

Network small_network() {
  auto network = Network::with_input({1, 8, 8});
  network.conv2d(3, 3).relu().average_pool2d(2).dense(6).relu().dense(4);
  return network;
}

// Two full minibatches of 64 an epoch and one of 22; another learning rate every step.
TrainerOptions options_with(Reduction reduction, bool graph) {
  TrainerOptions options;
  options.batch                    = 64;
  options.reduction                = reduction;
  options.graph                    = graph;
  options.learning_rate.rule       = LearningRate::Rule::linear;
  options.learning_rate.base       = 0.125;
  options.learning_rate.base_batch = 16;
  options.learning_rate.warmup     = 4;
  return options;
}

struct FakeTraining {
  FakeTraining(int devices, TrainerOptions const& options, comm::CommunicatorOptions world_options = {}) {
    fake.run_at_once = true;
    std::vector<int> gpus;
    for (int d = 0; d < devices; ++d) gpus.push_back(d);
    world_options.alone   = true;
    world_options.devices = std::make_shared<comm::DeviceSetup const>(fake.setup(gpus));
    world   = std::make_unique<comm::Communicator>(std::vector<Space>(std::size_t(devices)), world_options);
    trainer = std::make_unique<Trainer>(*world, small_network(), noise(150, 1), noise(40, 2), options);
  }
  std::int64_t noted(std::string const& line) const { return std::count(fake.log.begin(), fake.log.end(), line); }

  comm::FakeGpus fake;
  std::unique_ptr<comm::Communicator> world;
  std::unique_ptr<Trainer> trainer;
};

TEST(FakeGraph, StepsHaveTheBitsOfStepsThatTheHostFollows) {
  for (Reduction const reduction : {Reduction::exact, Reduction::plain})
    for (int const devices : {1, 2, 3, 8})
      for (char const* const algorithm : {"ring", "double_tree", "fused"})
        for (std::int64_t const accumulate : {1, 3}) {
          auto options         = options_with(reduction, false);
          options.allreduce    = algorithm;
          options.accumulate   = accumulate;
          options.bucket_bytes = accumulate == 3 ? 1 : 0;
          FakeTraining plain(devices, options);
          options.graph = true;
          FakeTraining graph(devices, options);
          for (int turn = 0; turn < 11; ++turn) {  // into the fourth epoch
            StepResult const one = plain.trainer->advance(), other = graph.trainer->advance();
            ASSERT_EQ(one.loss, other.loss) << turn;
            ASSERT_EQ(one.images, other.images);
            ASSERT_EQ(one.step, other.step);
            ASSERT_EQ(plain.trainer->parameters_sha256(), graph.trainer->parameters_sha256())
                << turn << ' ' << devices << ' ' << algorithm << ' ' << accumulate;
            if (turn != 6) continue;
            EXPECT_EQ(plain.trainer->count_correct(), graph.trainer->count_correct());
            auto const values = normal_values(5, 0, plain.trainer->network().parameters, 0.1);
            for (auto* const each : {&plain, &graph}) each->trainer->restore(values, 4);
          }
          EXPECT_TRUE(graph.trainer->replicas_equal());
          for (int local = 1; local < devices; ++local)
            EXPECT_EQ(graph.trainer->parameters(local), graph.trainer->parameters(0));
        }
}

TEST(FakeGraph, IsCapturedAtTheSecondFullMinibatchAndLaunchedAtEveryLaterOne) {
  FakeTraining run(2, options_with(Reduction::exact, true));
  std::vector<std::int64_t> captures, launches;
  for (int step = 0; step < 9; ++step) {
    run.trainer->advance();
    captures.push_back(run.noted("s0: begin capture"));
    launches.push_back(run.noted("s0: launch"));
  }
  EXPECT_THAT(captures, testing::ElementsAre(0, 1, 1, 1, 1, 1, 1, 1, 1));
  EXPECT_THAT(launches, testing::ElementsAre(0, 1, 1, 2, 3, 3, 4, 5, 5));
  run.trainer.reset();
  EXPECT_EQ(run.fake.live_programs, 0);
  EXPECT_EQ(run.fake.live_graphs, 0);
}

TEST(FakeGraph, WhatCannotBeCapturedEndsTheRunWithOneLine) {
  FakeTraining run(2, options_with(Reduction::exact, true));
  run.fake.failures["end_capture"] = 9;
  run.trainer->advance();
  std::string const before = run.trainer->parameters_sha256();
  try {
    run.trainer->advance();
    FAIL() << "nothing was said";
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), ExitCode::environment);
    EXPECT_STREQ(error.what(),
                 "found devices' work that cannot be made a graph (ending a capture: fake error 9); expected work that "
                 "needs no host in between");
  }
  EXPECT_EQ(run.trainer->step(), 1);
  EXPECT_EQ(run.trainer->parameters_sha256(), before);
}

TEST(FakeGraph, NamesStepAndTensorOfAGradientThatIsNotFiniteAndKeepsTheParameters) {
  for (Reduction const reduction : {Reduction::exact, Reduction::plain})
    for (int const steps : {0, 1, 3}) {  // enqueued, captured, launched again
      FakeTraining run(3, options_with(reduction, true));
      for (int step = 0; step < steps; ++step) run.trainer->advance();
      auto parameters   = run.trainer->parameters();
      parameters.back() = std::numeric_limits<float>::infinity();
      run.trainer->restore(parameters, steps);
      try {
        run.trainer->advance();
        FAIL() << "it went unnoticed";
      } catch (Error const& error) {
        EXPECT_THAT(error.what(),
                    testing::HasSubstr("step " + std::to_string(steps + 1) + ": the gradient of W1 is not"));
        EXPECT_EQ(error.code(), ExitCode::wrong_result);
      }
      EXPECT_EQ(run.trainer->step(), steps);
      for (int local = 0; local < 3; ++local) EXPECT_EQ(run.trainer->parameters(local), parameters) << local;
    }
}

// One transfer less than the sum of the gradients needs.
TEST(FakeGraph, SeesReplicasThatDiffer) {
  std::vector<Divergence> found;
  for (bool const graph : {false, true}) {
    int left = -1;  // schedules until the one that is spoilt
    comm::CommunicatorOptions world;
    world.alter_schedule = [&left](comm::Schedule& schedule) {
      if (left-- == 0) schedule.transfers.pop_back();
    };
    FakeTraining run(3, options_with(Reduction::exact, graph), world);
    left = 1;  // after the exponents'
    for (int step = 0; step < 4; ++step) run.trainer->advance();
    found.push_back(run.trainer->divergence());
  }
  EXPECT_TRUE(found[0].found);
  EXPECT_EQ(found[1].found, found[0].found);
  EXPECT_EQ(found[1].step, found[0].step);
  EXPECT_EQ(found[1].tensor, found[0].tensor);
  EXPECT_EQ(found[1].ranks, found[0].ranks);
}

TEST(FakeGraph, IsRefusedWhereTheHostIsNeeded) {
  auto const refusal = [](TrainerOptions const& options, comm::CommunicatorOptions const& world = {}) -> std::string {
    try {
      FakeTraining run(2, options, world);
    } catch (Error const& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      return error.what();
    }
    return "";
  };
  auto options = options_with(Reduction::exact, true);
  EXPECT_EQ(refusal(options), "");
  options.overlap = true;
  EXPECT_EQ(refusal(options), "steps cannot be a graph: found overlap with backward, expected none");
  options      = options_with(Reduction::exact, true);
  options.hook = [](StepState&) {};
  EXPECT_EQ(refusal(options), "steps cannot be a graph: found a hook, expected none");
  comm::CommunicatorOptions world;
  world.transport = comm::Transport::nccl;
  EXPECT_THAT(refusal(options_with(Reduction::exact, true), world), testing::HasSubstr("found sums over NCCL"));
  Kokkos::Tools::Experimental::set_push_region_callback([](char const*) {});
  std::string const heard = refusal(options_with(Reduction::exact, true));
  Kokkos::Tools::Experimental::set_push_region_callback(nullptr);
  EXPECT_THAT(heard, testing::HasSubstr("found a tool that listens to Kokkos"));
}

}  // namespace
}  // namespace lockstep
