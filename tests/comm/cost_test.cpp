// SPDX-License-Identifier: Apache-2.0
#include "comm/cost.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>

namespace {

using namespace lockstep::comm;

NetworkModel network(double alpha, double beta, double gamma) {
  NetworkModel model;
  model.link[inside] = model.link[between] = {alpha, beta};
  model.gamma                              = gamma;
  return model;
}

struct Row {
  char const* algorithm;
  int ranks;
  double alpha, beta, gamma;  // in units of messages, n, n
};

TEST(Cost, TableOfTheAlgorithms) {
  std::vector<Row> const rows = {
      {"naive", 2, 2, 2, 1},
      {"tree", 2, 2, 2, 1},
      {"ring", 2, 2, 1, .5},
      {"recursive_doubling", 2, 1, 1, 1},
      {"halving_doubling", 2, 2, 1, .5},
      {"naive", 3, 4, 4, 2},
      {"tree", 3, 4, 4, 2},
      {"ring", 3, 4, 1.333, .667},
      {"recursive_doubling", 3, 3, 3, 2},
      {"halving_doubling", 3, 4, 3, 1.5},
      {"naive", 4, 6, 6, 3},
      {"tree", 4, 4, 4, 2},
      {"ring", 4, 6, 1.5, .75},
      {"recursive_doubling", 4, 2, 2, 2},
      {"halving_doubling", 4, 4, 1.5, .75},
      {"naive", 5, 8, 8, 4},
      {"tree", 5, 6, 6, 3},
      {"ring", 5, 8, 1.6, .8},
      {"recursive_doubling", 5, 4, 4, 3},
      {"halving_doubling", 5, 6, 3.5, 1.75},
      {"naive", 6, 10, 10, 5},
      {"tree", 6, 6, 6, 3},
      {"ring", 6, 10, 1.667, .833},
      {"recursive_doubling", 6, 4, 4, 3},
      {"halving_doubling", 6, 6, 3.5, 1.75},
      {"naive", 7, 12, 12, 6},
      {"tree", 7, 6, 6, 3},
      {"ring", 7, 12, 1.714, .857},
      {"recursive_doubling", 7, 4, 4, 3},
      {"halving_doubling", 7, 6, 3.5, 1.75},
      {"naive", 8, 14, 14, 7},
      {"tree", 8, 6, 6, 3},
      {"ring", 8, 14, 1.75, .875},
      {"recursive_doubling", 8, 3, 3, 3},
      {"halving_doubling", 8, 6, 1.75, .875},
      {"direct", 8, 14, 1.75, .875},
      {"hierarchical", 8, 14, 1.75, .875},
      {"bidirectional_ring", 8, 28, 1.75, .875},
  };
  std::int64_t const n = 840 * 16;  // divisible by all of them, and by their chunks
  for (auto const& row : rows) {
    ScheduleRequest const request{row.ranks, n};
    auto const cost = [&](NetworkModel const& model) { return predict(row.algorithm, request, 1, model).sum(); };
    EXPECT_NEAR(cost(network(1, 0, 0)), row.alpha, 5e-4) << row.algorithm << ' ' << row.ranks;
    EXPECT_NEAR(cost(network(0, 1.0 / n, 0)), row.beta, 5e-4) << row.algorithm << ' ' << row.ranks;
    EXPECT_NEAR(cost(network(0, 0, 1.0 / n)), row.gamma, 5e-4) << row.algorithm << ' ' << row.ranks;
    auto const listed = predict(make_schedule(row.algorithm, request), request, 1, network(1e-6, 1e-9, 1e-10));
    auto const quick  = predict(row.algorithm, request, 1, network(1e-6, 1e-9, 1e-10));
    EXPECT_DOUBLE_EQ(listed.sum(), quick.sum()) << row.algorithm;
    EXPECT_DOUBLE_EQ(quick.sum(), cost(network(1e-6, 1e-9, 1e-10)));
  }
}

TEST(Cost, HierarchicalUsesBothKindsOfLink) {
  int const g = 4, m = 3;
  std::int64_t const n = 12 * 10;
  ScheduleRequest request{g * m, n};
  request.ranks_per_node = g;
  NetworkModel model;
  model.link[inside]  = {1, 0};
  model.link[between] = {100, 0};
  EXPECT_DOUBLE_EQ(predict("hierarchical", request, 1, model).sum(), 2 * (g - 1) * 1 + 2 * (m - 1) * 100);
  model.link[inside]  = {0, 1.0 / n};
  model.link[between] = {0, 100.0 / n};
  EXPECT_DOUBLE_EQ(predict("hierarchical", request, 1, model).sum(), 2.0 * (g - 1) / g + 100 * 2.0 * (m - 1) / (m * g));
  // A flat ring waits for its slowest link in every step.
  EXPECT_DOUBLE_EQ(predict("ring", request, 1, model).sum(), 100 * 2.0 * (g * m - 1) / (g * m));
}

TEST(Cost, DoubleTreeApproachesTwoVectors) {
  // 4 (L + m) messages, 2 (L + m) / m vectors, (L + m) / m added, at most.
  for (int k : {2, 3, 7, 8, 33, 64})
    for (int m : {1, 8, 512}) {
      int levels = 0;
      while (1 << levels < k) ++levels;
      std::int64_t const n = 2 * 512 * 8;
      ScheduleRequest request{k, n};
      request.pipeline = m;
      auto const cost  = [&](NetworkModel const& model) { return predict("double_tree", request, 1, model).sum(); };
      EXPECT_LE(cost(network(1, 0, 0)), 4 * (levels + m)) << k << ' ' << m;
      EXPECT_LE(cost(network(0, 1.0 / n, 0)), 2.0 * (levels + m) / m + 1e-9) << k << ' ' << m;
      EXPECT_LE(cost(network(0, 0, 1.0 / n)), 1.0 * (levels + m) / m + 1e-9) << k << ' ' << m;
      EXPECT_GE(cost(network(0, 1.0 / n, 0)), 2.0 * (k - 1) / k - 1e-9) << k << ' ' << m;
    }
}

// Bytes at which `later` overtakes `sooner`.
double crossover(char const* sooner, char const* later, int ranks, NetworkModel const& model) {
  std::int64_t low = ranks, high = 1 << 30;
  while (high - low > 1) {
    std::int64_t const middle = (low + high) / 2;
    ScheduleRequest const request{ranks, middle};
    (predict(sooner, request, 1, model).sum() <= predict(later, request, 1, model).sum() ? low : high) = middle;
  }
  return double(high);
}

TEST(Cost, Crossovers) {
  auto const model  = network(1e-6, 1e-11, 0);
  double const unit = 1e-6 / 1e-11;  // alpha / beta
  EXPECT_NEAR(crossover("recursive_doubling", "halving_doubling", 4, model) / unit, 4, .01);
  EXPECT_NEAR(crossover("recursive_doubling", "halving_doubling", 8, model) / unit, 2.4, .01);
  EXPECT_NEAR(crossover("recursive_doubling", "ring", 4, model) / unit, 8, .01);
  EXPECT_NEAR(crossover("recursive_doubling", "ring", 8, model) / unit, 8.8, .01);
  for (int k : {4, 5, 8}) {
    auto const tiny = [&](char const* name) { return predict(name, {k, 8}, 1, model).sum(); };
    EXPECT_LT(tiny("recursive_doubling"), tiny("halving_doubling"));
    EXPECT_LT(tiny("halving_doubling"), tiny("ring"));
  }
}

// The worked examples of Dive into Deep Learning's chapters on training on several GPUs and on parameter servers: 160
// MB of gradients on 4 GPUs, 16 GB/s each way.
TEST(Cost, WorkedExamplesOfTheBook) {
  auto const pcie            = network(0, 1 / 16e9, 0);
  std::int64_t const weights = 40'000'000;                                   // of 4 bytes
  EXPECT_NEAR(predict("naive", {4, weights}, 4, pcie).sum(), 60e-3, 1e-9);   // 30 in, 30 out
  EXPECT_NEAR(predict("direct", {4, weights}, 4, pcie).sum(), 15e-3, 1e-9);  // four parts, each added on another GPU
  EXPECT_NEAR(predict("naive", {5, weights}, 4, pcie).sum(), 80e-3, 1e-9);   // the CPU is rank 0: four come, four go
  // A ring of 8, three NVLinks of 18 GB/s: "approximately 6 ms" is the limit of 2 (k - 1) / k n for many GPUs.
  auto const nvlink = network(0, 1 / 54e9, 0);
  EXPECT_NEAR(predict("ring", {8, weights}, 4, nvlink).sum(), 5.185e-3, 1e-6);
  EXPECT_NEAR(predict("ring", {65536, weights}, 4, nvlink).sum(), 6e-3, .1e-3);
}

TEST(Cost, PortsLetARankUseSeveralLinks) {
  auto one = network(1, 1e-3, 0), two = one;
  two.ports = 2;
  ScheduleRequest const request{8, 1600};
  auto const both_ways = predict("bidirectional_ring", request, 1, one), ring = predict("ring", request, 1, one);
  EXPECT_DOUBLE_EQ(both_ways.link, ring.link);
  EXPECT_DOUBLE_EQ(predict("bidirectional_ring", request, 1, two).link, ring.link / 2);
  EXPECT_DOUBLE_EQ(predict("bidirectional_ring", request, 1, two).latency, ring.latency);
  EXPECT_DOUBLE_EQ(predict("ring", request, 1, two).sum(), ring.sum())
      << "one message at a time has no use for two ports";
  auto many  = one;
  many.ports = 7;
  EXPECT_DOUBLE_EQ(predict("direct", request, 1, many).latency, 2);
}

TEST(Cost, SharedMemoryTraffic) {
  std::int64_t const n = 840 * 4;
  for (int k : {2, 4, 8}) {
    ScheduleRequest const request{k, n};
    auto const traffic = [&](char const* name, MemoryPath path) {
      SharedMemoryModel model;
      model.bandwidth = n;
      model.path      = path;
      return predict(name, request, 1, model).sum();
    };
    for (char const* name : {"naive", "tree", "ring", "halving_doubling"}) {
      EXPECT_NEAR(traffic(name, MemoryPath::direct), 5 * (k - 1), 1e-9) << name;
      EXPECT_NEAR(traffic(name, MemoryPath::single_copy), 7 * (k - 1), 1e-9) << name;
      EXPECT_NEAR(traffic(name, MemoryPath::staged), 11 * (k - 1), 1e-9) << name;
    }
    int const levels = k == 2 ? 1 : k == 4 ? 2 : 3;
    EXPECT_NEAR(traffic("recursive_doubling", MemoryPath::direct), 5 * k * levels, 1e-9)
        << "what arrives waits until its place is read";
    SharedMemoryModel model;
    model.bandwidth = n;
    EXPECT_NEAR(predict_fused(request, 1, model).sum(), 2 * k, 1e-9);
    EXPECT_NEAR(lower_bounds(request, 1, model).max(), 2 * k, 1e-9);
  }
  // One core adds all of the naive sum; the ring's ranks share the work until there are fewer cores than ranks.
  SharedMemoryModel model;
  model.bandwidth      = 4.0 * n;
  model.core_bandwidth = 1.0 * n;
  EXPECT_NEAR(predict("naive", {4, n}, 1, model).memory, 3 * 3 + 2, 1e-9);
  EXPECT_NEAR(predict("ring", {4, n}, 1, model).memory, 5 * 3 / 4.0, 1e-9);
  model.cores = 2;
  EXPECT_NEAR(predict("ring", {4, n}, 1, model).memory, 5 * 3 / 2.0, 1e-9);
  model.sync = 10;
  EXPECT_NEAR(predict("ring", {4, n}, 1, model).latency, 60, 1e-9);
  EXPECT_NEAR(predict("direct", {4, n}, 1, model).latency, 20, 1e-9) << "steps without messages need no waiting";
}

TEST(Cost, SharedMemoryTakesLongerWithMoreToDo) {
  SharedMemoryModel slow;
  slow.bandwidth      = 1e10;
  slow.core_bandwidth = 8e9;
  slow.cores          = 4;
  slow.sync           = 1e-6;
  for (int k : {2, 3, 4, 8})
    for (auto const& name : algorithm_names()) {
      double last = 0;
      for (std::int64_t n = 1; n < 100'000'000; n *= 3) {
        ScheduleRequest request{k, n};
        request.pipeline  = 4;
        double const time = predict(name, request, 4, slow).sum();
        EXPECT_GE(time, last) << name << ' ' << k << ' ' << n;
        last = time;
        // Each of the model's terms costs something, and only that.
        for (auto [better, worse] :
             {std::pair(&SharedMemoryModel::bandwidth, false), std::pair(&SharedMemoryModel::core_bandwidth, false),
              std::pair(&SharedMemoryModel::sync, true), std::pair(&SharedMemoryModel::copy, true),
              std::pair(&SharedMemoryModel::add, true)}) {
          auto other = slow;
          other.*better *= 2;
          double const then = predict(name, request, 4, other).sum();
          EXPECT_TRUE(worse ? then >= time : then <= time) << name << ' ' << k << ' ' << n;
          EXPECT_LE(std::max(then, time), 2 * std::min(then, time) * (1 + 1e-12)) << name << ' ' << k << ' ' << n;
        }
      }
      double const before = predict(name, {k, 1 << 20}, 4, slow).sum();
      auto other          = slow;
      other.add *= 2;
      EXPECT_GT(predict(name, {k, 1 << 20}, 4, other).sum(), before) << name;
      other = slow;
      other.copy *= 2;
      EXPECT_GT(predict(name, {k, 1 << 20}, 4, other).sum(), before) << name;
    }
  SharedMemoryModel fitted = slow;
  fitted.update *= 3;
  EXPECT_DOUBLE_EQ(predict_fused({4, 1 << 20}, 4, fitted).memory, 3 * predict_fused({4, 1 << 20}, 4, slow).memory);
}

TEST(Cost, NothingBeatsTheLowerBounds) {
  for (int ports : {1, 2, 3})
    for (int g : {0, 1, 4})
      for (int k : {1, 2, 3, 4, 8, 12, 16, 60})
        for (std::int64_t n : {0, 1, 13, 100'000, 10'000'000}) {
          NetworkModel model;
          model.link[inside]  = {1e-6, 1e-11};
          model.link[between] = {5e-6, 1e-10};
          model.gamma         = 3e-11;
          model.ports         = ports;
          ScheduleRequest request{k, n};
          request.ranks_per_node = g;
          auto const bounds      = lower_bounds(request, 4, model);
          SharedMemoryModel memory;
          memory.bandwidth = 1e10;
          memory.sync      = 1e-6;
          for (auto const& name : algorithm_names()) {
            auto const time = predict(name, request, 4, model);
            EXPECT_GE(time.sum() * (1 + 1e-12), bounds.max())
                << name << ' ' << k << ' ' << n << ' ' << g << ' ' << ports;
            if (n >= k) {
              EXPECT_GE(predict(name, request, 4, memory).sum(), lower_bounds(request, 4, memory).max())
                  << name << ' ' << k;
            }
          }
        }
}

TEST(Cost, TheBoundThatBinds) {
  auto const binds = [](NetworkModel const& model, std::int64_t n) { return lower_bounds({8, n}, 4, model).largest(); };
  EXPECT_EQ(binds(network(1e-6, 1e-10, 1e-11), 1), BoundKind::latency);
  EXPECT_EQ(binds(network(1e-6, 1e-10, 1e-11), 1 << 24), BoundKind::link);
  EXPECT_EQ(binds(network(1e-6, 1e-12, 1e-10), 1 << 24), BoundKind::compute);
  SharedMemoryModel memory;
  memory.bandwidth = 1e10;
  memory.sync      = 1e-6;
  EXPECT_EQ(lower_bounds({8, 1}, 4, memory).largest(), BoundKind::latency);
  EXPECT_EQ(lower_bounds({8, 1 << 24}, 4, memory).largest(), BoundKind::memory);
  // Between nodes, no more than a node's share of its ranks' links.
  NetworkModel two_levels       = network(0, 1e-12, 0);
  two_levels.link[between].beta = 1e-9;
  ScheduleRequest request{8, 1000};
  request.ranks_per_node = 4;
  EXPECT_DOUBLE_EQ(lower_bounds(request, 4, two_levels).link, 2.0 * 1 / 2 * 4000 / 4 * 1e-9);
}

TEST(Cost, StepsWaitForBothEnds) {
  // Rank 0 sends two messages, one after the other; nobody receives more than one.
  Schedule schedule;
  schedule.ranks = 3;
  schedule.steps = 2;
  for (auto [step, from, to] : std::vector<std::array<int, 3>>{{0, 0, 1}, {0, 0, 2}, {1, 1, 2}}) {
    Transfer t;
    t.step        = step;
    t.source      = from;
    t.destination = to;
    schedule.transfers.push_back(t);
  }
  ScheduleRequest const request{3, 1};
  auto const model  = network(1, 0, 0);
  auto const events = timeline(schedule, request, 4, model);
  EXPECT_DOUBLE_EQ(predict(schedule, request, 4, model).sum(), 3);
  ASSERT_EQ(events.size(), 6u);
  for (auto const& event : events)
    if (event.step == 1) {
      EXPECT_DOUBLE_EQ(event.start, 2);
    }
}

TEST(Cost, TimelineEndsWhenPredicted) {
  NetworkModel model;
  model.link[inside]  = {1e-6, 1e-11};
  model.link[between] = {5e-6, 1e-10};
  model.gamma         = 3e-11;
  model.copy          = 2e-11;
  for (int ports : {1, 2})
    for (auto const& name : algorithm_names())
      for (int k : {2, 5, 8}) {
        model.ports = ports;
        ScheduleRequest request{k, 1000};
        request.ranks_per_node = k == 8 ? 4 : 0;
        auto const schedule    = make_schedule(name, request);
        auto const events      = timeline(schedule, request, 4, model);
        double end             = 0;
        for (auto const& event : events) end = std::max(end, event.end);
        EXPECT_NEAR(end, predict(schedule, request, 4, model).sum(), 1e-12) << name << ' ' << k;
        std::int64_t sent = 0, received = 0;
        for (auto const& event : events) {
          EXPECT_GE(event.end, event.start);
          if (event.kind == TimelineEvent::Kind::send) sent += event.bytes;
          if (event.kind == TimelineEvent::Kind::receive) received += event.bytes;
        }
        EXPECT_EQ(sent, received);
        EXPECT_GT(sent, 0);
      }
}

}  // namespace
