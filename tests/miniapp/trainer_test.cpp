// SPDX-License-Identifier: Apache-2.0
#include "miniapp/trainer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "comm/algorithms.hpp"
#include "kernels/error.hpp"
#include "kernels/random.hpp"

namespace lockstep {
namespace {

// Bright squares whose place tells the class, and noise: learnable in a few steps.
Dataset squares(std::int64_t count, std::uint64_t seed, int side = 12) {
  Dataset data;
  data.height = data.width = side;
  data.count               = count;
  data.sha256              = std::to_string(count) + "/" + std::to_string(seed);
  RandomStream random(seed, RandomPurpose::image, 99);
  for (std::int64_t i = 0; i < count; ++i) {
    int const label = int(random.below(4));
    data.labels.push_back(std::uint8_t(label));
    for (int row = 0; row < side; ++row)
      for (int column = 0; column < side; ++column)
        data.images.push_back(
            std::uint8_t(random.below(100) + (row / 6 == label / 2 && column / 6 == label % 2 ? 100 : 0)));
  }
  return data;
}

// Small enough that a step takes well under a millisecond; conv, pool with a floor, dense.
Network small_network() {
  auto network = Network::with_input({1, 12, 12});
  network.conv2d(3, 3).relu().average_pool2d(3).conv2d(5, 2).relu().dense(8).relu().dense(10);
  return network;
}

struct Outcome {
  std::vector<double> losses;
  std::string sha256;
  std::int64_t correct = 0, correct_alone = 0;
  bool replicas_equal = false;
};

Outcome train(int devices, TrainerOptions const& options, int steps, std::int64_t images = 150,
              std::int64_t test_images = 37) {
  comm::Communicator communicator{std::vector<Space>(std::size_t(devices))};
  Trainer trainer(communicator, small_network(), squares(images, 1), squares(test_images, 2), options);
  Outcome outcome;
  for (int step = 0; step < steps; ++step) outcome.losses.push_back(trainer.advance().loss);
  outcome.sha256         = trainer.parameters_sha256();
  outcome.correct        = trainer.count_correct();
  outcome.correct_alone  = trainer.count_correct_alone();
  outcome.replicas_equal = trainer.replicas_equal();
  for (int local = 1; local < devices; ++local) EXPECT_EQ(trainer.parameters(local), trainer.parameters(0));
  return outcome;
}

TrainerOptions options_with(std::int64_t batch, Reduction reduction = Reduction::exact,
                            std::string const& allreduce = "ring") {
  TrainerOptions options;
  options.batch     = batch;
  options.reduction = reduction;
  options.allreduce = allreduce;
  return options;
}

TEST(Trainer, ExactModeGivesTheSameBitsForEveryDeviceCountAndAlgorithm) {
  Outcome const one = train(1, options_with(64), 7);  // 64, 64, 22, 64, ...
  for (auto const& algorithm : comm::algorithm_names())
    for (int devices = 1; devices <= 8; ++devices) {
      Outcome const many = train(devices, options_with(64, Reduction::exact, algorithm), 7);
      EXPECT_EQ(many.sha256, one.sha256) << algorithm << " on " << devices;
      EXPECT_EQ(many.losses, one.losses) << algorithm << " on " << devices;
      EXPECT_EQ(many.correct, one.correct) << algorithm << " on " << devices;
      EXPECT_TRUE(many.replicas_equal) << algorithm << " on " << devices;
    }
}

TEST(Trainer, ExactModeDoesNotDependOnFusionOrMicroBatches) {
  std::string const expected = train(1, options_with(64), 4).sha256;
  for (std::int64_t bytes : {0, 1})
    for (std::int64_t accumulate : {1, 2, 3, 7, 64}) {
      auto options         = options_with(64);
      options.bucket_bytes = bytes;
      options.accumulate   = accumulate;
      EXPECT_EQ(train(3, options, 4).sha256, expected) << bytes << ' ' << accumulate;
    }
}

// Buckets of whole tensors, from the last; the small network's tensors have 27, 3, 60, 5, 160, 8, 80 and 10 values.
TEST(Buckets, AreFilledFromTheLastLayerWithWholeTensors) {
  Network const network = small_network();
  auto const texts      = [&](std::int64_t bytes) {
    std::vector<std::string> all;
    for (Bucket const& bucket : make_buckets(network, bytes))
      all.push_back(describe(bucket, network) + " @" + std::to_string(bucket.first_layer));
    return all;
  };
  using testing::ElementsAre;
  EXPECT_THAT(texts(0), ElementsAre("W1 to b4, loss @0"));
  EXPECT_THAT(texts(1), ElementsAre("b4, loss @7", "W4 @7", "b3 @5", "W3 @5", "b2 @3", "W2 @3", "b1 @0", "W1 @0"));
  EXPECT_THAT(texts(4 * 90), ElementsAre("W4 to b4, loss @7", "b3 @5", "W3 @5", "b1 to b2 @0", "W1 @0"));
  EXPECT_THAT(texts(4 * 89), ElementsAre("b4, loss @7", "b3 to W4 @5", "W3 @5", "b1 to b2 @0", "W1 @0"));
  EXPECT_THAT(texts(1 << 30), ElementsAre("W1 to b4, loss @0"));
  for (std::int64_t bytes : {0, 1, 100, 360, 700, 1 << 20}) {
    std::int64_t end = network.parameters + 1;
    int tensor       = int(network.tensors.size()) + 1;
    for (Bucket const& bucket : make_buckets(network, bytes)) {
      EXPECT_EQ(bucket.elements.end, end);
      EXPECT_EQ(bucket.tensors.end, tensor);
      end    = bucket.elements.begin;
      tensor = bucket.tensors.begin;
    }
    EXPECT_EQ(end, 0) << bytes;
    EXPECT_EQ(tensor, 0) << bytes;
  }
}

TEST(Trainer, NoBucketLayoutAndNoOverlapChangesABit) {
  std::string const expected = train(1, options_with(64), 5).sha256;
  for (int devices : {1, 2, 3, 8})
    for (std::int64_t bytes : {0, 1, 360})
      for (std::int64_t accumulate : {1, 3}) {
        std::string in_float;
        for (bool overlap : {false, true}) {
          auto options         = options_with(64, Reduction::exact, devices % 2 ? "ring" : "fused");
          options.bucket_bytes = bytes;
          options.overlap      = overlap;
          options.accumulate   = accumulate;
          EXPECT_EQ(train(devices, options, 5).sha256, expected) << devices << ' ' << bytes << ' ' << overlap;
          // Sums of floats depend on where a vector is cut, but not on when it is summed.
          options.reduction = Reduction::plain;
          auto const plain  = train(devices, options, 5).sha256;
          EXPECT_EQ(plain, overlap ? in_float : plain) << devices << ' ' << bytes;
          in_float = plain;
        }
      }
}

TEST(Trainer, SaysWhatOfTheCommunicationWasHidden) {
  comm::Communicator communicator(std::vector<Space>(3));
  for (bool overlap : {false, true}) {
    auto options         = options_with(64);
    options.bucket_bytes = 1;
    options.overlap      = overlap;
    Trainer trainer(communicator, small_network(), squares(150, 1), squares(10, 2), options);
    EXPECT_EQ(trainer.overlaps(), overlap);
    EXPECT_EQ(trainer.overlap_notice(), "");
    double hidden = 0;
    // On a busy machine the thread may get its turn only when the step waits for it.
    for (int step = 0; step < 50 || (overlap && hidden == 0 && step < 5000); ++step) {
      double const before     = communicator.seconds();
      StepResult const result = trainer.advance();
      EXPECT_NEAR(result.communication, communicator.seconds() - before, 1e-9);
      EXPECT_GE(result.hidden(), 0);
      EXPECT_GE(result.exposed, 0);
      hidden += result.hidden();
    }
    EXPECT_EQ(hidden > 0, overlap);
  }
  auto options    = options_with(64);
  options.overlap = true;
  Trainer trainer(communicator, small_network(), squares(150, 1), squares(10, 2), options);
  EXPECT_FALSE(trainer.overlaps());
  EXPECT_THAT(trainer.overlap_notice(), testing::HasSubstr("smaller buckets"));
}

TEST(Trainer, FloatModeStaysNearOneDevice) {
  for (auto const& algorithm : comm::algorithm_names()) {
    Outcome const one = train(1, options_with(64, Reduction::plain), 12);
    for (int devices : {2, 3, 5, 8}) {
      Outcome const many = train(devices, options_with(64, Reduction::plain, algorithm), 12);
      for (std::size_t step = 0; step < one.losses.size(); ++step)
        EXPECT_NEAR(many.losses[step], one.losses[step], 1e-5 * one.losses[step]) << algorithm << ' ' << devices;
      EXPECT_TRUE(many.replicas_equal) << algorithm << ' ' << devices;
    }
  }
}

TEST(LearningRate, FollowsItsRule) {
  LearningRate rate;
  rate.base       = 0.25;
  rate.base_batch = 64;
  EXPECT_EQ(rate.at(0, 1024, 10), 0.25);
  rate.rule = LearningRate::Rule::sqrt;
  EXPECT_EQ(rate.at(0, 1024, 10), 1);
  EXPECT_EQ(rate.at(0, 16, 10), 0.125);
  rate.rule = LearningRate::Rule::linear;
  EXPECT_EQ(rate.at(0, 1024, 10), 4);
  rate.warmup = 3;  // 30 steps of 0.125
  for (int step = 0; step < 30; ++step) EXPECT_DOUBLE_EQ(rate.at(step, 1024, 10), 0.25 + 0.125 * (step + 1)) << step;
  for (int step : {29, 30, 1000}) EXPECT_EQ(rate.at(step, 1024, 10), 4) << step;
  EXPECT_EQ(rate.at(7, 64, 10), 0.25) << "a ramp to the base rate is none";
  EXPECT_EQ(rate.text(), "0.25 at batch 64, linear, warm-up over 3 epochs");
}

TEST(Trainer, EveryStepHasItsOwnLearningRate) {
  auto options                     = options_with(40);  // 4 steps an epoch
  options.learning_rate.rule       = LearningRate::Rule::linear;
  options.learning_rate.base       = 0.125;
  options.learning_rate.base_batch = 10;
  options.learning_rate.warmup     = 2;
  comm::Communicator one{{Space()}};
  Trainer ramp(one, small_network(), squares(150, 1), squares(10, 2), options);
  for (int step = 0; step < 10; ++step) {
    auto fixed          = options_with(40);
    fixed.learning_rate = {step < 8 ? 0.125 + 0.375 * (step + 1) / 8 : 0.5};
    Trainer single(one, small_network(), squares(150, 1), squares(10, 2), fixed);
    single.restore(ramp.parameters(), step);
    single.advance();
    ramp.advance();
    ASSERT_EQ(single.parameters_sha256(), ramp.parameters_sha256()) << step;
  }
  for (int devices : {2, 5}) EXPECT_EQ(train(devices, options, 10).sha256, ramp.parameters_sha256()) << devices;
}

TEST(Trainer, HandlesFewerImagesThanDevices) {
  for (std::int64_t images : {1, 2, 5, 9}) {
    Outcome const one = train(1, options_with(4), 6, images, 3);
    for (int devices : {4, 8}) {
      Outcome const many = train(devices, options_with(4), 6, images, 3);
      EXPECT_EQ(many.sha256, one.sha256) << images << " images on " << devices;
      EXPECT_EQ(many.losses, one.losses) << images << " images on " << devices;
    }
  }
}

TEST(Trainer, CountsEachTestImageOnce) {
  for (std::int64_t images : {0, 1, 4, 5, 10, 37})
    for (int devices : {1, 2, 3, 7, 8}) {
      Outcome const outcome = train(devices, options_with(64), 3, 150, images);
      EXPECT_EQ(outcome.correct, outcome.correct_alone) << images << " images on " << devices;
      EXPECT_LE(outcome.correct, images);
    }
}

TEST(Trainer, Learns) {
  comm::Communicator communicator(std::vector<Space>(2));
  Trainer trainer(communicator, small_network(), squares(150, 1), squares(100, 2), options_with(16));
  // From weights of this size so small a network leaves its plateau at once.
  trainer.restore(normal_values(3, 0, trainer.network().parameters, 0.3), 0);
  double first = 0, last = 0;
  for (int step = 0; step < 200; ++step) (step == 0 ? first : last) = trainer.advance().loss;
  EXPECT_GT(first, 1.0);
  EXPECT_LT(last, 0.3);
  EXPECT_GE(trainer.count_correct(), 90);
}

TEST(Trainer, AShortLastBatchIsAMeanOverItsOwnImages) {
  // A nominal batch of 64 with only 22 images to fill it is a batch of 22.
  for (Reduction reduction : {Reduction::exact, Reduction::plain}) {
    Outcome const nominal = train(3, options_with(64, reduction), 3, 22);
    Outcome const own     = train(3, options_with(22, reduction), 3, 22);
    EXPECT_EQ(nominal.losses, own.losses);
    EXPECT_EQ(nominal.sha256, own.sha256);
  }
}

TEST(Trainer, NamesStepAndTensorWhenAGradientIsNotFinite) {
  for (auto const& [reduction, overlap] : {std::pair(Reduction::exact, false), std::pair(Reduction::plain, false),
                                           std::pair(Reduction::exact, true), std::pair(Reduction::plain, true)}) {
    comm::Communicator communicator(std::vector<Space>(3));
    auto options         = options_with(64, reduction);
    options.overlap      = overlap;
    options.bucket_bytes = overlap ? 1 : 0;
    Trainer trainer(communicator, small_network(), squares(150, 1), squares(10, 2), options);
    trainer.advance();
    auto parameters   = trainer.parameters();
    parameters.back() = std::numeric_limits<float>::quiet_NaN();  // of the last layer: all gradients show it
    trainer.restore(parameters, 1);
    try {
      trainer.advance();
      FAIL() << "a NaN went unnoticed";
    } catch (Error const& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("step 2: the gradient of W1 is not finite"));
      EXPECT_EQ(error.code(), ExitCode::wrong_result);
    }
    EXPECT_EQ(trainer.step(), 1);
    auto const after = trainer.parameters();
    EXPECT_TRUE(std::equal(after.begin(), after.end() - 1, parameters.begin()));
  }
}

TEST(Trainer, ContinuesFromARestoredStateWithTheSameBits) {
  comm::Communicator communicator(std::vector<Space>(2));
  Trainer trainer(communicator, small_network(), squares(150, 1), squares(10, 2), options_with(64));
  for (int step = 0; step < 4; ++step) trainer.advance();  // one step into the second epoch
  auto const saved = trainer.parameters();
  for (int step = 4; step < 8; ++step) trainer.advance();

  comm::Communicator other(std::vector<Space>(3));
  Trainer resumed(other, small_network(), squares(150, 1), squares(10, 2), options_with(64));
  resumed.restore(saved, 4);
  for (int step = 4; step < 8; ++step) resumed.advance();
  EXPECT_EQ(resumed.parameters_sha256(), trainer.parameters_sha256());
}

TEST(Trainer, RefusesImagesOfAnotherSize) {
  comm::Communicator communicator(std::vector<Space>(1));
  try {
    Trainer(communicator, small_network(), squares(8, 1, 14), squares(8, 2), options_with(4));
    FAIL();
  } catch (Error const& error) {
    EXPECT_STREQ(error.what(), "images of 14x14; the network expects 12x12");
  }
}

}  // namespace
}  // namespace lockstep
