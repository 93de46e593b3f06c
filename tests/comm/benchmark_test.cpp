// SPDX-License-Identifier: Apache-2.0
// The benchmark's checks see what they are for: schedules broken by one transfer, and a schedule that is right but adds
// in another order than its proof says.
#include <gtest/gtest.h>

#include <map>

#include "miniapp/allreduce_benchmark.hpp"

using namespace lockstep;
using namespace lockstep::comm;

namespace {

std::vector<BenchmarkRow> rows_with(std::function<void(Schedule&)> const& alter, std::string const& algorithm) {
  CommunicatorOptions options;
  options.alone          = true;
  options.alter_schedule = alter;
  Communicator world(std::vector<Space>(4), options);
  BenchmarkOptions benchmark;
  benchmark.sizes      = {400, 4000};
  benchmark.algorithms = {algorithm};
  benchmark.samples    = 2;
  benchmark.warm_up    = 1;
  return run_benchmark(world, Probe(world, 4096, 1), benchmark, [](BenchmarkRow const&) {});
}

TEST(Benchmark, RightSchedulesPass) {
  for (auto const& name : algorithm_names())
    for (auto const& row : rows_with({}, name)) {
      EXPECT_TRUE(row.right()) << name;
      EXPECT_TRUE(row.proved) << name;
      EXPECT_EQ(row.rounding_wrong, 0) << name;
      EXPECT_GT(row.in_place.median, 0) << name;
      EXPECT_GT(row.predicted.sum(), 0) << name;
    }
}

// Not how good the prediction is, which needs an idle machine: that nothing is off by a factor of ten. Whatever else
// runs may disturb one measurement, or the next.
TEST(Benchmark, PredictionsAreOfTheRightOrder) {
  CommunicatorOptions options;
  options.alone = true;
  Communicator world(std::vector<Space>(2), options);
  BenchmarkOptions benchmark;
  benchmark.sizes        = {1 << 18, 1 << 22};
  benchmark.algorithms   = {"naive", "ring", "direct", "fused"};
  benchmark.out_of_place = false;
  benchmark.samples      = 9;
  std::string off        = "not measured";
  for (int attempt = 0; attempt < 5 && !off.empty(); ++attempt) {
    off.clear();
    for (auto const& row : run_benchmark(world, Probe(world, 1 << 22), benchmark, [](BenchmarkRow const&) {})) {
      EXPECT_EQ(row.bound.largest(), BoundKind::memory);
      double const measured = row.in_place.median * 1e-6, predicted = row.predicted.sum(), bound = row.bound.max();
      if (predicted >= 8 * measured || predicted <= measured / 8 || bound >= 4 * measured ||
          (row.algorithm == "fused" && bound <= measured / 20))
        off += row.algorithm + ' ' + std::to_string(row.bytes) + ": measured " + std::to_string(measured) +
               ", predicted " + std::to_string(predicted) + ", bound " + std::to_string(bound) + '\n';
    }
  }
  EXPECT_EQ(off, "");
}

// Bounds and predictions come from a row's own buffers, measured beside its calls, not from the probe at the start.
TEST(Benchmark, BoundsAndPredictionsAreMeasuredInTurn) {
  CommunicatorOptions options;
  options.alone = true;
  Communicator world(std::vector<Space>(3), options);
  Probe const probe(world, 1 << 20, 2);
  BenchmarkOptions benchmark;
  benchmark.sizes      = {0, 1 << 18, 1 << 19, 1 << 20};
  benchmark.algorithms = {"ring", "fused"};
  benchmark.samples    = 3;
  std::map<std::int64_t, double> bounds;
  int bounds_differ = 0, predictions_differ = 0;  // two measurements may agree to the clock's last digit, not all
  for (auto const& row : run_benchmark(world, probe, benchmark, [](BenchmarkRow const&) {})) {
    EXPECT_TRUE(row.right()) << row.algorithm << ' ' << row.bytes;
    if (row.bytes == 0) {
      EXPECT_EQ(row.bound.memory, 0);
      continue;
    }
    EXPECT_GT(row.bound.memory, 0);
    EXPECT_GT(row.predicted.memory, 0);
    bounds_differ += row.bound.memory != probe.bounds({3, row.count}, 4).memory;
    predictions_differ += row.predicted.memory != probe.predict(row.algorithm, {3, row.count}, 4).memory;
    auto const [bound, first] = bounds.emplace(row.bytes, row.bound.memory);
    EXPECT_TRUE(first || bound->second == row.bound.memory) << "one bound for all algorithms";
  }
  EXPECT_EQ(bounds.size(), 3u);
  EXPECT_GT(bounds_differ, 0);
  EXPECT_GT(predictions_differ, 3);  // of ring's, too
}

TEST(Benchmark, SharesOfMemoryBoundsAreOfTheSameRounds) {
  CommunicatorOptions options;
  options.alone = true;
  Communicator world(std::vector<Space>(2), options);
  Probe const probe(world, 1 << 18, 2);
  for (int samples : {1, 9}) {
    BenchmarkOptions benchmark;
    benchmark.sizes      = {1 << 18};
    benchmark.algorithms = {"ring", "fused"};
    benchmark.samples    = samples;
    for (auto const& row : run_benchmark(world, probe, benchmark, [](BenchmarkRow const&) {})) {
      ASSERT_EQ(row.bound.largest(), BoundKind::memory);
      double const fastest  = row.bound.memory * 1e6;
      double const rounding = 1e-9, least = fastest / row.in_place.median;
      if (samples == 1) {
        EXPECT_NEAR(row.share_of_bound(), least, rounding) << row.algorithm;
      }
      EXPECT_GE(row.share_of_bound(), least - rounding) << row.algorithm;
    }
  }
}

TEST(Benchmark, ADroppedTransferIsSeen) {
  for (std::size_t which : {0u, 3u, 7u})
    for (auto const& row :
         rows_with([=](Schedule& s) { s.transfers.erase(s.transfers.begin() + long(which)); }, "ring")) {
      EXPECT_GT(row.in_place.wrong, 0);
      EXPECT_GT(row.out_of_place.wrong, 0);
      EXPECT_FALSE(row.right());
    }
}

TEST(Benchmark, AReductionMadeACopyIsSeen) {
  for (auto const& row : rows_with([](Schedule& s) { s.transfers.front().action = Action::copy; }, "tree"))
    EXPECT_GT(row.in_place.wrong, 0);
}

// Sums that are exact in any order cannot tell; those that round can.
TEST(Benchmark, AnotherOrderIsSeenByRoundingInputsOnly) {
  auto const naive_instead = [](Schedule& s) {
    auto const name = s.algorithm;
    s               = make_schedule("naive", {s.ranks, 1000, 0});
    s.algorithm     = name;
  };
  for (auto const& row : rows_with(naive_instead, "tree")) {
    EXPECT_EQ(row.in_place.wrong, 0);
    EXPECT_TRUE(row.same_bits);
    EXPECT_GT(row.rounding_wrong, 0);
    EXPECT_FALSE(row.right());
  }
}

}  // namespace
